//! libc's cancellation signal, whose handler is wrapped like any other.

use super::records::{is_handler, lock, record_of, unlock};
use super::wrapper::wrapper_address;
use super::{KERNEL_SIGSET, KernelAction, SIGCANCEL, deferral};
use crate::next;
use libc::{c_int, c_long, c_ulong, c_void};
use rsock_core::interrupt::Section;
use rsock_verbs::raw;
use std::mem;
use std::ptr;
use std::sync::atomic::Ordering;

/// Has the wrapper call libc's handler of its cancellation signal. To be called when libc has
/// installed the handler; idempotent.
pub(crate) fn wrap_cancellation() {
    let Some(record) = record_of(SIGCANCEL) else { return };
    let section = Section::enter();
    lock();
    let mut action = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    // libc's `sigaction` refuses this number, even from within libc.
    // SAFETY: a live kernel action to fill.
    let known = unsafe { kernel_action(ptr::null(), &raw mut action) };
    if known && is_handler(action.handler) && action.handler != wrapper_address() {
        deferral::defer_in_sections();
        record.handler.store(action.handler, Ordering::Relaxed);
        record.flags.store(libc::SA_RESTART, Ordering::Relaxed);
        action.handler = wrapper_address();
        // The signal now also comes to threads that are not to be cancelled: they must not notice.
        action.flags |= c_ulong::from(libc::SA_RESTART.cast_unsigned());
        // SAFETY: a live kernel action.
        unsafe { kernel_action(&raw const action, ptr::null_mut()) };
    }
    unlock();
    drop(section);
}

/// Sends libc's cancellation signal to a thread of this process.
pub(crate) fn send_cancellation(tid: c_int) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: integers only.
    let _ = unsafe { raw::syscall!(libc::SYS_tgkill, pid, tid, SIGCANCEL) };
}

/// Repeats, for the calling thread, a cancellation signal that was deferred. The thread may end
/// here, by unwinding.
pub(crate) fn cancel_self() {
    let pid = c_long::from(rustix::process::getpid().as_raw_nonzero().get());
    let tid = c_long::from(rustix::thread::gettid().as_raw_nonzero().get());
    // SAFETY: libc's function of this signature. Its handler may unwind from the call, which an
    // inline system call does not allow.
    let syscall = unsafe {
        mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(c_long, ...) -> c_long>(
            next::address::syscall(),
        )
    };
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_tgkill, pid, tid, c_long::from(SIGCANCEL)) };
}

/// `rt_sigaction(2)` on the cancellation signal.
///
/// # Safety
/// Null or live actions.
unsafe fn kernel_action(new: *const KernelAction, old: *mut KernelAction) -> bool {
    // SAFETY: the caller's promise; the size is that of the mask.
    unsafe { raw::syscall!(libc::SYS_rt_sigaction, SIGCANCEL, new, old, KERNEL_SIGSET) }.is_ok()
}
