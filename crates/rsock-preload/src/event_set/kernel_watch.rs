//! Connections in a set that the kernel alone serves: they have no member until the descriptor
//! table adopts them.
//!
//! Most connections that end soon never get that far, so they cost no lock and no memory: the call
//! of the program goes to the kernel as it is, and what it asked for is noted beside the number
//! ([`watched`]). A set is named with its generation, because the set that serves a number may be
//! closed, and used for another set of the program, while the number is open.

use super::members::{Member, watch_id};
use super::{BY_NUMBER, EventSet, State, stream_of};
use crate::watched::{self, Change, KernelWatch};
use crate::{fdtable, guard, tcp_only};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::{FallbackReason, StreamRef};
use rsock_core::interrupt::Section;
use std::sync::atomic::Ordering;

/// Makes an `epoll_ctl` of the program, by `call`, on a connection that has carried hardly
/// anything. `None` if the descriptor is no such connection, or has a member; then `call` was not
/// called.
///
/// # Safety
/// After an `epoll_ctl` of this kind that succeeds, `event` can be read.
#[inline]
pub(crate) unsafe fn control_by_kernel(
    set: &'static EventSet,
    op: c_int,
    fd: c_int,
    event: *const epoll_event,
    call: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if !fdtable::is_candidate(fd) || guard::is_in_core() {
        return None;
    }
    let watch = set.kernel_watch();
    // A handler that uses the descriptor would wait for the call that it interrupts.
    let section = Section::enter();
    let change = match op {
        libc::EPOLL_CTL_ADD if set.may_watch() && !tcp_only::is_on() => {
            watched::begin_change(fd, None)
        }
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL => watched::begin_change(fd, Some(watch)),
        _ => None,
    }?;
    let result = call();
    match op {
        _ if result != 0 => change.undo(),
        libc::EPOLL_CTL_DEL => change.end_unwatched(),
        _ => {
            set.note_kernel_change();
            // SAFETY: the kernel has read it in the call before this one, as the caller promises.
            change.end_watched(watch, unsafe { event.read_unaligned() });
        }
    }
    drop(section);
    if op == libc::EPOLL_CTL_ADD && result == 0 {
        follow_adoption(set, fd);
    }
    Some(result)
}

/// Another thread may have adopted `fd`, which the program has added to `set`, without having seen
/// that: holds the stream on TCP, or begins to watch it on the ring. The caller holds no lock.
#[inline]
pub(super) fn follow_adoption(set: &'static EventSet, fd: c_int) {
    if !fdtable::is_candidate(fd) && fdtable::is_connection(fd) {
        hold_adopted(set, fd);
    }
}

#[cold]
fn hold_adopted(set: &'static EventSet, fd: c_int) {
    let _section = Section::enter();
    fdtable::await_adoption(fd);
    make_member(fd);
    let _ = guard::call_core(|| {
        let mut state = set.lock();
        if let Some(number) = state.members.number_of(fd) {
            state.hold_adopted(set, number);
        }
        Ok(())
    });
}

/// The program has shut down a direction of `fd`: the next wait of its set asks the kernel.
pub(super) fn note_changed(fd: c_int) {
    if let Some(set) = watched::kernel_watch_of(fd).and_then(set_of) {
        set.note_kernel_change();
    }
}

/// Makes a member of `fd` if the kernel alone watches it so far: the library is to know of its
/// stream, or of another watch. The caller holds no lock of a set.
pub(super) fn make_member(fd: c_int) {
    let Some((change, watch, event)) = watched::take_kernel_watch(fd) else { return };
    let Some(set) = set_of(watch) else { return change.end_unwatched() };
    let _ = guard::call_core(|| {
        set.lock().make_member(set, fd, event, (change, watch));
        Ok(())
    });
}

/// As [`make_member`], of all such connections in `set`.
pub(super) fn make_members(set: &EventSet) {
    watched::watched_by_kernel(set.kernel_watch()).for_each(make_member);
}

/// In a forked child: where a thread of the parent was changing a watch, the child does not know
/// what the kernel watches, so the connection stays on TCP.
pub(super) fn after_fork_in_child() {
    watched::forget_changes(|fd| fdtable::pin(fd, FallbackReason::Fork));
}

fn set_of(watch: KernelWatch) -> Option<&'static EventSet> {
    BY_NUMBER.get(usize::try_from(watch.0 >> GENERATION_BITS).ok()?)?.get()
}

const GENERATION_BITS: u32 = 32;

impl EventSet {
    fn kernel_watch(&self) -> KernelWatch {
        let generation = self.generation.load(Ordering::Relaxed);
        KernelWatch(u64::from(self.number) << GENERATION_BITS | u64::from(generation))
    }
}

impl State {
    fn make_member(
        &mut self,
        set: &EventSet,
        fd: c_int,
        event: epoll_event,
        (change, watch): (Change, KernelWatch),
    ) {
        if set.kernel_watch() != watch {
            // The program has closed the set.
            return change.end_unwatched();
        }
        let number = self.members.insert(Member::new(fd, event, None));
        if !change.end_as_member(watch_id(set.number, number)) {
            self.members.remove(number);
        }
    }

    /// The stream of a member may have been adopted before that was noted: holds it on TCP, or
    /// begins to watch it on the ring.
    pub(super) fn hold_adopted(&mut self, set: &'static EventSet, number: u32) {
        // A stream that the library watches on the ring may have left TCP.
        let member = self.members.get(number).filter(|member| member.ring.is_none());
        let Some(handle) = member.and_then(|member| stream_of(member.fd)) else { return };
        if let StreamRef::Accelerated(stream) = handle.stream()
            && stream.hold_on_tcp(watch_id(set.number, number))
            && let Some(now) = self.before_ring(set, number)
        {
            self.enter_ring_or_look(set, number, &now);
        }
    }
}
