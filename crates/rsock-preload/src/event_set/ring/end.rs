//! The library ends the watch of members.

use crate::event_set::members::{AnnouncedBy, OnRing};
use crate::event_set::{EXCLUSIVE, EventSet, State, stream_of};
use crate::log;
use crate::raw_epoll;
use crate::slot::Handle;
use rsock_core::accelerate::{AcceleratedStream, StreamRef};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::io;
use std::sync::atomic::Ordering;

/// What remains of the events of a one-shot watch that has reported.
const FLAGS: u32 = (libc::EPOLLONESHOT | libc::EPOLLET).cast_unsigned();

impl State {
    /// Ends the watch of a member whose stream the kernel alone serves by now.
    pub(in crate::event_set) fn leave_ring_if_plain(&mut self, set: &EventSet, number: u32) {
        let Some(fd) = self.members.get(number).map(|member| member.fd) else { return };
        if let Some(handle) = stream_of(fd)
            && handle.stream().is_plain()
        {
            self.leave_ring(set, number, &handle);
        }
    }

    /// Ends the watch of a member, and has the kernel watch it for the program again, unless the
    /// program has deleted it.
    pub(in crate::event_set) fn leave_ring(
        &mut self,
        set: &EventSet,
        number: u32,
        handle: &Handle,
    ) {
        let Some(member) = self.members.get(number).filter(|m| m.ring.is_some()) else { return };
        if member.is_deleted {
            return self.remove(set, number);
        }
        let StreamRef::Accelerated(stream) = handle.stream() else { return };
        // In this order: if the watches that the kernel allows have run out, one is free then.
        let Some(ring) = self.unwatch(set, number, Some(stream)) else { return };
        self.put_back(set, number, ring);
        if !set.may_watch() {
            self.end_own_fds(set);
        }
    }

    /// Has the kernel watch a member, of which `ring` was the watch, as the program has asked.
    pub(in crate::event_set) fn put_back(&mut self, set: &EventSet, number: u32, ring: OnRing) {
        let Some(member) = self.members.get_mut(number) else { return };
        let events = if ring.watch.is_spent() { member.events & FLAGS } else { member.events };
        let (fd, data) = (member.fd, member.data);
        let has_entry = ring.announced_by.has_entry();
        let done = match has_entry {
            true => change_entry(self.fd, fd, events, data),
            false => match raw_epoll::add(self.fd, fd, events, data) {
                // A process that has the set from a fork has put it back already.
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                    change_entry(self.fd, fd, events, data)
                }
                added => added,
            },
        };
        match done {
            Ok(()) => {
                log::line(format_args!("fd {fd}: back in its epoll set"));
                // The kernel reports nothing of a one-shot that is spent.
                let is_again = member.reported_in == self.turn && !ring.watch.is_spent();
                self.reported.note_left_ring(is_again.then_some(data));
            }
            Err(e) => {
                log::line(format_args!("fd {fd}: not put back into its epoll set yet: {e}"));
                let is_gone = events & EXCLUSIVE != 0 || e.raw_os_error() == Some(libc::ENOENT);
                let has_entry = has_entry && !is_gone;
                let announced_by = AnnouncedBy::Unwatched { has_entry };
                member.ring = Some(OnRing { announced_by, asks_socket: true, ..ring });
                set.n_watched.fetch_add(1, Ordering::AcqRel);
                self.note_candidate(number);
            }
        }
    }

    /// Ends the library's part of a watch, which it returns.
    pub(in crate::event_set) fn unwatch(
        &mut self,
        set: &EventSet,
        number: u32,
        stream: Option<&AcceleratedStream>,
    ) -> Option<OnRing> {
        let member = self.members.get_mut(number)?;
        let (was_deleted, fd) = (member.is_deleted, member.fd);
        let ring = member.ring.take()?;
        if !was_deleted {
            set.n_watched.fetch_sub(1, Ordering::AcqRel);
        }
        // The rest of an inherited watch is the parent's.
        let own_fds = self.own_fds.clone().filter(|_| !self.is_inherited);
        let Some(own_fds) = own_fds else { return Some(ring) };
        let is_other = |&other: &u32| other != number;
        let of_fd = self.members.have_shared_numbers.then(|| self.members.all_of(fd));
        let other = of_fd.unwrap_or_default().into_iter().find(is_other);
        own_fds.take_socket_events(|event| self.note_socket_event(event));
        own_fds.unwatch_socket(fd);
        if let Some(other) = other {
            let _ = self.watch_socket(&own_fds, other);
        }
        self.members.remote.retain(|&other| other != number);
        match (stream, &ring.announced_by) {
            (Some(stream), AnnouncedBy::ReadySet(place)) => {
                stream.unwatch(&own_fds.ready, *place);
            }
            (Some(stream), AnnouncedBy::Doorbell { watch, .. }) => {
                stream.pause_remote(watch);
                own_fds.unwatch_socket(watch.as_fd().as_raw_fd());
                if let Some(connection) = watch.connection_fd() {
                    own_fds.unwatch_socket(connection);
                }
            }
            // The descriptors close with the doorbell and with the stream.
            (None, _) | (_, AnnouncedBy::Nothing | AnnouncedBy::Unwatched { .. }) => {}
        }
        Some(ring)
    }
}

/// Has the kernel's entry of `fd` report `events` with `data` from now on.
fn change_entry(set: RawFd, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    if events & EXCLUSIVE == 0 {
        return raw_epoll::modify(set, fd, events, data);
    }
    // The kernel changes no exclusive entry, and makes none exclusive that is there already.
    raw_epoll::remove(set, fd)?;
    raw_epoll::add(set, fd, events, data)
}
