//! The border between the program and the core: what must hold when a hook calls down, and again
//! when it returns.
//!
//! A call that the core makes into libc by way of the standard library (closing a descriptor of
//! its own, say) meets our hooks again and must pass straight through: [`is_inside`]. A signal
//! handler that interrupts the core is the program again, so `signal` lifts the guard around it
//! with [`Lifted`]. One that leaves by `longjmp` never comes back to restore it, which is right
//! too: the frames that were inside are gone.

use crate::{errno, signal};
use libc::c_int;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    // `const` and without a destructor: usable at any moment of a thread's life, never allocates.
    static STATE: State =
        const { State { depth: Cell::new(0), cancelled: Cell::new(Cancelled::No) } };
}

struct State {
    depth: Cell<u32>,
    cancelled: Cell<Cancelled>,
}

/// What a cancellation of this thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancelled {
    /// There is none.
    No,
    /// It was put off until the thread is outside.
    PutOff,
    /// It has come; the call that it interrupted has yet to notice.
    Delivered,
}

/// Whether this thread is running code of ours that was called from a hook.
#[inline]
pub(crate) fn is_inside() -> bool {
    STATE.with(|s| s.depth.get() != 0)
}

/// Says that the cancellation of this thread is put off until it is outside.
pub(crate) fn put_off_cancellation() {
    STATE.with(|s| s.cancelled.set(Cancelled::PutOff));
}

/// Whether a cancellation interrupted the last call; asked once.
pub(crate) fn take_cancelled() -> bool {
    STATE.with(|s| s.cancelled.replace(Cancelled::No)) == Cancelled::Delivered
}

/// Calls down into the core: marks the thread as inside, stops panics, and puts `errno` back.
///
/// # Errors
/// The `errno` to report.
#[inline]
pub(crate) fn enter<R>(f: impl FnOnce() -> io::Result<R>) -> Result<R, c_int> {
    let saved = errno::read();
    STATE.with(|s| s.depth.set(s.depth.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(f));
    let is_cancelled = STATE.with(|s| {
        // Not a plain decrement: a handler that interrupted us may have left by longjmp to a frame
        // above a second `enter`, whose count is gone with it.
        s.depth.set(s.depth.get().saturating_sub(1));
        s.depth.get() == 0 && s.cancelled.get() == Cancelled::PutOff
    });
    if is_cancelled {
        deliver_cancellation();
    }
    errno::set(saved);
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(errno::of(&error)),
        // A bug of ours. The stream is in an unknown state, and no byte of it can be vouched for.
        Err(_) => Err(libc::ECONNRESET),
    }
}

/// Outside, so that the thread may be unwound from here.
#[cold]
fn deliver_cancellation() {
    STATE.with(|s| s.cancelled.set(Cancelled::Delivered));
    signal::deliver_cancellation();
}

/// The program's own code runs for a while on top of ours: a signal handler.
#[must_use]
pub(crate) struct Lifted {
    depth: u32,
}

impl Lifted {
    pub(crate) fn new() -> Self {
        Self { depth: STATE.with(|s| s.depth.replace(0)) }
    }
}

impl Drop for Lifted {
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
        let n = enter(|| {
            assert!(is_inside());
            errno::set(libc::EAGAIN);
            Ok(5)
        });
        assert_eq!((n, errno::read(), is_inside()), (Ok(5), libc::ENOENT, false));
        let panicked: Result<(), c_int> = enter(|| panic!("expected by this test"));
        assert_eq!((panicked, is_inside()), (Err(libc::ECONNRESET), false));
    }

    #[test]
    fn a_handler_on_top_is_outside() {
        let seen = enter(|| {
            let lifted = Lifted::new();
            let seen = is_inside();
            drop(lifted);
            Ok((seen, is_inside()))
        });
        assert_eq!(seen, Ok((false, true)));
    }
}
