//! Members whose descriptor the program closes, shuts down or replaces.

use super::members::watch_id;
use super::mistake::is_mistaken;
use super::{EventSet, State, kernel_watch, sets_of, stream_of};
use crate::epoll_interest::PROXIED;
use crate::raw_epoll;
use crate::slot::Handle;
use crate::watched::{self, Membership, watch_of};
use crate::{fdtable, guard, vfork};
use rsock_core::accelerate::FallbackReason;
use rsock_core::interrupt::Section;
use rustix::fd::RawFd;

/// The program is about to close `fd`.
pub(crate) fn note_closing(fd: RawFd, is_vfork_child: impl Fn() -> bool) {
    let membership = watched::membership(fd);
    let is_known = membership != Membership::None || super::find(fd).is_some();
    if !is_known || guard::is_in_core() || is_vfork_child() {
        return;
    }
    super::forget(fd);
    if is_mistaken!(StaleNumber) {
        return;
    }
    let _section = Section::enter();
    // After an `epoll_ctl` of another thread that is under way.
    if let Some((change, ..)) = watched::take_kernel_watch(fd) {
        // A connection that ends in the kernel's set has no member.
        return change.end_unwatched();
    }
    sets_of(fd).into_iter().for_each(|set| end_of_number_in(set, fd));
    watched::forget_all(fd);
}

/// The program is about to close `fd`, which may name members of `set`.
fn end_of_number_in(set: &EventSet, fd: RawFd) {
    let mut state = set.lock();
    let _ = guard::call_core(|| {
        if state.members.have_shared_numbers {
            for number in state.members.all_of(fd) {
                state.end_of_number(set, number, fd);
            }
        } else if let Some(number) = state.members.number_of(fd) {
            state.end_of_number(set, number, fd);
        }
        Ok(())
    });
}

impl State {
    /// The program is about to close `fd`, which names a member. The kernel goes on to watch the
    /// file as long as it has another descriptor.
    fn end_of_number(&mut self, set: &EventSet, number: u32, fd: RawFd) {
        if let Some(set_of_member) = self.members.get(number).and_then(|member| member.set) {
            // The kernel goes on to watch what it watches.
            let is_kernels = self.members.get(number).is_some_and(|member| member.ring.is_none());
            if is_kernels
                || self.is_inherited
                || set_of_member.other_number().is_none_or(|to| !self.rename(set, number, fd, to))
            {
                self.remove(set, number);
            }
            return;
        }
        let is_on_ring =
            self.members.get(number).is_some_and(|m| m.ring.is_some() && !m.is_deleted);
        let Some(handle) = stream_of(fd).filter(Handle::has_other_descriptors) else {
            return self.remove(set, number);
        };
        if !is_on_ring || self.is_inherited {
            // The kernel goes on to watch it, and sees what comes on TCP alone.
            handle.pin(FallbackReason::Epoll);
            return self.remove(set, number);
        }
        if fdtable::other_number(fd).is_some_and(|to| self.rename(set, number, fd, to)) {
            return;
        }
        // Another process has the only other descriptor.
        let Some((events, data)) = self.members.get(number).map(|m| (m.events, m.data)) else {
            return;
        };
        handle.pin(FallbackReason::Epoll);
        self.leave_ring(set, number, &handle);
        if let Ok(Some(proxy)) = handle.stream().epoll_proxy(handle.fd()) {
            self.note_proxy(set, fd, Some(data));
            let _ = raw_epoll::add(self.fd, proxy, events & PROXIED, data);
        }
        self.remove(set, number);
    }

    /// Has a member go on by another number of its file. Returns whether it does.
    fn rename(&mut self, set: &EventSet, number: u32, from: RawFd, to: RawFd) -> bool {
        let Some(own_fds) = self.own_fds.clone() else { return false };
        // What the kernel has told of so far is not lost.
        own_fds.take_socket_events(|event| self.note_socket_event(event));
        own_fds.unwatch_socket(from);
        self.members.rename(number, to);
        self.members.have_shared_numbers = true;
        watched::note(to, watch_id(set.number, number));
        self.watch_socket(&own_fds, number).is_ok()
    }
}

/// The program has shut down a direction of `fd`: that is news for every watch.
pub(crate) fn note_changed(fd: RawFd) {
    if guard::is_in_core() || vfork::is_child() {
        return;
    }
    let _section = Section::enter();
    note_changed_number(fd);
    if stream_of(fd).is_some_and(|handle| handle.has_other_descriptors()) {
        fdtable::other_numbers(fd).for_each(note_changed_number);
    }
}

fn note_changed_number(fd: RawFd) {
    if watch_of(fd).is_none() {
        return kernel_watch::note_changed(fd);
    }
    for set in sets_of(fd) {
        let mut state = set.lock();
        state.kernel_asked = None;
        for number in state.members.all_of(fd) {
            if let Some(ring) = state.members.get_mut(number).and_then(|m| m.ring.as_mut()) {
                ring.has_changed = true;
                state.note_candidate(number);
            }
        }
    }
}

/// A proxy has taken the place of a stream's descriptors, of which `fd` is one.
pub(crate) fn note_replaced(handle: &Handle, fd: RawFd) {
    let _section = Section::enter();
    for set in sets_of(fd) {
        let mut state = set.lock();
        let _ = guard::call_core(|| {
            for number in state.members.all_of(fd) {
                state.leave_ring(set, number, handle);
                state.remove(set, number);
            }
            Ok(())
        });
    }
    watched::forget_all(fd);
}
