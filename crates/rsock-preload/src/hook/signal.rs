//! Hooks of `sigaction`, and of the other functions of libc that change a signal action.

use super::alias;
use crate::signal::{SelfMask, change, interrupts, set_handler, set_interrupts};
use libc::{c_int, sighandler_t, sigset_t};
use std::mem::MaybeUninit;
use std::ptr;

/// What `sigset` takes and returns for a blocked signal (`SIG_HOLD`).
const SIG_HOLD: sighandler_t = 2;

/// As `sigaction(2)`.
///
/// # Safety
/// As `sigaction(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    unsafe { change(signal, new, old) }
}

/// As `signal(2)`, with BSD's meaning.
///
/// # Safety
/// As `signal(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn signal(
    signal: c_int,
    handler: sighandler_t,
) -> sighandler_t {
    let flags = if interrupts(signal) { 0 } else { libc::SA_RESTART };
    set_handler(signal, handler, flags, SelfMask::Blocked)
}

/// As `sysv_signal(3)`: the handler runs once and is interrupted by its own signal.
///
/// # Safety
/// As `signal(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sysv_signal(
    signal: c_int,
    handler: sighandler_t,
) -> sighandler_t {
    set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, SelfMask::Unchanged)
}

/// As `siginterrupt(3)`.
///
/// # Safety
/// None beyond those of the C function.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
    set_interrupts(signal, interrupt != 0)
}

/// As `sigset(3)`.
///
/// # Safety
/// As `signal(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sigset(
    signal: c_int,
    handler: sighandler_t,
) -> sighandler_t {
    let mut set = MaybeUninit::<sigset_t>::uninit();
    let mut was = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: room for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: a set made above.
    if unsafe { libc::sigaddset(set.as_mut_ptr(), signal) } != 0 {
        return libc::SIG_ERR;
    }
    let before = if handler == SIG_HOLD {
        // SAFETY: zeroes are a valid `sigaction`.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: null and a live action.
        if unsafe { change(signal, ptr::null(), &raw mut old) } != 0 {
            return libc::SIG_ERR;
        }
        // SAFETY: two live sets.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), was.as_mut_ptr()) };
        old.sa_sigaction
    } else {
        let before = set_handler(signal, handler, 0, SelfMask::Unchanged);
        if before == libc::SIG_ERR {
            return before;
        }
        // SAFETY: two live sets.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), was.as_mut_ptr()) };
        before
    };
    // SAFETY: zeroed, which is a set, and filled by the call.
    match unsafe { libc::sigismember(was.as_ptr(), signal) } {
        1 => SIG_HOLD,
        _ => before,
    }
}

alias! {
    __sigaction = sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction)
        -> c_int;
    bsd_signal = signal(number: c_int, handler: sighandler_t) -> sighandler_t;
    ssignal = signal(number: c_int, handler: sighandler_t) -> sighandler_t;
    __sysv_signal = sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t;
}
