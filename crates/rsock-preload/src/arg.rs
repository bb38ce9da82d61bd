//! C arguments as Rust slices, checked as the kernel checks them.
//!
//! Guards the rules that Rust adds: no null slice, no length beyond `isize::MAX`. An unmapped
//! address is not noticed here: the kernel reports EFAULT where it copies, and so does a copy
//! through shared memory (`rsock_verbs::fault`).

mod vector;

pub(crate) use vector::{len_of_slices, with_slices, with_slices_mut};

use libc::{c_int, c_void, size_t, sockaddr, sockaddr_storage, socklen_t};
use rsock_verbs::{fault, raw};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, SocketAddrV6};
use std::ptr;
use std::slice;

/// Most bytes that one call moves (the kernel's `MAX_RW_COUNT`).
pub(crate) const MAX_LEN: usize = 0x7fff_f000;
/// Divides the size of every page.
const PAGE: usize = 4096;

/// `len` bytes at `buf`.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// `buf` is null or valid for reading `len` bytes during `'a`.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: size_t) -> Result<&'a [u8], c_int> {
    match (len.min(MAX_LEN), buf.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(libc::EFAULT),
        // SAFETY: not null, short enough, and readable by the caller's promise.
        (len, false) => Ok(unsafe { slice::from_raw_parts(buf.cast(), len) }),
    }
}

/// `len` bytes of room at `buf`.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// `buf` is null or valid for writing `len` bytes during `'a`, with no other access to them.
pub(crate) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: size_t) -> Result<&'a mut [u8], c_int> {
    match (len.min(MAX_LEN), buf.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(libc::EFAULT),
        // SAFETY: not null, short enough, writable and unshared by the caller's promise. Bytes may
        // be uninitialised memory of the program, which is only written.
        (len, false) => Ok(unsafe { slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

/// Whether the kernel refuses `len` bytes at `buf` to `read` and `write` for their addresses alone:
/// before it looks at the file, and before it takes the length for [`MAX_LEN`]. Asked only where
/// `is_known` says that a hook may make the call.
#[inline(always)]
pub(crate) fn is_refused(buf: *const c_void, len: size_t, is_known: impl FnOnce() -> bool) -> bool {
    len > MAX_LEN && is_known() && is_beyond_user_space(buf, len)
}

/// Where user space ends depends on the processor and on the kernel, which is asked: `mincore`
/// checks the range first, and then fails at the address for its answer.
#[cold]
#[inline(never)]
fn is_beyond_user_space(buf: *const c_void, len: size_t) -> bool {
    let in_page = buf.addr() % PAGE;
    let Some(len) = len.checked_add(in_page) else { return true };
    let page = buf.wrapping_byte_sub(in_page);
    // SAFETY: reads no memory, and writes none: there is none at the last address.
    let asked = unsafe { raw::syscall!(libc::SYS_mincore, page, len, usize::MAX) };
    asked.is_err_and(|e| e.raw_os_error() == Some(libc::ENOMEM))
}

/// The value at `at`, which the program may have unmapped.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// `at` is memory of the program, or an address where there is none. Any bytes are a value of `T`.
pub(crate) unsafe fn load<T: Copy>(at: *const T) -> Result<T, c_int> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the caller's promise, and room for the value.
    let is_there = unsafe { fault::copy(at.cast(), value.as_mut_ptr().cast(), size_of::<T>()) };
    if !is_there {
        return Err(libc::EFAULT);
    }
    // SAFETY: all bytes were copied, and any are a value.
    Ok(unsafe { value.assume_init() })
}

/// Stores a value at `at`, which the program may have unmapped.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// `at` is memory of the program that the call is to write, or an address where there is none.
pub(crate) unsafe fn store<T: Copy>(value: &T, at: *mut T) -> Result<(), c_int> {
    let from = ptr::from_ref(value).cast();
    // SAFETY: the caller's promise, and a whole value.
    let is_there = unsafe { fault::copy(from, at.cast(), size_of::<T>()) };
    if is_there { Ok(()) } else { Err(libc::EFAULT) }
}

/// Whether the first `len` bytes of the address at `at` can be read, which a stream ignores.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// `at` is memory of the program, or an address where there is none.
pub(crate) unsafe fn check_address(at: *const c_void, len: socklen_t) -> Result<(), c_int> {
    let mut copy = MaybeUninit::<sockaddr_storage>::uninit();
    let len = (len as usize).min(size_of::<sockaddr_storage>());
    if at.is_null() || len == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise, and room for as many bytes.
    let is_there = unsafe { fault::copy(at.cast(), copy.as_mut_ptr().cast(), len) };
    if is_there { Ok(()) } else { Err(libc::EFAULT) }
}

/// An internet address.
///
/// # Safety
/// `at` is null or valid for reading `len` bytes.
pub(crate) unsafe fn address(at: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { bytes(at.cast(), len as usize) }.ok()?;
    let family = c_int::from(libc::sa_family_t::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some((ip, port).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = bytes.get(24..28)?.try_into().map(u32::from_ne_bytes).ok()?;
            Some(SocketAddrV6::new(ip.into(), port, 0, scope).into())
        }
        _ => None,
    }
}

/// Whether the caller of a receive wants the source's address, with the room that it gives. `None`
/// if the kernel reports an error.
///
/// # Safety
/// `len` is null or valid.
#[inline]
pub(crate) unsafe fn room_for_source(
    at: *mut sockaddr,
    len: *const socklen_t,
) -> Option<Option<socklen_t>> {
    if at.is_null() {
        return Some(None);
    }
    if len.is_null() {
        return None;
    }
    // SAFETY: valid, says the caller.
    let room = unsafe { len.read_unaligned() };
    (room.cast_signed() >= 0).then_some(Some(room))
}

/// Stores an address as `accept` does: as much of it as there is room for, and its length.
///
/// # Safety
/// `len` is valid, and `at` for writing as many bytes as it says.
pub(crate) unsafe fn put_address(addr: SocketAddr, at: *mut sockaddr, len: *mut socklen_t) {
    let mut bytes = [0; size_of::<libc::sockaddr_in6>()];
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    let (family, length) = match addr {
        SocketAddr::V4(addr) => {
            bytes[4..8].copy_from_slice(&addr.ip().octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(addr) => {
            bytes[8..24].copy_from_slice(&addr.ip().octets());
            bytes[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
            (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
        }
    };
    let family = libc::sa_family_t::try_from(family).unwrap_or(0);
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    // SAFETY: valid, says the caller.
    let room = unsafe { len.read_unaligned() } as usize;
    // SAFETY: within the room that the caller vouches for, and within `bytes`.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), room.min(length)) };
    // SAFETY: as the read above.
    unsafe { len.write_unaligned(socklen_t::try_from(length).unwrap_or(0)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_buffer_is_fine_only_when_empty() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { bytes(ptr::null(), 0) }, Ok(&[][..]));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { bytes(ptr::null(), 1) }, Err(libc::EFAULT));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { bytes_mut(ptr::null_mut(), 1) }, Err(libc::EFAULT));
    }

    #[test]
    fn an_address_comes_back_as_it_went_and_never_takes_more_room_than_there_is() {
        for text in ["10.9.0.1:7471", "[fd09::1]:80", "[::ffff:10.9.0.1]:1"] {
            let addr: SocketAddr = text.parse().expect("address");
            let mut storage = [0xffu8; 32];
            let mut len = 30;
            let at = storage.as_mut_ptr().cast();
            // SAFETY: as much room as `len` says.
            unsafe { put_address(addr, at, &raw mut len) };
            // SAFETY: written just now, with that length.
            assert_eq!(unsafe { address(at, len) }, Some(addr));
            // SAFETY: shorter.
            assert_eq!(unsafe { address(at, 7) }, None);
            let mut short = 4;
            storage = [0xff; 32];
            // SAFETY: as much room as `short` says.
            unsafe { put_address(addr, storage.as_mut_ptr().cast(), &raw mut short) };
            assert_eq!(short, len);
            assert!(storage[4..].iter().all(|&b| b == 0xff), "{storage:?}");
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { address(ptr::null(), 16) }, None);
    }
}
