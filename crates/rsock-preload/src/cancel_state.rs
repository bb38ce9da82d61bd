//! Whether a thread can be cancelled, as libc keeps it.

use crate::next;
use libc::{c_char, c_int};
use std::ptr;

unsafe extern "C-unwind" {
    /// Allows or forbids cancellation; allowing it may end the thread at once.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C" {
    /// Not zero while the process has no other thread that could cancel this one.
    static __libc_single_threaded: c_char;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

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

    /// As [`Self::restore`], also of a thread that can be cancelled between any two instructions.
    ///
    /// COMPAT: the `pthread_setcancelstate` of glibc 2.36 ends such a thread without the result
    /// `PTHREAD_CANCELED`. Its `pthread_setcanceltype` sets that.
    pub(crate) fn restore_of_any_type(self) {
        if self == Self::NONE {
            return;
        }
        let mut kind = PTHREAD_CANCEL_DEFERRED;
        // SAFETY: a valid type and a live variable; nothing is unwound while cancellation is
        // disabled.
        unsafe { next::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut kind) };
        self.restore();
        // SAFETY: a valid type, and null is allowed; unwinds, as `restore`.
        unsafe { next::pthread_setcanceltype(kind, ptr::null_mut()) };
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
