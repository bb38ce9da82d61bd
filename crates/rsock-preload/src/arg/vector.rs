//! Vectors of buffers, as `readv` and `sendmsg` take them.

use super::{MAX_LEN, load};
use crate::mapped::Mapped;
use libc::{c_int, iovec};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::{ptr, slice};

/// Most entries of a vector.
const MAX_VECTORS: usize = 1024;
/// Vectors up to this length cost little stack.
const FEW: usize = 16;
/// Vectors up to this length are copied to the stack: 1 KiB.
const SOME: usize = 64;

/// Calls `f` with the vector at `iov`.
///
/// # Errors
/// `EINVAL`, `EFAULT`; `too_many` for more than 1024 entries; and those of `f`.
///
/// # Safety
/// `iov` is null or valid for reading `n` entries, each null or valid for reading its bytes.
pub(crate) unsafe fn with_slices<R>(
    iov: *const iovec,
    n: usize,
    too_many: c_int,
    f: impl FnOnce(&[IoSlice<'_>]) -> R,
) -> Result<R, c_int> {
    let f = |clean: &mut [iovec]| {
        // SAFETY: `IoSlice` is guaranteed to have the layout of `iovec`; `with_vector` made every
        // entry a valid slice, readable by the caller's promise.
        f(unsafe { slice::from_raw_parts(clean.as_ptr().cast(), clean.len()) })
    };
    // SAFETY: the caller's promise.
    unsafe { with_vector(iov, n, too_many, f) }
}

/// As [`with_slices`], to write into.
///
/// # Errors
/// As [`with_slices`].
///
/// # Safety
/// As [`with_slices`], for writing.
pub(crate) unsafe fn with_slices_mut<R>(
    iov: *const iovec,
    n: usize,
    too_many: c_int,
    f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
) -> Result<R, c_int> {
    let f = |clean: &mut [iovec]| {
        // SAFETY: `IoSliceMut` is guaranteed to have the layout of `iovec`; `with_vector` made
        // every entry a valid slice, writable by the caller's promise.
        f(unsafe { slice::from_raw_parts_mut(clean.as_mut_ptr().cast(), clean.len()) })
    };
    // SAFETY: the caller's promise.
    unsafe { with_vector(iov, n, too_many, f) }
}

/// The number of bytes that the vector at `iov` has room for. Their addresses may be any.
///
/// # Errors
/// As [`with_slices`].
///
/// # Safety
/// `iov` is null or valid for reading `n` entries.
pub(crate) unsafe fn len_of_slices(
    iov: *const iovec,
    n: usize,
    too_many: c_int,
) -> Result<usize, c_int> {
    if n > MAX_VECTORS {
        return Err(too_many);
    }
    (0..n).try_fold(0usize, |all, at| {
        // SAFETY: an entry, by the caller's promise; integers.
        let entry = unsafe { load(iov.wrapping_add(at)) }?;
        Ok(all + len_within(&entry, MAX_LEN - all)?)
    })
}

/// The length of an entry, of which the call moves at most `room` bytes.
fn len_within(entry: &iovec, room: usize) -> Result<usize, c_int> {
    if isize::try_from(entry.iov_len).is_err() {
        return Err(libc::EINVAL);
    }
    Ok(entry.iov_len.min(room))
}

/// # Safety
/// `iov` is null or valid for reading `n` entries.
unsafe fn with_vector<R>(
    iov: *const iovec,
    n: usize,
    too_many: c_int,
    f: impl FnOnce(&mut [iovec]) -> R,
) -> Result<R, c_int> {
    if n > MAX_VECTORS {
        return Err(too_many);
    }
    if n == 0 {
        return Ok(f(&mut []));
    }
    if iov.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: not null, and readable by the caller's promise.
    let given = unsafe { slice::from_raw_parts(iov, n) };
    if n <= FEW {
        with_copy::<FEW, R>(given, f)
    } else if n <= SOME {
        with_copy_of_some(given, f)
    } else {
        with_mapped_copy(given, f)
    }
}

#[inline(never)]
fn with_copy_of_some<R>(given: &[iovec], f: impl FnOnce(&mut [iovec]) -> R) -> Result<R, c_int> {
    with_copy::<SOME, R>(given, f)
}

fn with_copy<const N: usize, R>(
    given: &[iovec],
    f: impl FnOnce(&mut [iovec]) -> R,
) -> Result<R, c_int> {
    let mut copy = [NOTHING; N];
    let copy = &mut copy[..given.len()];
    clean(given, copy)?;
    Ok(f(copy))
}

/// As [`with_copy`], with memory of the call's own.
#[cold]
#[inline(never)]
fn with_mapped_copy<R>(given: &[iovec], f: impl FnOnce(&mut [iovec]) -> R) -> Result<R, c_int> {
    let mut memory = Mapped::new(size_of_val(given)).map_err(Errno::raw_os_error)?;
    let at = memory.as_mut_ptr().cast();
    // SAFETY: bytes for as many entries, of which zeroes are a value, and aligned to a page.
    let copy = unsafe { slice::from_raw_parts_mut(at, given.len()) };
    clean(given, copy)?;
    Ok(f(copy))
}

/// An entry without bytes.
const NOTHING: iovec = iovec { iov_base: ptr::dangling_mut::<u8>().cast(), iov_len: 0 };

/// Stores `given` in `copy`, which has as many entries, so that each is a valid slice.
///
/// # Errors
/// `EINVAL`, `EFAULT`.
fn clean(given: &[iovec], copy: &mut [iovec]) -> Result<(), c_int> {
    let mut room = MAX_LEN;
    for (to, from) in copy.iter_mut().zip(given) {
        let len = len_within(from, room)?;
        room -= len;
        *to = NOTHING;
        if len != 0 {
            let is_null = from.iov_base.is_null();
            if is_null && room + len == MAX_LEN {
                return Err(libc::EFAULT);
            }
            // Behind other bytes, it matters only if the call comes to it. No memory is at the
            // address instead, either.
            let iov_base = if is_null { NOTHING.iov_base } else { from.iov_base };
            *to = iovec { iov_base, iov_len: len };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(given: &[iovec]) -> Result<Vec<usize>, c_int> {
        // SAFETY: valid entries; only their lengths are looked at.
        unsafe {
            with_slices(given.as_ptr(), given.len(), libc::EMSGSIZE, |bufs| {
                bufs.iter().map(|b| b.len()).collect()
            })
        }
    }

    #[test]
    fn null_entries_of_no_length_are_fine_and_others_fault() {
        let byte = 7u8;
        let at = ptr::from_ref(&byte).cast_mut().cast();
        let null = ptr::null_mut();
        assert_eq!(
            lens(&[iovec { iov_base: null, iov_len: 0 }, iovec { iov_base: at, iov_len: 1 }]),
            Ok(vec![0, 1])
        );
        assert_eq!(lens(&[iovec { iov_base: null, iov_len: 1 }]), Err(libc::EFAULT));
        assert_eq!(
            lens(&[iovec { iov_base: at, iov_len: 1 }, iovec { iov_base: null, iov_len: 2 }]),
            Ok(vec![1, 2])
        );
        assert_eq!(lens(&[iovec { iov_base: at, iov_len: usize::MAX }]), Err(libc::EINVAL));
        assert_eq!(lens(&[iovec { iov_base: at, iov_len: 1 }; 1025]), Err(libc::EMSGSIZE));
        assert_eq!(lens(&[iovec { iov_base: at, iov_len: 1 }; 1024]).map(|v| v.len()), Ok(1024));
        assert_eq!(lens(&[]), Ok(vec![]));
    }
}
