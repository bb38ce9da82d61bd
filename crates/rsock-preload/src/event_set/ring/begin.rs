//! The library begins to watch members.

use super::ONE_SHOT;
use crate::epoll_interest;
use crate::event_set::members::{AnnouncedBy, OnRing};
use crate::event_set::news::NewsCounter;
use crate::event_set::{EventSet, State, stream_of};
use crate::log;
use crate::own_fds::{OF_SOCKET, OwnEvent, OwnFds, Tells};
use crate::raw_epoll;
use crate::slot::Handle;
use rsock_core::accelerate::{AcceleratedStream, EpollState, FallbackReason, StreamRef};
use rsock_proto::event_set::{Events, ReadinessSnapshot, Watch};
use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl State {
    /// The state of a member whose stream has found its peer, before the kernel's set is emptied.
    /// `None` if the library is not to watch it.
    pub(in crate::event_set) fn before_ring(
        &self,
        set: &EventSet,
        number: u32,
    ) -> Option<EpollState> {
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
    pub(in crate::event_set) fn enter_ring(
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
    pub(in crate::event_set) fn begin_watch(
        &mut self,
        set: &EventSet,
        number: u32,
        before: &EpollState,
        announced_by: AnnouncedBy,
    ) -> Option<()> {
        let own_fds = self.own_fds(set)?;
        self.watch_socket(&own_fds, number).ok()?;
        let is_first = !set.is_watching();
        self.begin_looks(set, number, before, announced_by)?;
        if is_first {
            // A thread may sleep in a `poll` of the set that began before the set had rings: it is
            // not counted.
            own_fds.ready.ring();
        } else {
            self.wake_all(set);
        }
        Some(())
    }

    /// Begins to watch a new member where descriptors or the watches that the kernel allows have
    /// run out. The stream has been pinned. The kernel's set has an entry of it, whose place it
    /// keeps there: until it is on TCP the entry wakes threads for the library.
    pub(in crate::event_set) fn begin_unwatched(
        &mut self,
        set: &EventSet,
        number: u32,
        before: &EpollState,
    ) {
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
        note_room_asked(self.stream_of_member(number).as_ref(), asked.bits());
        let asks_socket = before.has_kernel_news || announced_by.is_unwatched();
        let mut news = NewsCounter::new(before);
        let now = news.count(before, false).now;
        let watch = Watch::new(asked, &now);
        self.members.get_mut(number)?.ring =
            Some(OnRing { news, asks_socket, ..OnRing::new(watch, announced_by) });
        set.n_watched.fetch_add(1, Ordering::AcqRel);
        self.note_candidate(number);
        Some(())
    }

    /// Has the kernel tell of changes of a member's socket. What it has now is no change.
    pub(in crate::event_set) fn watch_socket(
        &mut self,
        own_fds: &OwnFds,
        number: u32,
    ) -> io::Result<()> {
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
    pub(in crate::event_set) fn begin_watch_of_set(
        &mut self,
        set: &EventSet,
        number: u32,
    ) -> io::Result<()> {
        let own_fds = self.own_fds(set).ok_or(rustix::io::Errno::NOMEM)?;
        self.watch_socket(&own_fds, number)?;
        let now = ReadinessSnapshot::default();
        if let Some(member) = self.members.get_mut(number) {
            let watch = Watch::new(Events::from_bits(member.events), &now);
            member.ring = Some(OnRing::new(watch, AnnouncedBy::Nothing));
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

    /// Begins the watch of a member anew, for the events that it has now.
    pub(in crate::event_set) fn begin_anew(&mut self, number: u32) {
        let handle = self.stream_of_member(number);
        let Some((now, _)) = self.state_of(number, handle.as_ref()) else { return };
        let Some(member) = self.members.get_mut(number) else { return };
        note_room_asked(handle.as_ref(), member.events);
        if let Some(ring) = &mut member.ring {
            ring.watch = Watch::new(Events::from_bits(member.events), &now);
            ring.counted = None;
            self.note_candidate(number);
        }
    }
}

/// Tells a stream whether its watch asks for room: see `AcceleratedStream::note_watch`.
fn note_room_asked(handle: Option<&Handle>, events: u32) {
    if let Some(StreamRef::Accelerated(stream)) = handle.map(Handle::stream) {
        stream.note_watch(Events::from_bits(events).has(Events::OUTPUT));
    }
}
