//! `epoll_ctl` on sets that this process has made, for descriptors that are streams.

use super::members::{AnnouncedBy, Member, split, watch_id};
use super::{EXCLUSIVE, EventSet, PolledEventSet, State, kernel_watch, sets_of, stream_of};
use crate::own_fds::OwnEvent;
use crate::raw_epoll;
use crate::slot::Handle;
use crate::watched::{self, watch_of};
use crate::{errno, fdtable, guard, quiet_set, tcp_only};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::{EpollState, FallbackReason, StreamRef};
use rsock_core::interrupt::Section;
use rustix::fd::RawFd;
use std::io;
use std::sync::atomic::Ordering;

/// What `epoll_ctl` is asked to do with a descriptor.
#[derive(Clone, Copy)]
pub(crate) enum Control {
    Add(epoll_event),
    Modify(epoll_event),
    Delete,
}

/// What may be asked for with `EPOLLEXCLUSIVE`.
const WITH_EXCLUSIVE: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE)
    .cast_unsigned();

/// Does what is asked with the stream `fd`. `None` if that is the kernel's: the descriptor is not
/// one that the library watches in this set, now or later.
pub(crate) fn control(
    set: &'static EventSet,
    set_fd: RawFd,
    fd: RawFd,
    what: Control,
) -> Option<Result<(), c_int>> {
    if guard::is_in_core() {
        return None;
    }
    let _section = Section::enter();
    kernel_watch::make_member(fd);
    if quiet_set::has(fd)
        && let Some(handle) = stream_of(fd)
    {
        quiet_set::leave(&handle, fd);
    }
    if matches!(what, Control::Add(_)) {
        forget_deleted_elsewhere(set, fd);
    }
    let mut state = set.lock();
    state.fd = set_fd;
    let number = state.members.number_of(fd).or_else(|| state.number_before(fd));
    let number = number.filter(|&number| !state.forget_if_useless(set, number));
    let is_deleted = number.and_then(|n| state.members.get(n)).is_some_and(|m| m.is_deleted);
    let done = guard::call_core(|| {
        Ok(match (what, number) {
            (Control::Add(event), None) => state.add(set, fd, event),
            (Control::Add(event), Some(number)) if is_deleted => {
                Some(state.add_again(set, number, event))
            }
            (Control::Modify(event), Some(_)) if event.events & EXCLUSIVE != 0 => {
                Some(Err(rustix::io::Errno::INVAL.into()))
            }
            (_, Some(_)) if is_deleted => Some(Err(rustix::io::Errno::NOENT.into())),
            (Control::Add(event), Some(number)) => {
                let is_on_ring = state.members.get(number).is_some_and(|m| m.ring.is_some());
                if is_on_ring {
                    let refused = check_exclusive(event.events).and_then(|()| {
                        let is_set = super::find(fd).is_some();
                        let is_invalid = is_set && event.events & EXCLUSIVE != 0;
                        let error = [rustix::io::Errno::EXIST, rustix::io::Errno::INVAL];
                        Err(error[usize::from(is_invalid)].into())
                    });
                    Some(refused)
                } else {
                    state.add_known(fd, event)
                }
            }
            (Control::Modify(event), Some(number)) => state.modify(set, number, event),
            (Control::Delete, Some(number)) => Some(state.delete(set, number)),
            (_, None) => None,
        })
    });
    let is_on_ring = number.and_then(|n| state.members.get(n)).is_some_and(|m| m.ring.is_some());
    drop(state);
    if !is_on_ring && !matches!(what, Control::Delete) {
        set.note_kernel_change();
    }
    if matches!((what, number, &done), (Control::Add(_), None, Ok(Some(Ok(()))))) {
        kernel_watch::follow_adoption(set, fd);
    }
    match done {
        Ok(None) => None,
        Ok(Some(done)) => Some(done.map_err(|e| errno::of(&e))),
        Err(e) => Some(Err(e)),
    }
}

/// Another set may have kept a member that the program has deleted there.
fn forget_deleted_elsewhere(set: &'static EventSet, fd: RawFd) {
    if watch_of(fd).is_none_or(|watch| split(watch).0 == set.number) {
        return;
    }
    for other in sets_of(fd).into_iter().filter(|other| !std::ptr::eq(*other, set)) {
        let mut state = other.lock();
        let _ = guard::call_core(|| {
            for number in state.members.all_of(fd) {
                if state.members.get(number).is_some_and(|member| member.is_deleted) {
                    state.remove(other, number);
                }
            }
            Ok(())
        });
    }
}

/// As the kernel checks what is asked for with `EPOLLEXCLUSIVE`.
fn check_exclusive(events: u32) -> io::Result<()> {
    if events & EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 {
        return Err(rustix::io::Errno::INVAL.into());
    }
    Ok(())
}

impl State {
    /// The member that was added by `fd`, if that was closed since and names the same file again.
    fn number_before(&self, fd: RawFd) -> Option<u32> {
        let (key, set) = (fdtable::key(fd), super::find(fd));
        let is_same = |member: &Member| match (set, member.set) {
            (Some(set), Some(of_member)) => std::ptr::eq(set, of_member.set),
            _ => key.is_some() && fdtable::key(member.fd) == key,
        };
        self.members.renamed_from(fd).find(|(_, member)| is_same(member)).map(|(number, _)| number)
    }

    fn add(
        &mut self,
        set: &'static EventSet,
        fd: RawFd,
        event: epoll_event,
    ) -> Option<io::Result<()>> {
        if let Some(member) = super::find(fd).filter(|member| !std::ptr::eq(*member, set)) {
            return self.add_set(set, PolledEventSet { set: member, fd }, event);
        }
        let is_possible = set.may_watch() && !tcp_only::is_on() && fdtable::is_connection(fd);
        if !is_possible {
            return None;
        }
        let handle = stream_of(fd);
        let stream = match handle.as_ref().map(Handle::stream) {
            Some(StreamRef::Native(_)) => return None,
            Some(StreamRef::Accelerated(stream)) if stream.is_plain() => return None,
            Some(StreamRef::Accelerated(stream)) => Some(stream),
            None => None,
        };
        if watch_of(fd).is_some() || stream.is_some_and(|s| s.watched_by().is_some()) {
            fdtable::pin(fd, FallbackReason::Epoll);
            return self.add_beside(set, fd, event, handle.as_ref()?);
        }
        let number = self.members.insert(Member::new(fd, event, None));
        let watch = watch_id(set.number, number);
        if !watched::note(fd, watch) || stream.is_some_and(|s| !s.hold_on_tcp(watch)) {
            self.remove(set, number);
            return None;
        }
        let now = stream.and_then(|_| self.before_ring(set, number));
        if let Some(now) = now {
            if let Err(e) = self.check(set, fd, event) {
                self.remove(set, number);
                return Some(Err(e));
            }
            self.enter_ring_or_look(set, number, &now);
            return Some(Ok(()));
        }
        if let Err(e) = raw_epoll::add(self.fd, fd, event.events, event.u64) {
            self.remove(set, number);
            return Some(Err(e));
        }
        Some(Ok(()))
    }

    /// Begins to watch a new member, which the kernel's set has too. Where the library lacks what
    /// it needs for that, the stream goes back to TCP, and is looked at again and again meanwhile.
    pub(super) fn enter_ring_or_look(&mut self, set: &EventSet, number: u32, now: &EpollState) {
        if !self.enter_ring(set, number, now, true) {
            self.begin_unwatched(set, number, now);
        }
    }

    /// Adds a member that the kernel watches already, and says so. Some programs do that before
    /// each change, libuv for example: it must not cost the stream its ring. `None` if the number
    /// has come to name another file, of which the library knows nothing.
    fn add_known(&self, fd: RawFd, event: epoll_event) -> Option<io::Result<()>> {
        if let Err(e) = raw_epoll::add(self.fd, fd, event.events, event.u64) {
            return Some(Err(e));
        }
        let _ = raw_epoll::remove(self.fd, fd);
        None
    }

    /// Adds a set. `None` if the kernel alone is to watch it: its streams have to stay on TCP then.
    fn add_set(
        &mut self,
        set: &'static EventSet,
        member: PolledEventSet,
        event: epoll_event,
    ) -> Option<io::Result<()>> {
        if !set.may_watch() || tcp_only::is_on() || event.events & EXCLUSIVE != 0 {
            return None;
        }
        let fd = member.fd;
        match self.check(set, fd, event) {
            // The descriptors of this library between the sets may have made them too many.
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return None,
            Err(e) => return Some(Err(e)),
            Ok(()) => {}
        }
        let _ = raw_epoll::remove(self.fd, fd);
        let number = self.members.insert(Member::new(fd, event, Some(member)));
        watched::note(fd, watch_id(set.number, number));
        if self.begin_watch_of_set(set, number).is_err() {
            self.remove(set, number);
            return None;
        }
        Some(Ok(()))
    }

    /// Has the kernel say what is wrong with a new member, by adding it in a way that reports
    /// nothing of it.
    fn check(&self, set: &EventSet, fd: RawFd, event: epoll_event) -> io::Result<()> {
        check_exclusive(event.events)?;
        set.has_own_fds.store(true, Ordering::SeqCst);
        // Of an end that is there already no wait may tell as of this.
        raw_epoll::add(self.fd, fd, 0, OwnEvent::Sockets.data())
    }

    /// Adds a stream that has another watch, and which is on its way back to TCP therefore. `None`
    /// if it is there: then it is the kernel's.
    fn add_beside(
        &mut self,
        set: &'static EventSet,
        fd: RawFd,
        event: epoll_event,
        handle: &Handle,
    ) -> Option<io::Result<()>> {
        if handle.stream().is_plain() {
            return None;
        }
        if let Err(e) = self.check(set, fd, event) {
            return Some(Err(e));
        }
        let number = self.members.insert(Member::new(fd, event, None));
        watched::note(fd, watch_id(set.number, number));
        let Some(now) = self.before_ring(set, number) else {
            let _ = raw_epoll::remove(self.fd, fd);
            self.remove(set, number);
            return None;
        };
        if self.begin_watch(set, number, &now, AnnouncedBy::Nothing).is_some() {
            let _ = raw_epoll::remove(self.fd, fd);
        } else {
            self.begin_unwatched(set, number, &now);
        }
        Some(Ok(()))
    }

    fn modify(
        &mut self,
        set: &'static EventSet,
        number: u32,
        event: epoll_event,
    ) -> Option<io::Result<()>> {
        let member = self.members.get_mut(number)?;
        if member.ring.is_none() {
            let done = raw_epoll::modify(self.fd, member.fd, event.events, event.u64);
            if done.is_ok() {
                (member.events, member.data) = (event.events, event.u64);
            }
            return Some(done);
        }
        if (event.events | member.events) & EXCLUSIVE != 0 {
            return Some(Err(rustix::io::Errno::INVAL.into()));
        }
        (member.events, member.data) = (event.events, event.u64);
        self.begin_anew(number);
        self.wake_all(set);
        Some(Ok(()))
    }

    fn delete(&mut self, set: &'static EventSet, number: u32) -> io::Result<()> {
        let handle = self.stream_of_member(number);
        if let Some(StreamRef::Accelerated(stream)) = handle.as_ref().map(Handle::stream) {
            stream.note_watch(false);
        }
        let Some(member) = self.members.get_mut(number) else { return Ok(()) };
        match &member.ring {
            Some(ring) if ring.announced_by.is_any() => {
                member.is_deleted = true;
                set.n_watched.fetch_sub(1, Ordering::AcqRel);
                return Ok(());
            }
            Some(ring) if !ring.announced_by.has_entry() => {}
            // Its entry is the program's, or takes the place of that.
            _ => raw_epoll::remove(self.fd, member.fd)?,
        }
        self.remove(set, number);
        Ok(())
    }

    /// Adds a member again that the program has deleted.
    fn add_again(&mut self, set: &EventSet, number: u32, event: epoll_event) -> io::Result<()> {
        check_exclusive(event.events)?;
        let Some(member) = self.members.get_mut(number) else { return Ok(()) };
        (member.events, member.data, member.is_deleted) = (event.events, event.u64, false);
        set.n_watched.fetch_add(1, Ordering::AcqRel);
        self.begin_anew(number);
        self.wake_all(set);
        Ok(())
    }

    /// Forgets a deleted member whose stream the kernel alone serves by now. Returns whether it
    /// did.
    fn forget_if_useless(&mut self, set: &EventSet, number: u32) -> bool {
        let Some(member) = self.members.get(number).filter(|member| member.is_deleted) else {
            return false;
        };
        let is_useless = !set.may_watch()
            || stream_of(member.fd).is_none_or(|handle| handle.stream().is_plain());
        if is_useless {
            self.remove(set, number);
        }
        is_useless
    }

    /// Forgets a member, which the kernel no longer watches for the program either.
    pub(super) fn remove(&mut self, set: &EventSet, number: u32) {
        let Some(member) = self.members.get(number) else { return };
        let fd = member.fd;
        watched::forget(fd, watch_id(set.number, number));
        let handle = stream_of(fd);
        if let Some(StreamRef::Accelerated(stream)) = handle.as_ref().map(Handle::stream) {
            self.unwatch(set, number, Some(stream));
            if !self.is_inherited {
                stream.end_watch(watch_id(set.number, number));
            }
        } else {
            self.unwatch(set, number, None);
        }
        self.members.remove(number);
    }
}
