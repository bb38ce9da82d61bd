//! The members of a quiet set.

use crate::own_fds::{OwnEvent, OwnFds};
use crate::slot::{Handle, Key};
use crate::{raw_epoll, rows, tcp_only};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::{AcceleratedStream, RingWatch, StreamRef};
use rsock_verbs::HighFd;
use rsock_verbs::soft::ReadyNumber;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A set, and a number of its ready set. As a word of a row it is not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u32);

/// Bits of the number.
const NUMBER: u32 = 16;

impl Place {
    fn new(set: usize, number: u32) -> Option<Self> {
        let set = u32::try_from(set).ok()?;
        (number < 1 << NUMBER).then_some(Self((set + 1) << NUMBER | number))
    }

    /// The place that a word of a row names.
    pub(super) fn of(word: u32) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(super) fn set(self) -> usize {
        (self.0 >> NUMBER) as usize - 1
    }

    fn number(self) -> u32 {
        self.0 & ((1 << NUMBER) - 1)
    }
}

/// A stream that the set watches.
#[derive(Clone, Copy)]
struct Member {
    fd: c_int,
    key: Key,
}

/// The streams of a set, and where what happens to them shows.
pub(super) struct Members {
    /// The set's index.
    set: usize,
    /// What a thread sleeps on: holds the descriptors of `own_fds`.
    all: HighFd,
    own_fds: Arc<OwnFds>,
    /// By the numbers of the ready set.
    by_number: Vec<Option<Member>>,
    n: usize,
    /// Numbers of which the socket watch has reported something, before the user takes them.
    reported: Vec<u32>,
}

impl Members {
    /// An empty set. `None` if no descriptor is free.
    pub(super) fn new(set: usize) -> Option<Self> {
        let all = HighFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).ok()?);
        let own_fds = OwnFds::new(all.as_fd().as_raw_fd()).ok()?;
        let own_fds = Arc::new(own_fds);
        Some(Self { set, all, own_fds, by_number: Vec::new(), n: 0, reported: Vec::new() })
    }

    pub(super) fn own_fds(&self) -> &Arc<OwnFds> {
        &self.own_fds
    }

    /// The descriptor on which a thread sleeps.
    pub(super) fn fd(&self) -> RawFd {
        self.all.as_fd().as_raw_fd()
    }

    /// The number of streams.
    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// Whether the stream with this key is a member by this number of the program.
    pub(super) fn has(&self, fd: c_int, place: Place, key: Key) -> bool {
        place.set() == self.set && self.at(place).is_some_and(|m| m.fd == fd && m.key == key)
    }

    fn at(&self, place: Place) -> Option<Member> {
        *self.by_number.get(place.number() as usize)?
    }

    /// Watches a stream, whose place its row gets. False if that is not possible.
    pub(super) fn add(&mut self, fd: c_int, key: Key, stream: &AcceleratedStream) -> bool {
        let Some(row) = rows::row(fd) else { return false };
        let Some(watch) = stream.watch_quiet(&self.own_fds.ready) else { return false };
        let number = watch.0.0;
        let place = Place::new(self.set, number);
        let Some(place) = place.filter(|_| self.own_fds.watch_socket(fd, number).is_ok()) else {
            stream.unwatch(&self.own_fds.ready, watch);
            return false;
        };
        let at = number as usize;
        if self.by_number.len() <= at {
            self.by_number.resize(at + 1, None);
        }
        self.by_number[at] = Some(Member { fd, key });
        self.n += 1;
        row.quiet.store(0, Ordering::Relaxed);
        // SYNC(quiet-set): see `leave`.
        row.quiet_place.store(place.0, Ordering::SeqCst);
        true
    }

    /// Ends the watch of a stream; returns whether it was a member. `stream` is none if the socket
    /// has ended.
    pub(super) fn remove(
        &mut self,
        fd: c_int,
        place: Place,
        key: Key,
        stream: Option<&AcceleratedStream>,
    ) -> bool {
        if !self.has(fd, place, key) {
            return false;
        }
        let number = place.number();
        self.by_number[number as usize] = None;
        self.n -= 1;
        // The watch of a number that has come to be another member is that member's. A process that
        // has restricted its system calls leaves watches to the kernel, which ends them with the
        // files.
        let now = rows::row(fd).and_then(|row| Place::of(row.quiet_place.load(Ordering::SeqCst)));
        let is_others = now.is_some_and(|now| now.set() == self.set && now != place);
        if !is_others && !tcp_only::is_sandboxed() {
            self.own_fds.unwatch_socket(fd);
        }
        let (ready, number) = (&self.own_fds.ready, ReadyNumber(number));
        match stream {
            Some(stream) => stream.unwatch(ready, RingWatch(number)),
            None => ready.forget(number),
        }
        Self::forget_row(fd, place);
        true
    }

    /// The stream at `place` is no longer passed over.
    pub(super) fn forget_row(fd: c_int, place: Place) {
        if let Some(row) = rows::row(fd) {
            row.quiet.store(0, Ordering::Release);
            let (of, none) = (Ordering::SeqCst, Ordering::Relaxed);
            let _ = row.quiet_place.compare_exchange(place.0, 0, of, none);
        }
    }

    /// Removes all members.
    pub(super) fn remove_all(&mut self, stream_of: impl Fn(c_int) -> Option<Handle>) {
        self.remove_where(stream_of, |_, _| true);
    }

    /// Removes the members that have left inside of signal handlers.
    pub(super) fn reap(&mut self, stream_of: impl Fn(c_int) -> Option<Handle>) {
        self.remove_where(stream_of, |fd, place| {
            rows::row(fd).is_none_or(|row| row.quiet_place.load(Ordering::SeqCst) != place.0)
        });
    }

    fn remove_where(
        &mut self,
        stream_of: impl Fn(c_int) -> Option<Handle>,
        is_removed: impl Fn(c_int, Place) -> bool,
    ) {
        for number in 0..self.by_number.len() {
            let place = u32::try_from(number).ok().and_then(|n| Place::new(self.set, n));
            let (Some(Member { fd, key }), Some(place)) = (self.by_number[number], place) else {
                continue;
            };
            if !is_removed(fd, place) {
                continue;
            }
            let handle = stream_of(fd).filter(|handle| handle.key() == key);
            match handle.as_ref().map(Handle::stream) {
                Some(StreamRef::Accelerated(stream)) => self.remove(fd, place, key, Some(stream)),
                _ => self.remove(fd, place, key, None),
            };
        }
    }

    /// Takes the events of the socket watch; [`Self::take`] has the rows of these streams know.
    pub(super) fn take_socket_events(&mut self) {
        let reported = &mut self.reported;
        self.own_fds.take_socket_events(|(number, _)| reported.push(number));
    }

    /// Takes the events of this library's own descriptors.
    pub(super) fn take_own_events(&mut self) {
        let mut events = [epoll_event { events: 0, u64: 0 }; OwnEvent::COUNT];
        let n = raw_epoll::take(self.fd(), &mut events).unwrap_or(0);
        let reported = &mut self.reported;
        for event in events[..n].iter().filter_map(OwnEvent::of) {
            self.own_fds.take_event(event, |(number, _)| reported.push(number));
        }
    }

    /// Whether [`Self::take`] would find something.
    pub(super) fn has_any(&self) -> bool {
        !self.reported.is_empty() || self.own_fds.ready.has_any()
    }

    /// Takes what has been announced and reported: those streams are no longer quiet.
    pub(super) fn take(&mut self) {
        let by_number = &self.by_number;
        let end_quiet = |number: u32| {
            let member = by_number.get(number as usize).copied().flatten();
            if let Some(row) = member.and_then(|member| rows::row(member.fd)) {
                row.quiet.store(0, Ordering::Relaxed);
            }
        };
        self.reported.drain(..).for_each(end_quiet);
        self.own_fds.ready.take(|number| end_quiet(number.0));
        // The user is awake, and no other thread relies on the bell.
        self.own_fds.ready.disarm();
    }
}

#[cfg(test)]
mod tests;
