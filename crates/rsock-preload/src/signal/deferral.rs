//! Defers signals that come during a section: they are queued again, blocked, until it ends.

use super::{KERNEL_SIGSET, bit, queue_to_self};
use crate::errno;
use libc::{c_int, c_void, siginfo_t};
use rsock_core::interrupt;
use rsock_verbs::raw;
use std::cell::Cell;
use std::ptr;

thread_local! {
    /// Deferred signals of this thread, as the kernel's set.
    static DEFERRED: Cell<u64> = const { Cell::new(0) };
}

/// Has [`deliver`] called at the end of each section. Idempotent.
pub(crate) fn defer_in_sections() {
    interrupt::on_leave(deliver);
}

/// Defers the signal: queues it again, blocked in the interrupted context.
///
/// # Safety
/// The arguments of a signal handler that the kernel has called.
pub(super) unsafe fn defer(signal: c_int, info: *const siginfo_t, context: *mut c_void) {
    let _errno = errno::Kept::now();
    let this = bit(signal);
    // With SA_NODEFER the signal is not blocked while its handler runs, and would come back at
    // once.
    change_mask(libc::SIG_BLOCK, this);
    queue_to_self(signal, info);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's context, whose mask it restores when the handler returns.
    let mask = unsafe { &raw mut (*context).uc_sigmask }.cast::<u64>();
    // SAFETY: the kernel's signal set is eight bytes; libc's is larger and begins with it.
    let blocked = unsafe { mask.read_unaligned() };
    // SAFETY: as above.
    unsafe { mask.write_unaligned(blocked | this) };
    DEFERRED.set(DEFERRED.get() | this);
}

/// The section has ended: unblocks the deferred signals.
fn deliver() {
    let due = DEFERRED.replace(0);
    if due != 0 {
        let _errno = errno::Kept::now();
        change_mask(libc::SIG_UNBLOCK, due);
    }
}

fn change_mask(how: c_int, set: u64) {
    // SAFETY: a live kernel signal set, and no room for the old one.
    let _ = unsafe {
        raw::syscall!(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            ptr::null_mut::<u64>(),
            KERNEL_SIGSET,
        )
    };
}
