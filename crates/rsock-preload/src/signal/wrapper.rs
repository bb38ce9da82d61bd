//! The wrapper: the handler that the kernel calls in place of the program's.

use super::records::{is_handler, record_of, reset};
use super::{FAULTS, SIGCANCEL, context, deferral, queue_to_self};
use crate::guard;
use libc::{c_int, c_void, siginfo_t};
use rsock_core::interrupt::{self, InHandler};
use rsock_verbs::fault;
use std::mem;
use std::sync::atomic::Ordering;

/// A handler as the kernel calls it. A handler that takes only the number ignores the rest.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

pub(super) fn wrapper_address() -> usize {
    let wrapper: Handler = wrapper;
    wrapper as usize
}

/// The handler that the kernel calls.
///
/// # Safety
/// Called by the kernel to deliver a signal, with that signal's information and context.
unsafe extern "C-unwind" fn wrapper(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(record) = record_of(signal) else { return };
    if signal == SIGCANCEL {
        // Whether or not a call is in progress: one may be beyond its cancellation point, and about
        // to wait.
        interrupt::note_cancellation();
        // SAFETY: the kernel's own context.
        if guard::defers_cancellation(unsafe { context::stack(context) }) {
            // libc's handler may unwind, which must not happen here: the call in progress ends
            // first.
            // SAFETY: the kernel's own context.
            unsafe { context::interrupt_transfer(context) };
            return;
        }
    }
    // SAFETY: the kernel passes valid information, since the action asks for it.
    let is_synchronous = is_synchronous(signal, unsafe { (*info).si_code });
    // SAFETY: the kernel's own context.
    if is_synchronous && FAULTS.contains(&signal) && unsafe { fault::recover(context) } {
        return;
    }
    if interrupt::is_inside() && !is_synchronous {
        // SAFETY: the kernel's own arguments.
        unsafe { deferral::defer(signal, info, context) };
        interrupt::note_deferred();
        return;
    }
    let handler = record.handler.load(Ordering::Relaxed);
    let flags = record.flags.load(Ordering::Relaxed);
    if !is_handler(handler) {
        if FAULTS.contains(&signal) && handler == libc::SIG_DFL {
            // After this handler the instruction faults again, or the queued signal arrives.
            reset(signal, flags);
            if !is_synchronous {
                queue_to_self(signal, info);
            }
        }
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        if FAULTS.contains(&signal) {
            record.handler.store(libc::SIG_DFL, Ordering::Relaxed);
        } else {
            reset(signal, flags);
        }
    }
    interrupt::note_handler(flags & libc::SA_RESTART != 0);
    // SAFETY: the program gave this address as the handler of a signal.
    let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
    let outside = guard::OutsideCore::begin();
    let in_handler = InHandler::begin();
    // SAFETY: called as the kernel would have called it.
    unsafe { handler(signal, info, context) };
    drop(in_handler);
    drop(outside);
}

/// Whether the interrupted instruction has caused the signal, and would only cause it again.
fn is_synchronous(signal: c_int, code: c_int) -> bool {
    let by_instruction = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    );
    /// The kernel has found broken memory of this process that no instruction has accessed.
    const BUS_MCEERR_AO: c_int = 5;
    // Codes above zero come from the kernel, others from `kill` and the like.
    by_instruction && code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO)
}
