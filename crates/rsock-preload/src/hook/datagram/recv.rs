//! Receives datagrams from a socket's queue, or from the kernel.

use crate::fdtable::datagrams;
use crate::slot::Direction;
use crate::{arg, errno, guard, next};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use rsock_core::datagram::kernel_udp::{Received, Reception};
use rustix::fd::AsRawFd;
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr;

/// Room for an address.
const ADDRESS_ROOM: socklen_t = 128;

const _: () = assert!(size_of::<sockaddr_storage>() == 128);

/// What a receive returns beside the bytes.
struct Header {
    /// The sender's address, as the kernel lays it out.
    name: MaybeUninit<sockaddr_storage>,
    name_len: socklen_t,
    /// Room for control data, and the length of that data.
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}

impl Header {
    /// Room for control data of `control_len` bytes at `control`.
    fn new(control: *mut c_void, control_len: usize) -> Self {
        Self { name: MaybeUninit::zeroed(), name_len: 0, control, control_len, flags: 0 }
    }

    /// Stores the sender's address, as much as there is room for; returns its full length.
    ///
    /// # Safety
    /// `room` bytes are writable at `to`.
    unsafe fn put_sender(&self, to: *mut sockaddr, room: socklen_t) -> socklen_t {
        let len = room.min(self.name_len) as usize;
        // SAFETY: the caller's promise; the address is at least as long.
        unsafe { ptr::copy_nonoverlapping(self.name.as_ptr().cast::<u8>(), to.cast(), len) };
        self.name_len
    }

    fn set_sender(&mut self, from: SocketAddr) {
        let mut len = ADDRESS_ROOM;
        // SAFETY: the storage has that much room, and both are valid.
        unsafe { arg::put_address(from, self.name.as_mut_ptr().cast(), &raw mut len) };
        self.name_len = len;
    }

    /// Receives from the kernel.
    ///
    /// # Safety
    /// `control` is null or has `control_len` writable bytes.
    unsafe fn recv_from_kernel(
        &mut self,
        fd: c_int,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        control_room: usize,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        // SAFETY: plain numbers and pointers, of which none may not be zero.
        let mut msg: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        msg.msg_name = self.name.as_mut_ptr().cast();
        msg.msg_namelen = ADDRESS_ROOM;
        // `IoSliceMut` has the layout of `iovec`.
        msg.msg_iov = bufs.as_mut_ptr().cast();
        msg.msg_iovlen = bufs.len();
        msg.msg_control = self.control;
        msg.msg_controllen = control_room;
        // SAFETY: room for an address, for as many slices as it says, and for control data by the
        // caller's promise.
        let n = unsafe { next::recvmsg(fd, &raw mut msg, flags.bits().cast_signed()) };
        let n = usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(errno::read()))?;
        (self.name_len, self.control_len, self.flags) =
            (msg.msg_namelen, msg.msg_controllen, msg.msg_flags);
        // SAFETY: as many bytes as the kernel has written.
        let from = unsafe { arg::address(self.name.as_ptr().cast(), msg.msg_namelen) };
        Ok((n, from))
    }
}

/// Receives a datagram on `fd` into `bufs`.
///
/// # Safety
/// The control data of `header` is null or writable.
unsafe fn recv(
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
    header: &mut Header,
) -> Option<ssize_t> {
    let handle = datagrams::begin_call(fd, Direction::Recv)?;
    let udp = handle.udp()?;
    let room = header.control_len;
    let known = RecvFlags::from_bits_retain(flags.cast_unsigned());
    let got = guard::call_core(|| {
        udp.recv(handle.descriptor(), bufs, known, |fd, bufs, flags| {
            // SAFETY: the caller's promise.
            unsafe { header.recv_from_kernel(fd.as_raw_fd(), bufs, flags, room) }
        })
    });
    datagrams::log_news(fd, udp);
    let result = match got {
        Ok(Reception::Kernel(n)) => Ok(n),
        Ok(Reception::Queue(Received { len, full_len, from })) => {
            header.set_sender(from);
            header.control_len = 0;
            let is_cut = full_len > len;
            header.flags =
                flags & libc::MSG_CMSG_CLOEXEC | if is_cut { libc::MSG_TRUNC } else { 0 };
            Ok(if flags & libc::MSG_TRUNC != 0 { full_len } else { len })
        }
        Err(e) => Err(e),
    };
    if let Err(libc::ENOTSOCK | libc::EBADF) = result
        && !udp.is_same_socket(handle.fd())
        && crate::fdtable::key(fd) == Some(handle.key())
    {
        // The descriptor was closed and reused without a hook.
        drop(handle);
        crate::fdtable::note_made(fd);
        return None;
    }
    drop(handle);
    Some(errno::ret_len(result))
}

/// As `recvfrom(2)`.
///
/// # Safety
/// `buf` is null or has `len` writable bytes; `from` is null, or `from_len` is null or valid and
/// `from` has as many bytes as it says.
pub(in crate::hook) unsafe fn recv_bytes(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    let room = unsafe { arg::room_for_source(from, from_len) }?;
    // SAFETY: the caller's promise. The kernel reports a null pointer.
    let bytes = unsafe { arg::bytes_mut(buf, len) }.ok()?;
    let mut header = Header::new(ptr::null_mut(), 0);
    // SAFETY: no room for control data.
    let n = unsafe { recv(fd, &mut [IoSliceMut::new(bytes)], flags, &mut header) }?;
    if n >= 0
        && let Some(room) = room
    {
        // SAFETY: writable by the caller's promise.
        let len = unsafe { header.put_sender(from, room) };
        // SAFETY: valid by the caller's promise.
        unsafe { from_len.write_unaligned(len) };
    }
    Some(n)
}

/// As `readv(2)`.
///
/// # Safety
/// `iov` is null or has `n` entries of writable bytes.
pub(in crate::hook) unsafe fn recv_vector(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    flags: c_int,
) -> Option<ssize_t> {
    let recv_all = |bufs: &mut [IoSliceMut<'_>]| {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return None;
        }
        // SAFETY: no room for control data.
        unsafe { recv(fd, bufs, flags, &mut Header::new(ptr::null_mut(), 0)) }
    };
    // SAFETY: the caller's promise.
    unsafe { arg::with_slices_mut(iov, usize::try_from(n).ok()?, libc::EINVAL, recv_all) }.ok()?
}

/// As `recvmsg(2)`.
///
/// # Safety
/// `msg` is null or a valid message to receive into.
pub(in crate::hook) unsafe fn recv_message(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: null or valid by the caller's promise. What is wrong with it the kernel says.
    let msg = unsafe { msg.as_mut() }?;
    let has_name = !msg.msg_name.is_null();
    if has_name && msg.msg_namelen.cast_signed() < 0 {
        return None;
    }
    let mut header = Header::new(msg.msg_control, msg.msg_controllen);
    // SAFETY: the control data of a valid message.
    let recv_all = |bufs: &mut [IoSliceMut<'_>]| unsafe { recv(fd, bufs, flags, &mut header) };
    // SAFETY: the vector of a valid message.
    let received =
        unsafe { arg::with_slices_mut(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, recv_all) };
    let n = received.ok()??;
    if n >= 0 {
        if has_name {
            // SAFETY: the address of a valid message has as many bytes as it says.
            msg.msg_namelen = unsafe { header.put_sender(msg.msg_name.cast(), msg.msg_namelen) };
        }
        msg.msg_controllen = header.control_len;
        msg.msg_flags = header.flags;
    }
    Some(n)
}
