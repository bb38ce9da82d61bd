//! The border between the program and the core: what must hold when a hook calls the core, and
//! again when the call returns.
//!
//! A call that the core makes into libc through the standard library (closing a descriptor of its
//! own, say) comes to a hook again and must pass straight through: [`is_in_core`]. A signal handler
//! that interrupts the core is the program again, so `signal` suspends the mark around it by
//! [`OutsideCore`]. A handler that leaves by `longjmp` never restores the mark, which is right too:
//! the frames that it described are gone.

use crate::cancel_state::SavedCancelState;
use crate::errno;
use libc::c_int;
use rsock_core::interrupt;
use rsock_verbs::mutex::try_lock;
use rsock_verbs::per_thread::ZeroInThread;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

rsock_verbs::per_thread! {
    /// Of the calling thread; usable at any moment of its life.
    STATE: State, "guard"
}

struct State {
    depth: Cell<u32>,
    /// The stack address at which the outermost [`hold_cancellation`] began; 0 outside.
    held_at: Cell<usize>,
    /// The cancellation state to restore when it ends.
    cancel_state: Cell<SavedCancelState>,
}

// SAFETY: numbers, and a state of cancellation, which is a number; no drop.
unsafe impl ZeroInThread for State {}

/// Whether this thread is inside a call of a hook to the core.
#[inline]
pub(crate) fn is_in_core() -> bool {
    STATE.with(|s| s.depth.get() != 0)
}

/// Disables cancellation of this thread until [`end_hold`], for a frame whose stack is at `here`.
/// Returns whether the frame is the outermost one that does, and so has to call [`end_hold`].
#[inline(always)]
pub(crate) fn hold_cancellation(here: usize) -> bool {
    STATE.with(|s| {
        let held_at = s.held_at.get();
        if held_at >= here {
            return false;
        }
        // First: libc drops a cancellation that comes while it is disabled and not held.
        s.held_at.set(here);
        // An older mark on a lower address is of a frame that a longjmp has left; the state that
        // the program had set before that frame is still known.
        let cancel_state = SavedCancelState::disable();
        if held_at == 0 {
            s.cancel_state.set(cancel_state);
        }
        true
    })
}

/// Ends [`hold_cancellation`]. Returns the cancellation state to restore, and whether a
/// cancellation has come meanwhile.
#[inline(always)]
pub(crate) fn end_hold() -> (SavedCancelState, bool) {
    STATE.with(|s| {
        s.held_at.set(0);
        (s.cancel_state.get(), interrupt::take_cancellation())
    })
}

/// Forgets a cancellation that has come, for a frame whose stack is at `here` and that is about to
/// be a cancellation point. Does nothing inside of [`hold_cancellation`].
pub(crate) fn forget_cancellation(here: usize) {
    if STATE.with(|s| s.held_at.get()) < here {
        let _ = interrupt::take_cancellation();
    }
}

/// Whether a cancellation that has interrupted this thread, with its stack at `stack`, must wait
/// for [`end_hold`].
pub(crate) fn defers_cancellation(stack: usize) -> bool {
    STATE.with(|s| {
        let held_at = s.held_at.get();
        // A stack far away is another one: that of a handler, above a call that holds
        // cancellation.
        const FAR: usize = 64 << 20;
        held_at != 0 && (stack <= held_at || stack - held_at > FAR)
    })
}

/// The `errno` after a panic of the core: the stream is in an unknown state, and none of its bytes
/// can be relied on.
pub(crate) const AFTER_PANIC: c_int = libc::ECONNRESET;

/// Calls the core: marks the thread as inside, stops panics, and restores `errno`.
///
/// # Errors
/// The `errno` to report.
#[inline]
pub(crate) fn call_core<R>(f: impl FnOnce() -> io::Result<R>) -> Result<R, c_int> {
    let mut result = Err(io::Error::from_raw_os_error(AFTER_PANIC));
    run_in_core(|| result = f());
    result.map_err(|error| errno::of(&error))
}

/// As [`call_core`], for an `f` that stores its result itself, which a panic leaves as it was.
///
/// PERF: a result of `f`, or two neighbouring words that it captures, would be copied by a load
/// that is wider than the stores just before it, and such a load waits until these are in the
/// cache. A send and a receive took 320 ns with such copies, and 284 without (one thread, medians
/// of 40 runs by turns).
#[inline(always)]
pub(crate) fn run_in_core(f: impl FnOnce()) {
    let kept = errno::Kept::now();
    STATE.with(|s| s.depth.set(s.depth.get() + 1));
    // The caller finds no result then.
    let _panic = catch_unwind(AssertUnwindSafe(f));
    // Not a plain decrement: a handler that interrupted this call may have left by longjmp to a
    // frame above a second `call_core`, whose count is gone with it.
    STATE.with(|s| s.depth.set(s.depth.get().saturating_sub(1)));
    drop(kept);
}

/// Locks `mutex`, poisoned or not, and leaves `errno` alone also where another thread holds it:
/// the system call of a thread that waits for a lock may set it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    try_lock(mutex).unwrap_or_else(|| {
        let _errno = errno::Kept::now();
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    })
}

/// Suspends the mark while a signal handler of the program runs on top of the core.
#[must_use]
pub(crate) struct OutsideCore {
    depth: u32,
}

impl OutsideCore {
    pub(crate) fn begin() -> Self {
        Self { depth: STATE.with(|s| s.depth.replace(0)) }
    }
}

impl Drop for OutsideCore {
    fn drop(&mut self) {
        STATE.with(|s| s.depth.set(self.depth));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_errno_survives_success() {
        errno::set(libc::ENOENT);
        let n = call_core(|| {
            assert!(is_in_core());
            errno::set(libc::EAGAIN);
            Ok(5)
        });
        assert_eq!((n, errno::read(), is_in_core()), (Ok(5), libc::ENOENT, false));
        let panicked: Result<(), c_int> = call_core(|| panic!("expected by this test"));
        assert_eq!((panicked, is_in_core()), (Err(libc::ECONNRESET), false));
    }

    #[test]
    fn threads_that_want_one_lock_keep_their_errno() {
        let mutex = Mutex::new(0u32);
        let count = || {
            errno::set(libc::ENOENT);
            for _ in 0..200_000 {
                let mut n = lock(&mutex);
                *n = n.wrapping_add(1);
                // The other thread finds the lock taken, also where the two share one CPU.
                if n.is_multiple_of(64) {
                    std::thread::yield_now();
                }
            }
            errno::read()
        };
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(count);
            [count(), other.join().expect("a thread")]
        });
        assert_eq!(both, [libc::ENOENT; 2]);
    }

    #[test]
    fn a_signal_handler_is_outside_the_core() {
        let seen = call_core(|| {
            let outside = OutsideCore::begin();
            let seen = is_in_core();
            drop(outside);
            Ok((seen, is_in_core()))
        });
        assert_eq!(seen, Ok((false, true)));
    }
}
