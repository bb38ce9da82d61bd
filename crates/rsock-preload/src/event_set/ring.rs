//! Members that the library watches: how the watch begins, looks, and ends.

use super::members::{AnnouncedBy, OnRing};
use super::mistake::{self, is_mistaken};
use super::news::NewsCounter;
use super::{EventSet, State, stream_of};
use crate::epoll_interest;
use crate::log;
use crate::own_fds::{OF_SOCKET, OwnEvent, OwnFds, Tells};
use crate::raw_epoll;
use crate::slot::Handle;
use libc::epoll_event;
use rsock_core::accelerate::{AcceleratedStream, EpollState, FallbackReason, StreamRef};
use rsock_proto::event_set::{Events, News, Place, ReadinessSnapshot, Watch};
use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a look at a member is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Report,
    Ask,
}

/// What a look does that leaves a member without a report.
#[derive(Clone, Copy)]
enum After {
    /// What happens after this mark is announced.
    Announce(u32),
    /// Nothing is announced: the next wait looks again.
    LookAgain,
}

/// What a look at a member found.
pub(super) enum Found {
    /// An event to report.
    Event(epoll_event),
    Nothing,
}

impl State {
    /// The state of a member whose stream has found its peer, before the kernel's set is emptied.
    /// `None` if the library is not to watch it.
    pub(super) fn before_ring(&self, set: &EventSet, number: u32) -> Option<EpollState> {
        let member = self.members.get(number).filter(|member| member.ring.is_none())?;
        let handle = stream_of(member.fd).filter(|_| set.may_watch())?;
        let StreamRef::Accelerated(stream) = handle.stream() else { return None };
        if stream.is_plain() || !stream.has_path() || handle.is_same_socket() != Some(true) {
            return None;
        }
        stream.epoll_state(handle.fd(), Events::from_bits(member.events), true).ok()
    }

    /// Begins to watch a member whose stream has found its peer: from now on it may move to the
    /// ring. Everything up to `before` has been reported by the kernel, or `begins_anew`. False if
    /// the library cannot watch it; then the stream is pinned.
    pub(super) fn enter_ring(
        &mut self,
        set: &EventSet,
        number: u32,
        before: &EpollState,
        begins_anew: bool,
    ) -> bool {
        let Some(member) = self.members.get(number) else { return false };
        let fd = member.fd;
        if member.ring.is_some() {
            // Two members had this number when they found their peers.
            return true;
        }
        let Some(handle) = stream_of(fd) else { return false };
        let is_watched = self.try_enter_ring(set, number, &handle, before, begins_anew).is_some();
        if !is_watched {
            log::line(format_args!("fd {fd}: not watched on the ring"));
            handle.pin(FallbackReason::Epoll);
        }
        is_watched
    }

    fn try_enter_ring(
        &mut self,
        set: &EventSet,
        number: u32,
        handle: &Handle,
        before: &EpollState,
        begins_anew: bool,
    ) -> Option<()> {
        let StreamRef::Accelerated(stream) = handle.stream() else { return None };
        let own_fds = self.own_fds(set)?;
        let member = self.members.get(number)?;
        let (fd, events) = (member.fd, member.events);
        let is_spent = !begins_anew
            && events & ONE_SHOT != 0
            && epoll_interest::is_spent(self.fd, handle.fd());
        let announced_by = match stream.watch_by(&own_fds.ready).ok()? {
            Some(place) => AnnouncedBy::ReadySet(place),
            None => self.remote_watch(&own_fds, number, stream)?,
        };
        let place = announced_by.place();
        if self.begin_watch(set, number, before, announced_by).is_none() {
            if let Some(place) = place {
                stream.unwatch(&own_fds.ready, place);
            }
            return None;
        }
        let _ = raw_epoll::remove(self.fd, fd);
        match place {
            Some(place) => self.members.note_place(place, number),
            None => self.members.remote.push(number),
        }
        let ring = self.members.get_mut(number)?.ring.as_mut()?;
        if !begins_anew {
            let seen = NewsCounter::new(before).count(before, false).now.news;
            ring.watch = Watch::resumed(Events::from_bits(events), seen);
        }
        if is_spent {
            ring.watch = ring.watch.spent();
        }
        stream.end_hold();
        log::line(format_args!("fd {fd}: watched on the ring"));
        Some(())
    }

    /// Begins to watch the ring of a stream between hosts. `None` if there are no descriptors left.
    fn remote_watch(
        &self,
        own_fds: &OwnFds,
        number: u32,
        stream: &AcceleratedStream,
    ) -> Option<AnnouncedBy> {
        let watch = stream.watch_remote().ok()??;
        own_fds.watch_beside(watch.as_fd().as_raw_fd(), number, Tells::Doorbell).ok()?;
        if let Some(connection) = watch.connection_fd() {
            own_fds.watch_beside(connection, number, Tells::Connection).ok()?;
        }
        Some(AnnouncedBy::Doorbell { watch, mark: 0 })
    }

    /// Begins to watch the socket of a member, and its ring as `announced_by` says.
    pub(super) fn begin_watch(
        &mut self,
        set: &EventSet,
        number: u32,
        before: &EpollState,
        announced_by: AnnouncedBy,
    ) -> Option<()> {
        let own_fds = self.own_fds(set)?;
        self.watch_socket(&own_fds, number).ok()?;
        self.begin_looks(set, number, before, announced_by)?;
        // A thread may sleep in the kernel that does not know of rings yet.
        own_fds.ready.ring();
        Some(())
    }

    /// Begins to watch a new member where descriptors or the watches that the kernel allows have
    /// run out. The stream has been pinned. The kernel's set has an entry of it, whose place it
    /// keeps there: until it is on TCP the entry wakes threads for the library.
    pub(super) fn begin_unwatched(&mut self, set: &EventSet, number: u32, before: &EpollState) {
        let announced_by = AnnouncedBy::Unwatched { has_entry: true };
        let _ = self.begin_looks(set, number, before, announced_by);
        if let Some(fd) = self.members.get(number).map(|member| member.fd) {
            set.has_own_fds.store(true, Ordering::SeqCst);
            let _ = raw_epoll::modify(self.fd, fd, OF_SOCKET, OwnEvent::Sockets.data());
        }
    }

    fn begin_looks(
        &mut self,
        set: &EventSet,
        number: u32,
        before: &EpollState,
        announced_by: AnnouncedBy,
    ) -> Option<()> {
        let asked = Events::from_bits(self.members.get(number)?.events);
        let asks_socket = before.has_kernel_news || announced_by.is_unwatched();
        let mut news = NewsCounter::new(before);
        let now = news.count(before, false).now;
        let watch = Watch::new(asked, &now);
        self.members.get_mut(number)?.ring = Some(OnRing {
            watch,
            announced_by,
            news,
            asks_socket,
            has_socket_event: false,
            has_changed: false,
            was_readable: false,
            kernel_news_in_set: 0,
            counted: None,
        });
        set.n_watched.fetch_add(1, Ordering::AcqRel);
        self.note_candidate(number);
        Some(())
    }

    /// Has the kernel tell of changes of a member's socket. What it has now is no change.
    pub(super) fn watch_socket(&mut self, own_fds: &OwnFds, number: u32) -> io::Result<()> {
        let Some(fd) = self.members.get(number).map(|member| member.fd) else { return Ok(()) };
        own_fds.watch_socket(fd, number)?;
        own_fds.take_socket_events(|other| {
            if other != (number, Tells::Socket) {
                self.note_socket_event(other);
            }
        });
        Ok(())
    }

    /// Begins to watch a member that is a set.
    pub(super) fn begin_watch_of_set(&mut self, set: &EventSet, number: u32) -> io::Result<()> {
        let own_fds = self.own_fds(set).ok_or(rustix::io::Errno::NOMEM)?;
        self.watch_socket(&own_fds, number)?;
        let now = ReadinessSnapshot::default();
        if let Some(member) = self.members.get_mut(number) {
            let watch = Watch::new(Events::from_bits(member.events), &now);
            member.ring = Some(OnRing {
                watch,
                announced_by: AnnouncedBy::Nothing,
                news: NewsCounter::default(),
                asks_socket: false,
                has_socket_event: false,
                has_changed: false,
                was_readable: false,
                kernel_news_in_set: 0,
                counted: None,
            });
        }
        set.n_watched.fetch_add(1, Ordering::AcqRel);
        self.begin_anew(number);
        own_fds.ready.ring();
        Ok(())
    }

    fn own_fds(&mut self, set: &EventSet) -> Option<Arc<OwnFds>> {
        if self.own_fds.is_none() {
            set.has_own_fds.store(true, Ordering::SeqCst);
            self.own_fds = Some(Arc::new(OwnFds::new(self.fd).ok()?));
        }
        self.own_fds.clone()
    }

    pub(super) fn note_candidate(&mut self, number: u32) {
        if let Some(member) = self.members.get_mut(number)
            && !std::mem::replace(&mut member.is_candidate, true)
        {
            if is_mistaken!(UnfairOrder) {
                return self.candidates.push_front(number);
            }
            self.candidates.push_back(number);
        }
    }

    /// The socket watch tells something of a member.
    pub(super) fn note_socket_event(&mut self, (number, tells): (u32, Tells)) {
        match tells {
            Tells::Socket => {}
            Tells::Doorbell => return self.note_candidate(number),
            Tells::Connection => {
                self.note_connection(number);
                return self.note_candidate(number);
            }
        }
        let mut all = vec![number];
        if self.members.have_shared_numbers
            && let Some(member) = self.members.get(number)
        {
            all = self.members.all_of(member.fd);
        }
        for number in all {
            if let Some(ring) = self.members.get_mut(number).and_then(|m| m.ring.as_mut()) {
                ring.has_socket_event = true;
                self.note_candidate(number);
            }
        }
    }

    /// The device or the peer's host may have ended the connection of a member.
    fn note_connection(&mut self, number: u32) {
        let Some(handle) = self.members.get(number).and_then(|m| stream_of(m.fd)) else { return };
        if let StreamRef::Accelerated(stream) = handle.stream() {
            stream.note_connection(handle.fd());
        }
        if let Some(ring) = self.members.get_mut(number).and_then(|m| m.ring.as_mut()) {
            ring.has_changed = true;
        }
    }

    /// Begins the watch of a member anew, for the events that it has now.
    pub(super) fn begin_anew(&mut self, number: u32) {
        let handle = self.stream_of_member(number);
        let Some((now, _)) = self.state_of(number, handle.as_ref()) else { return };
        let Some(member) = self.members.get_mut(number) else { return };
        if let Some(ring) = &mut member.ring {
            ring.watch = Watch::new(Events::from_bits(member.events), &now);
            ring.counted = None;
            self.note_candidate(number);
        }
    }

    /// Looks at a member once, for a wait that reports what is found.
    pub(super) fn look(&mut self, set: &EventSet, number: u32) -> Found {
        self.look_for(set, number, Purpose::Report)
    }

    /// Looks at a member once, for a caller that asks only whether there is something to report.
    pub(super) fn look_without_report(&mut self, set: &EventSet, number: u32) -> Found {
        self.look_for(set, number, Purpose::Ask)
    }

    fn look_for(&mut self, set: &EventSet, number: u32, purpose: Purpose) -> Found {
        let Some(member) = self.members.get_mut(number) else { return Found::Nothing };
        member.is_candidate = false;
        if member.is_deleted {
            return Found::Nothing;
        }
        // The kernel would report an edge again when it begins to watch.
        let is_level = member.events & (EDGE | ONE_SHOT) == 0 && !member.is_renamed;
        let is_unwatched = member.ring.as_ref().is_some_and(|r| r.announced_by.is_unwatched());
        let handle = self.stream_of_member(number);
        if (is_level || is_unwatched || !set.may_watch())
            && let Some(handle) = handle.as_ref().filter(|handle| handle.stream().is_plain())
        {
            self.leave_ring(set, number, handle);
        }
        let Some((now, after)) = self.state_of(number, handle.as_ref()) else {
            return Found::Nothing;
        };
        let Some(member) = self.members.get_mut(number) else { return Found::Nothing };
        let Some(ring) = &mut member.ring else { return Found::Nothing };
        let has_news = ring.watch.has_news(&now);
        let mut looked = ring.watch.inspect(&now);
        let is_edge = member.events & EDGE != 0 && looked.report != Events::NONE;
        if is_mistaken!(LostEdge) && is_edge && mistake::is_fourth_time() {
            looked.report = Events::NONE;
        }
        if is_mistaken!(DoubledEdge) && is_edge && mistake::is_fourth_time() {
            (looked.place, looked.next) = (Place::Last, ring.watch);
        }
        if is_mistaken!(RearmedOneShot) {
            looked.next = Watch::resumed(Events::from_bits(member.events), now.news);
        }
        let found = match looked.report.bits() {
            0 => Found::Nothing,
            events if is_mistaken!(MissingHangUp) => {
                let events = events & !Events::HANG_UP.bits();
                Found::Event(epoll_event { events, u64: member.data })
            }
            events if is_mistaken!(DataOfAnother) => {
                Found::Event(epoll_event { events, u64: mistake::exchanged(member.data) })
            }
            events => Found::Event(epoll_event { events, u64: member.data }),
        };
        let is_counted = ring.counted.replace(now.news) == Some(now.news);
        let is_news = !is_counted && (has_news || matches!(found, Found::Event(_)));
        self.n_news = self.n_news.wrapping_add(u32::from(is_news));
        if purpose == Purpose::Ask && matches!(found, Found::Event(_)) {
            self.note_candidate(number);
            if let After::Announce(mark) = after {
                // More news are news for those that poll the set.
                let _ = self.announce_next(number, handle.as_ref(), mark);
            }
            return found;
        }
        ring.watch = looked.next;
        match (looked.place, after) {
            (Place::Last, _) => self.note_candidate(number),
            (Place::Out, After::LookAgain) => self.impatient.push(number),
            (Place::Out, After::Announce(mark)) => {
                if !self.announce_next(number, handle.as_ref(), mark) {
                    self.note_candidate(number);
                }
            }
        }
        found
    }

    /// The stream of a member, if it is one.
    fn stream_of_member(&self, number: u32) -> Option<Handle> {
        stream_of(self.members.get(number).filter(|member| member.set.is_none())?.fd)
    }

    /// The state of a member with this stream, and what a look that reports nothing does then.
    fn state_of(
        &mut self,
        number: u32,
        handle: Option<&Handle>,
    ) -> Option<(ReadinessSnapshot, After)> {
        let member = self.members.get_mut(number)?;
        let ring = member.ring.as_mut()?;
        let has_event = std::mem::take(&mut ring.has_socket_event);
        if let Some(set) = member.set {
            let (mut is_ready, mut n_news) = set.look();
            let mut in_kernel = raw_epoll::is_readable(set.fd);
            for _ in 0..MOST_LOOKS_AGAIN {
                if is_ready || !in_kernel {
                    break;
                }
                // The look itself may have led to events of this library's own.
                (is_ready, n_news) = set.look();
                in_kernel = raw_epoll::is_readable(set.fd);
            }
            let is_readable = is_ready || in_kernel;
            let was_readable = std::mem::replace(&mut ring.was_readable, is_readable);
            let is_news = is_readable && !was_readable || has_event && in_kernel;
            let in_set = &mut ring.kernel_news_in_set;
            *in_set = in_set.wrapping_add(u32::from(is_news));
            let news = News { arrivals: n_news.wrapping_add(*in_set), ..News::default() };
            let now = ReadinessSnapshot { is_readable, news, ..ReadinessSnapshot::default() };
            return Some((now, After::Announce(0)));
        }
        let handle = handle?;
        let StreamRef::Accelerated(stream) = handle.stream() else { return None };
        let asked = Events::from_bits(member.events);
        if let AnnouncedBy::Doorbell { watch, .. } = &ring.announced_by {
            stream.pause_remote(watch);
            let after = stream.check_after();
            let check_at = after.and_then(|after| Instant::now().checked_add(after));
            self.check_at = [self.check_at, check_at].into_iter().flatten().min();
        }
        let has_changed = std::mem::take(&mut ring.has_changed);
        let asks_socket = ring.asks_socket || has_event || has_changed || self.is_inherited;
        let state = stream.epoll_state(handle.fd(), asked, asks_socket).ok()?;
        ring.asks_socket |= state.has_kernel_news;
        // Of a stream on TCP the socket watch tells everything.
        let is_told = match ring.announced_by {
            AnnouncedBy::Nothing => stream.is_plain(),
            _ => ring.announced_by.is_any(),
        };
        let after = match state.look_again {
            None if is_told && !self.is_inherited && !state.is_end_pending => {
                After::Announce(state.mark)
            }
            _ => After::LookAgain,
        };
        if has_changed || state.is_receive_due {
            ring.news.note_change();
        }
        let mut counted = ring.news.count(&state, has_event);
        let is_event_due = counted.is_event_due || has_changed && !has_event;
        if is_event_due && !self.is_inherited && self.take_event_of(number) {
            // The event may tell of something that came after the state was taken: what comes from
            // now on has an event of its own.
            let state = stream.epoll_state(handle.fd(), asked, true).ok()?;
            let ring = self.members.get_mut(number)?.ring.as_mut()?;
            ring.asks_socket |= state.has_kernel_news;
            counted = ring.news.count(&state, false);
        }
        Some((counted.now, after))
    }

    /// Takes the kernel's event of a member, of which something has been seen. Returns whether
    /// there was one.
    fn take_event_of(&mut self, number: u32) -> bool {
        let Some(own_fds) = self.own_fds.clone() else { return false };
        own_fds.take_socket_events(|event| self.note_socket_event(event));
        let ring = self.members.get_mut(number).and_then(|member| member.ring.as_mut());
        ring.is_some_and(|ring| std::mem::take(&mut ring.has_socket_event))
    }

    /// Has the ready set told of what happens after `mark` to a member with this stream. False if
    /// something has happened already.
    fn announce_next(&mut self, number: u32, handle: Option<&Handle>, mark: u32) -> bool {
        let Some(member) = self.members.get_mut(number) else { return true };
        if let Some(set) = member.set {
            return set.arm_for_news();
        }
        let Some(StreamRef::Accelerated(stream)) = handle.map(Handle::stream) else { return true };
        let remote = member.ring.as_mut().map(|ring| &mut ring.announced_by);
        match remote {
            Some(AnnouncedBy::Doorbell { watch, mark: last }) => {
                *last = mark;
                stream.announce_next_to(watch, mark)
            }
            Some(AnnouncedBy::Nothing) => true,
            _ => stream.announce_next(mark),
        }
    }

    /// Ends the watch of a member whose stream the kernel alone serves by now.
    pub(super) fn leave_ring_if_plain(&mut self, set: &EventSet, number: u32) {
        let Some(fd) = self.members.get(number).map(|member| member.fd) else { return };
        if let Some(handle) = stream_of(fd)
            && handle.stream().is_plain()
        {
            self.leave_ring(set, number, &handle);
        }
    }

    /// Ends the watch of a member, and has the kernel watch it for the program again, unless the
    /// program has deleted it.
    pub(super) fn leave_ring(&mut self, set: &EventSet, number: u32, handle: &Handle) {
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
    pub(super) fn put_back(&mut self, set: &EventSet, number: u32, ring: OnRing) {
        let Some(member) = self.members.get_mut(number) else { return };
        let events = if ring.watch.is_spent() { member.events & FLAGS } else { member.events };
        let (fd, data) = (member.fd, member.data);
        let done = match ring.announced_by.has_entry() {
            true => raw_epoll::modify(self.fd, fd, events, data),
            false => match raw_epoll::add(self.fd, fd, events, data) {
                // A process that has the set from a fork has put it back already.
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                    raw_epoll::modify(self.fd, fd, events, data)
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
                let announced_by = AnnouncedBy::Unwatched { has_entry: false };
                member.ring = Some(OnRing { announced_by, asks_socket: true, ..ring });
                set.n_watched.fetch_add(1, Ordering::AcqRel);
                self.note_candidate(number);
            }
        }
    }

    /// Ends the library's part of a watch, which it returns.
    pub(super) fn unwatch(
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

    /// Has threads look again that sleep on the set, on a set that it is in, or in `poll` over one
    /// of these. The last two are not counted as sleepers.
    pub(super) fn wake_all(&self, set: &EventSet) {
        if self.is_polled || set.n_sleepers.load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// Rings the doorbell of the set, if it has one.
    pub(super) fn ring(&self) {
        if let Some(own_fds) = &self.own_fds {
            own_fds.ready.ring();
        }
    }
}

/// So often a set among the members is looked at again to learn whether only events of this
/// library's own make it readable.
const MOST_LOOKS_AGAIN: usize = 3;
const EDGE: u32 = libc::EPOLLET.cast_unsigned();
const ONE_SHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();
/// What remains of the events of a one-shot watch that has reported.
const FLAGS: u32 = (libc::EPOLLONESHOT | libc::EPOLLET).cast_unsigned();
