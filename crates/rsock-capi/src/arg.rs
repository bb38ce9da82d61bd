//! Converts C arguments to Rust values. Each function trusts its caller as far as the system call
//! with the same argument would; null where a pointer is needed is `EFAULT`.

use crate::errno::error;
use libc::{c_int, c_void, iovec, sockaddr, socklen_t};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::{ptr, slice};

/// The largest number of buffers in one call, as the kernel's.
const MAX_IOV: usize = 1024;

/// `len` bytes at `buf`, to read.
///
/// # Safety
/// `buf` is null, or `len` bytes there stay readable and unchanged for `'a`.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if buf.is_null() || isize::try_from(len).is_err() {
        return error(libc::EFAULT);
    }
    // SAFETY: not null, and readable for `len` bytes by this function's contract.
    Ok(unsafe { slice::from_raw_parts(buf.cast(), len) })
}

/// `len` bytes at `buf`, to write.
///
/// # Safety
/// `buf` is null, or `len` bytes there are the caller's alone to write for `'a`.
pub(crate) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> io::Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if buf.is_null() || isize::try_from(len).is_err() {
        return error(libc::EFAULT);
    }
    // SAFETY: not null, and writable for `len` bytes by this function's contract.
    Ok(unsafe { slice::from_raw_parts_mut(buf.cast(), len) })
}

/// The `n` entries of an iovec array.
///
/// # Safety
/// `iov` is null or points to `n` readable entries.
unsafe fn iovecs<'a>(iov: *const iovec, n: usize) -> io::Result<&'a [iovec]> {
    if n > MAX_IOV {
        return error(libc::EINVAL);
    }
    if n == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return error(libc::EFAULT);
    }
    // SAFETY: not null, and `n` entries by this function's contract.
    let entries = unsafe { slice::from_raw_parts(iov, n) };
    let total = entries.iter().try_fold(0usize, |sum, e| sum.checked_add(e.iov_len));
    if total.is_none_or(|t| isize::try_from(t).is_err()) {
        return error(libc::EINVAL);
    }
    Ok(entries)
}

/// A gather list.
///
/// # Safety
/// As [`bytes`] for every entry, and `iov` is null or points to `n` entries.
pub(crate) unsafe fn gather<'a>(iov: *const iovec, n: usize) -> io::Result<Vec<IoSlice<'a>>> {
    // SAFETY: passed on.
    let entries = unsafe { iovecs(iov, n) }?;
    entries
        .iter()
        .map(|e| {
            // SAFETY: passed on.
            let bytes = unsafe { bytes(e.iov_base, e.iov_len) };
            bytes.map(IoSlice::new)
        })
        .collect()
}

/// A scatter list.
///
/// # Safety
/// As [`bytes_mut`] for every entry, and `iov` is null or points to `n` entries.
pub(crate) unsafe fn scatter<'a>(iov: *const iovec, n: usize) -> io::Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: passed on.
    let entries = unsafe { iovecs(iov, n) }?;
    entries
        .iter()
        .map(|e| {
            // SAFETY: passed on.
            let bytes = unsafe { bytes_mut(e.iov_base, e.iov_len) };
            bytes.map(IoSliceMut::new)
        })
        .collect()
}

/// A number of buffers.
pub(crate) fn count(n: c_int) -> io::Result<usize> {
    usize::try_from(n).or_else(|_| error(libc::EINVAL))
}

/// An internet address.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub(crate) unsafe fn address(addr: *const sockaddr, len: socklen_t) -> io::Result<SocketAddr> {
    // SAFETY: passed on.
    let bytes = unsafe { bytes(addr.cast(), len as usize) }?;
    parse_address(bytes)
}

fn parse_address(bytes: &[u8]) -> io::Result<SocketAddr> {
    /// The scope field was added to IPv6 addresses later.
    const WITHOUT_SCOPE: usize = offset_of!(libc::sockaddr_in6, sin6_scope_id);
    let Some(family) = bytes.first_chunk().map(|b| u16::from_ne_bytes(*b)) else {
        return error(libc::EINVAL);
    };
    let port = |bytes: &[u8]| u16::from_be_bytes([bytes[2], bytes[3]]);
    match i32::from(family) {
        libc::AF_INET if bytes.len() < size_of::<libc::sockaddr_in>() => error(libc::EINVAL),
        libc::AF_INET => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Ok((ip, port(bytes)).into())
        }
        libc::AF_INET6 if bytes.len() < WITHOUT_SCOPE => error(libc::EINVAL),
        libc::AF_INET6 => {
            let ip = <[u8; 16]>::try_from(&bytes[8..24]).map(Ipv6Addr::from);
            let ip = ip.or_else(|_| error(libc::EINVAL))?;
            let scope = bytes[24..].first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
            Ok(SocketAddrV6::new(ip, port(bytes), 0, scope).into())
        }
        _ => error(libc::EAFNOSUPPORT),
    }
}

fn format_address(addr: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of::<libc::sockaddr_in6>());
    let family = match addr {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    bytes.extend(u16::try_from(family).unwrap_or(0).to_ne_bytes());
    bytes.extend(addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            bytes.extend(v4.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            bytes.extend([0; 4]);
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// Stores an address: as much as fits, and its full length. Nothing where both pointers are null.
///
/// # Safety
/// `len` is null or points to a length, and `addr` is null or points to that many writable bytes.
pub(crate) unsafe fn put_address(
    addr: *mut sockaddr,
    len: *mut socklen_t,
    value: SocketAddr,
) -> io::Result<()> {
    if addr.is_null() {
        return Ok(());
    }
    // SAFETY: passed on.
    unsafe { put_value(addr.cast(), len, &format_address(value)) }?;
    let full = socklen_t::try_from(format_address(value).len()).unwrap_or(0);
    // SAFETY: `put_value` found it not null, and it is writable by this function's contract.
    unsafe { len.write(full) };
    Ok(())
}

/// Stores `value`: as much as fits, and the length stored.
///
/// # Safety
/// `len` is null or points to a length, and `at` is null or points to that many writable bytes.
pub(crate) unsafe fn put_value(
    at: *mut c_void,
    len: *mut socklen_t,
    value: &[u8],
) -> io::Result<()> {
    if at.is_null() || len.is_null() {
        return error(libc::EFAULT);
    }
    // SAFETY: not null, and readable by this function's contract.
    let room = unsafe { len.read() } as usize;
    let n = value.len().min(room);
    // SAFETY: `n` bytes are readable in `value` and writable at `at`; the two do not overlap,
    // because `value` is memory of this library.
    unsafe { ptr::copy_nonoverlapping(value.as_ptr(), at.cast(), n) };
    // SAFETY: not null, and writable by this function's contract.
    unsafe { len.write(socklen_t::try_from(n).unwrap_or(0)) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["1.2.3.4:5", "[2001:db8::1]:6", "[fe80::1%7]:8"] {
            let addr: SocketAddr = text.parse().expect("address");
            assert_eq!(parse_address(&format_address(addr)).expect("parses"), addr);
        }
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let errno = |bytes: &[u8]| parse_address(bytes).expect_err("bad").raw_os_error();
        let v4 = format_address("1.2.3.4:5".parse().expect("address"));
        let v6 = format_address("[::1]:5".parse().expect("address"));
        assert_eq!(errno(&[]), Some(libc::EINVAL));
        assert_eq!(errno(&v4[..15]), Some(libc::EINVAL));
        assert_eq!(errno(&v6[..23]), Some(libc::EINVAL));
        assert!(parse_address(&v6[..24]).is_ok(), "without a scope");
        assert_eq!(errno(&[1, 0, 0, 0]), Some(libc::EAFNOSUPPORT));
    }

    #[test]
    fn null_and_impossible_buffers_are_refused() {
        let errno = |r: io::Result<()>| r.expect_err("bad").raw_os_error();
        // SAFETY: null is part of the contract.
        let null = unsafe { bytes(ptr::null(), 1) };
        assert_eq!(errno(null.map(|_| ())), Some(libc::EFAULT));
        // SAFETY: as above.
        assert!(unsafe { bytes(ptr::null(), 0) }.is_ok());
        let huge = iovec { iov_base: ptr::null_mut(), iov_len: usize::MAX };
        let two = [huge, huge];
        // SAFETY: the entries are readable; their buffers are never looked at.
        let sum = unsafe { gather(two.as_ptr(), 2) };
        assert_eq!(errno(sum.map(|_| ())), Some(libc::EINVAL));
        // SAFETY: the count is refused before anything is read.
        let many = unsafe { gather(two.as_ptr(), MAX_IOV + 1) };
        assert_eq!(errno(many.map(|_| ())), Some(libc::EINVAL));
    }
}
