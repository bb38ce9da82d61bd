//! `pthread_cancel` of threads that sleep in the core instead of libc.
//!
//! A thread that waits in the core makes raw system calls, which libc does not know: libc would not
//! wake it, and unwinding through the core is not possible. So cancellation is disabled inside
//! ([`SavedCancelState`]); `pthread_cancel` always sends libc's own cancellation signal, which
//! `signal` treats there as a handler that ends the call with `EINTR`; and
//! [`guard::without_cancel`], outside again, is the cancellation point.

use crate::{errno, guard, signal};
use libc::{c_char, c_int, clockid_t, pthread_t};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any thread has been cancelled.
static USED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    /// Ends the thread, by unwinding, if it was cancelled and allows cancellation.
    fn pthread_testcancel();
    /// Allows or forbids cancellation; allowing it may end the thread at once.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C" {
    /// Not zero while the process has no other thread that could cancel this one.
    static __libc_single_threaded: c_char;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// The cancellation state before it was disabled; `NONE` if it was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedCancelState(c_int);

impl SavedCancelState {
    pub(crate) const NONE: Self = Self(-1);

    /// Disables cancellation of this thread.
    #[inline]
    pub(crate) fn disable() -> Self {
        // SAFETY: libc's own variable, of this type. Only this thread could change it now from
        // "single" to "several", by what it does after this.
        if unsafe { (&raw const __libc_single_threaded).read_volatile() } != 0 {
            return Self::NONE;
        }
        let mut old = 0;
        // SAFETY: a valid state and a live variable.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old) };
        Self(old)
    }

    /// Restores the previous state.
    #[inline]
    pub(crate) fn restore(self) {
        if self != Self::NONE {
            // SAFETY: a valid state, and null is allowed; unwinds, which everything above allows.
            unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
        }
    }
}

/// As `pthread_cancel(3)`.
///
/// # Safety
/// As `pthread_cancel(3)`: a thread that has not ended, or can still be joined.
pub(crate) unsafe fn cancel_thread(thread: pthread_t) -> c_int {
    USED.store(true, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    let result = unsafe { crate::next::pthread_cancel(thread) };
    if result == 0 {
        let saved = errno::read();
        let mut clock: clockid_t = 0;
        signal::wrap_cancellation();
        // SAFETY: as above, and a live clock id.
        if unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) } == 0 {
            signal::send_cancellation(thread_of(clock));
        }
        errno::set(saved);
    }
    result
}

/// A cancellation point, as the libc function that the caller stands for is one.
#[inline]
pub(crate) fn test() {
    if USED.load(Ordering::Relaxed) && !guard::is_in_core() {
        // SAFETY: no precondition; unwinds, which everything above allows.
        unsafe { pthread_testcancel() };
    }
}

/// The thread of a CPU-time clock, by the kernel's encoding of such clocks.
fn thread_of(clock: clockid_t) -> c_int {
    !(clock >> 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_clock_names_the_thread() {
        let mut clock = 0;
        // SAFETY: no precondition.
        let me = unsafe { libc::pthread_self() };
        // SAFETY: the calling thread lives.
        let result = unsafe { libc::pthread_getcpuclockid(me, &raw mut clock) };
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!((result, thread_of(clock)), (0, tid));
    }
}
