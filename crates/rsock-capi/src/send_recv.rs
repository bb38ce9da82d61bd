//! Sends and receives.

use crate::any_socket::Received;
use crate::errno::{error, ret_len};
use crate::table::Entry;
use crate::{arg, table};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

/// Sends; the only flag with an effect is `MSG_DONTWAIT`. COMPAT: urgent data does not exist here
/// and is refused, while librdmacm sends it as ordinary data.
fn send(
    entry: &Entry,
    bufs: &[IoSlice<'_>],
    to: Option<SocketAddr>,
    flags: c_int,
) -> io::Result<usize> {
    if flags & libc::MSG_OOB != 0 {
        return error(libc::EOPNOTSUPP);
    }
    entry.socket.send(bufs, to, flags)
}

/// Receives; the flags with an effect are `MSG_DONTWAIT`, `MSG_PEEK` and `MSG_WAITALL`, and on
/// datagrams `MSG_TRUNC`.
fn recv(entry: &Entry, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<usize> {
    if flags & libc::MSG_OOB != 0 {
        return error(libc::EINVAL);
    }
    entry.socket.recv(bufs, flags)
}

/// As [`recv`], with the source.
fn recv_from(entry: &Entry, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<Received> {
    if flags & libc::MSG_OOB != 0 {
        return error(libc::EINVAL);
    }
    entry.socket.recv_from(bufs, flags)
}

/// The destination of a call; none if the call has no address.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
unsafe fn destination(addr: *const sockaddr, len: socklen_t) -> io::Result<Option<SocketAddr>> {
    // As in the kernel, whatever the length.
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on.
    unsafe { arg::address(addr, len) }.map(Some)
}

/// As `send(2)`. Never raises a signal: writing to a closed connection is `ECONNRESET`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `send(2)` promises `len` readable bytes.
        let bytes = unsafe { arg::bytes(buf, len) }?;
        send(&entry, &[IoSlice::new(bytes)], None, flags)
    })
}

/// As `sendto(2)`; an address is `EISCONN` on a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    dest: *const sockaddr,
    dest_len: socklen_t,
) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `sendto(2)` promises `dest_len` readable bytes.
        let to = unsafe { destination(dest, dest_len) }?;
        // SAFETY: the caller of `sendto(2)` promises `len` readable bytes.
        let bytes = unsafe { arg::bytes(buf, len) }?;
        send(&entry, &[IoSlice::new(bytes)], to, flags)
    })
}

/// As `sendmsg(2)`; control data is `ENOTSUP`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        if msg.is_null() {
            return error(libc::EFAULT);
        }
        // SAFETY: not null, and the caller of `sendmsg(2)` promises a readable header.
        let msg = unsafe { msg.read() };
        if !msg.msg_control.is_null() && msg.msg_controllen != 0 {
            return error(libc::ENOTSUP);
        }
        // COMPAT: a stream ignores the address, as in librdmacm.
        let to = if entry.socket.stream().is_ok() || msg.msg_namelen == 0 {
            None
        } else {
            // SAFETY: the caller of `sendmsg(2)` promises a readable address.
            unsafe { destination(msg.msg_name.cast(), msg.msg_namelen) }?
        };
        // SAFETY: the caller of `sendmsg(2)` promises readable buffers.
        let bufs = unsafe { arg::gather(msg.msg_iov, msg.msg_iovlen) }?;
        send(&entry, &bufs, to, flags)
    })
}

/// As `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the same contract.
    unsafe { rsend(fd, buf, len, 0) }
}

/// As `writev(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `writev(2)` promises readable buffers.
        let bufs = unsafe { arg::gather(iov, arg::count(n)?) }?;
        send(&entry, &bufs, None, 0)
    })
}

/// As `recv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `recv(2)` promises `len` bytes that this call may write.
        let bytes = unsafe { arg::bytes_mut(buf, len) }?;
        recv(&entry, &mut [IoSliceMut::new(bytes)], flags)
    })
}

/// As `recvfrom(2)`; on a stream the address is the peer's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    src: *mut sockaddr,
    src_len: *mut socklen_t,
) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        if !src.is_null() && src_len.is_null() {
            return error(libc::EFAULT);
        }
        // SAFETY: the caller of `recvfrom(2)` promises `len` bytes that this call may write.
        let bytes = unsafe { arg::bytes_mut(buf, len) }?;
        let received = recv_from(&entry, &mut [IoSliceMut::new(bytes)], flags)?;
        // SAFETY: the caller of `recvfrom(2)` promises room for what `src_len` says.
        unsafe { arg::put_address(src, src_len, received.from) }?;
        Ok(received.reported_len(flags))
    })
}

/// As `recvmsg(2)`: fills every buffer, and stores the sender's address, for a stream the peer's.
/// There is no control data. `MSG_TRUNC` marks a truncated datagram.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        if msg.is_null() {
            return error(libc::EFAULT);
        }
        // SAFETY: not null, and the caller of `recvmsg(2)` promises a header that this call may
        // write.
        let msg = unsafe { &mut *msg };
        // SAFETY: the caller of `recvmsg(2)` promises buffers that this call may write.
        let mut bufs = unsafe { arg::scatter(msg.msg_iov, msg.msg_iovlen) }?;
        let received = recv_from(&entry, &mut bufs, flags)?;
        let is_cut = received.full_len > received.len;
        msg.msg_controllen = 0;
        msg.msg_flags = if is_cut { libc::MSG_TRUNC } else { 0 };
        let from = received.from;
        // SAFETY: the caller of `recvmsg(2)` promises room for what `msg_namelen` says.
        unsafe { arg::put_address(msg.msg_name.cast(), &raw mut msg.msg_namelen, from) }?;
        Ok(received.reported_len(flags))
    })
}

/// As `read(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the same contract.
    unsafe { rrecv(fd, buf, len, 0) }
}

/// As `readv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    ret_len(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `readv(2)` promises buffers that this call may write.
        let mut bufs = unsafe { arg::scatter(iov, arg::count(n)?) }?;
        recv(&entry, &mut bufs, 0)
    })
}
