//! Words of a system call, converted to the arguments of C functions.

use libc::{c_int, c_long, c_uint};
use std::ptr;

#[expect(clippy::cast_possible_truncation, reason = "C passed an int in a wider register")]
pub(super) fn int(word: usize) -> c_int {
    word as c_int
}

#[expect(clippy::cast_possible_truncation, reason = "C passed an int in a wider register")]
pub(super) fn uint(word: usize) -> c_uint {
    word as c_uint
}

#[expect(clippy::cast_possible_truncation, reason = "a small result")]
pub(super) fn int_of(result: c_long) -> c_int {
    result as c_int
}

pub(super) fn offset(word: usize) -> libc::off_t {
    word.cast_signed() as libc::off_t
}

pub(super) fn at<P: Pointer>(word: usize) -> P {
    P::at(word)
}

/// A mutable or constant pointer.
pub(super) trait Pointer {
    fn at(word: usize) -> Self;
}

impl<T> Pointer for *const T {
    fn at(word: usize) -> Self {
        ptr::with_exposed_provenance(word)
    }
}

impl<T> Pointer for *mut T {
    fn at(word: usize) -> Self {
        ptr::with_exposed_provenance_mut(word)
    }
}
