//! `pthread_cancel` and calls that do not sleep in libc.
//!
//! A thread that waits in the core waits by raw system calls, of which libc knows nothing: it
//! would neither wake it, nor is unwinding through the core an option. So `pthread_cancel` always
//! sends libc's own cancellation signal; `signal` puts it off while the thread is inside, as a
//! handler that ends the call with `EINTR`; and [`guard::hold`], outside again, delivers it. Until
//! the first cancellation all this costs one load per call.

use crate::{errno, guard, signal};
use libc::{c_int, clockid_t, pthread_t};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any thread has been cancelled.
static USED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    /// Ends the thread, by unwinding, if it was cancelled and allows it.
    fn pthread_testcancel();
}

/// As `pthread_cancel(3)`.
///
/// # Safety
/// As `pthread_cancel(3)`: a thread that has not ended, or can still be joined.
pub(crate) unsafe fn request(thread: pthread_t) -> c_int {
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
pub(crate) fn point() {
    if USED.load(Ordering::Relaxed) && !guard::is_inside() {
        // SAFETY: no precondition; unwinds, which everything above allows.
        unsafe { pthread_testcancel() };
    }
}

/// The thread that a thread's CPU-time clock belongs to: the kernel's encoding of such clocks.
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
