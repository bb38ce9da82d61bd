//! `pthread_cancel` of threads that sleep in the core instead of libc.
//!
//! A thread that waits in the core makes raw system calls, which libc does not know: libc would not
//! wake it, and unwinding through the core is not possible. So cancellation is disabled inside
//! (`cancel_state.rs`); `pthread_cancel` always sends libc's own cancellation signal, which
//! `signal` treats there as a handler that ends the call with `EINTR`; and [`without_cancel`],
//! outside again, is the cancellation point.

use crate::{errno, guard, next, signal, tcp_only};
use libc::{c_int, c_void, clockid_t, pthread_t};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any thread has been cancelled, or could be between any two instructions.
static USED: AtomicBool = AtomicBool::new(false);

/// Whether a hook has to do what cancellation asks for. Without it, no thread is unwound before it
/// calls a cancellation point of libc.
#[inline]
pub(crate) fn is_in_use() -> bool {
    USED.load(Ordering::Relaxed)
}

/// As `pthread_setcanceltype(3)`.
///
/// # Safety
/// As `pthread_setcanceltype(3)`: null, or room for the old type.
pub(crate) unsafe fn set_type(kind: c_int, old: *mut c_int) -> c_int {
    const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
    if kind == PTHREAD_CANCEL_ASYNCHRONOUS {
        USED.store(true, Ordering::SeqCst);
        let _errno = errno::Kept::now();
        static IS_WRAPPED: AtomicBool = AtomicBool::new(false);
        if !tcp_only::is_on() && !IS_WRAPPED.swap(true, Ordering::SeqCst) {
            hold(wrap_handler);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next::pthread_setcanceltype(kind, old) }
}

/// Has libc install the handler of its cancellation signal, which it does when a process first
/// cancels a thread, and wraps it.
///
/// COMPAT: libc sends the signal before it could be wrapped then. The handler of glibc 2.36 ends a
/// thread of the asynchronous type although it has disabled cancellation since, as calls in the
/// core do.
fn wrap_handler() {
    extern "C" fn wait_until(is_over: *mut c_void) -> *mut c_void {
        // SAFETY: the variable below, which lives until this thread is joined.
        let is_over: &AtomicBool = unsafe { &*is_over.cast() };
        while !is_over.load(Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        ptr::null_mut()
    }
    let is_over = AtomicBool::new(false);
    let mut thread = MaybeUninit::<pthread_t>::uninit();
    let (at, argument) = (thread.as_mut_ptr(), ptr::from_ref(&is_over).cast_mut().cast());
    // SAFETY: room for the number, the usual attributes, and the argument that the function takes.
    if unsafe { libc::pthread_create(at, ptr::null(), wait_until, argument) } == 0 {
        // SAFETY: filled in by a call that has succeeded.
        let thread = unsafe { thread.assume_init() };
        // For a thread that has ended libc would install nothing.
        // SAFETY: a thread that is not joined yet. It has no cancellation point.
        unsafe { next::pthread_cancel(thread) };
        is_over.store(true, Ordering::Release);
        // SAFETY: as above, and joined once.
        unsafe { libc::pthread_join(thread, ptr::null_mut()) };
        signal::wrap_cancellation();
    }
}

unsafe extern "C-unwind" {
    /// Ends the thread, by unwinding, if it was cancelled and allows cancellation.
    fn pthread_testcancel();
}

/// As `pthread_cancel(3)`.
///
/// # Safety
/// As `pthread_cancel(3)`: a thread that has not ended, or can still be joined.
pub(crate) unsafe fn cancel_thread(thread: pthread_t) -> c_int {
    USED.store(true, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    let result = unsafe { next::pthread_cancel(thread) };
    if result == 0 {
        let _errno = errno::Kept::now();
        let mut clock: clockid_t = 0;
        signal::wrap_cancellation();
        // SAFETY: as above, and a live clock id.
        if unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) } == 0 {
            signal::send_cancellation(thread_of(clock));
        }
    }
    result
}

/// A cancellation point, as the libc function that the caller stands for is one, for a frame whose
/// stack is at `here`.
#[inline]
fn test(here: usize) {
    if USED.load(Ordering::Relaxed) && !guard::is_in_core() {
        // In this order: a cancellation that comes after this ends the call that follows, and one
        // that came before is acted on here.
        guard::forget_cancellation(here);
        // SAFETY: no precondition; unwinds, which everything above allows.
        unsafe { pthread_testcancel() };
    }
}

/// Makes a call during which this thread cannot be cancelled, because cancellation unwinds, and
/// frames of Rust can be unwound at some of their calls only. The frame that calls this must have
/// nothing to drop. It is a cancellation point itself, like the libc functions that the hooks
/// replace.
#[inline(always)]
pub(crate) fn without_cancel<R: HookResult>(mut call: impl FnMut() -> R) -> R {
    let here = 0u8;
    let here = (&raw const here).addr();
    loop {
        test(here);
        if let Some(result) = held(here, &mut call) {
            return result;
        }
    }
}

/// As [`without_cancel`], for a hook that replaces no cancellation point: a thread that is
/// cancelled goes on, up to the next one.
#[inline(always)]
pub(crate) fn through_cancel<R: HookResult>(mut call: impl FnMut() -> R) -> R {
    let here = 0u8;
    let here = (&raw const here).addr();
    loop {
        if is_in_use() && !guard::is_in_core() {
            guard::forget_cancellation(here);
        }
        if let Some(result) = held(here, &mut call) {
            return result;
        }
    }
}

/// Makes a call during which this thread, whose frame is at `here`, cannot be cancelled. `None` if
/// a cancellation has interrupted it and this thread goes on.
#[inline(always)]
fn held<R: HookResult>(here: usize, call: &mut impl FnMut() -> R) -> Option<R> {
    let is_outermost = guard::hold_cancellation(here);
    let result = outlined(call);
    // From here on the thread may be unwound. If it is not, although it was cancelled, it does not
    // allow cancellation, and must not notice.
    let was_cancelled = is_outermost && end_hold();
    (!was_cancelled || !result.is_interrupted()).then_some(result)
}

/// Runs `call`, during which this thread cannot be cancelled, as in [`without_cancel`]. It is no
/// cancellation point.
#[cold]
pub(crate) fn hold(call: impl FnOnce()) {
    let here = 0u8;
    let is_outermost = guard::hold_cancellation((&raw const here).addr());
    call();
    if is_outermost {
        end_hold();
    }
}

/// Ends the outermost hold. Returns whether the thread was cancelled meanwhile, if it goes on. It
/// may be unwound here.
#[inline(always)]
fn end_hold() -> bool {
    let (cancel_state, is_cancelled) = guard::end_hold();
    if is_in_use() {
        cancel_state.restore_of_any_type();
    } else {
        cancel_state.restore();
    }
    if is_cancelled {
        signal::cancel_self();
    }
    is_cancelled
}

/// A result of a hook, by which [`without_cancel`] knows interrupted calls.
pub(crate) trait HookResult: Copy {
    /// Whether the call was interrupted before it did anything.
    fn is_interrupted(self) -> bool;
}

impl<T: Copy + PartialEq + From<i8>> HookResult for Option<T> {
    fn is_interrupted(self) -> bool {
        self == Some(T::from(-1)) && errno::read() == libc::EINTR
    }
}

/// Keeps the frame of the call apart from that of [`without_cancel`].
#[inline(never)]
#[unsafe(link_section = "rsock_hooks")]
fn outlined<R>(call: &mut impl FnMut() -> R) -> R {
    call()
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
