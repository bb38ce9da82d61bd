//! The border between the program and the core: what must hold when a hook calls down, and again
//! when it returns.
//!
//! A call that the core makes into libc by way of the standard library (closing a descriptor of
//! its own, say) meets our hooks again and must pass straight through: [`is_inside`]. A signal
//! handler that interrupts the core is the program again, so `signal` lifts the guard around it
//! with [`Lifted`]. One that leaves by `longjmp` never comes back to restore it, which is right
//! too: the frames that were inside are gone.

use crate::errno;
use libc::c_int;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    // `const` and without a destructor: usable at any moment of a thread's life, never allocates.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is running code of ours that was called from a hook.
#[inline]
pub(crate) fn is_inside() -> bool {
    DEPTH.get() != 0
}

/// Calls down into the core: marks the thread as inside, stops panics, and puts `errno` back.
///
/// # Errors
/// The `errno` to report.
#[inline]
pub(crate) fn enter<R>(f: impl FnOnce() -> io::Result<R>) -> Result<R, c_int> {
    let saved = errno::read();
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(f));
    // Not a plain decrement: a handler that interrupted us may have left by longjmp to a frame
    // above a second `enter`, whose count is gone with it.
    DEPTH.set(DEPTH.get().saturating_sub(1));
    errno::set(saved);
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(errno::of(&error)),
        // A bug of ours. The stream is in an unknown state, and no byte of it can be vouched for.
        Err(_) => Err(libc::ECONNRESET),
    }
}

/// The program's own code runs for a while on top of ours: a signal handler.
#[must_use]
pub(crate) struct Lifted {
    depth: u32,
}

impl Lifted {
    pub(crate) fn new() -> Self {
        Self { depth: DEPTH.replace(0) }
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        DEPTH.set(self.depth);
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
