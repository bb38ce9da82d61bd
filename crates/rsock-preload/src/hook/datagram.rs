//! The one way by which datagrams go from hooks to a UDP socket's queue and back.
//!
//! `None` always means: ask the kernel instead, as the program asked.

use crate::fdtable::datagrams;
use crate::slot::Side;
use crate::{arg, errno, guard, next, options};
use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t,
    ssize_t,
};
use rsock_core::accelerate::FallbackReason;
use rsock_core::datagram::kernel_udp::{AcceleratedUdp, Received, Reception};
use rustix::fd::AsRawFd;
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr;

/// Sends `bufs` as one datagram on `fd`, to the address at `to` or the peer of a connected socket.
///
/// # Safety
/// `to` is null or has `to_len` readable bytes.
unsafe fn send(
    fd: c_int,
    bufs: &[IoSlice<'_>],
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    let handle = datagrams::enter(fd, Side::Send)?;
    let udp = handle.udp()?;
    if flags & !options::DATAGRAM_SEND_FLAGS != 0 {
        drop(handle);
        crate::fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    // SAFETY: the caller's promise.
    let Some(to) = (unsafe { destination(udp, to, to_len) }) else {
        udp.note_sent_by_kernel();
        return None;
    };
    let sent = guard::enter(|| Ok(udp.send(handle.fd(), bufs, to)));
    datagrams::tell_news(fd, udp);
    if sent != Ok(true) {
        return None;
    }
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    Some(errno::ret_len(Ok(len)))
}

/// Where a datagram is to go: to the address at `to`, or the peer of a connected socket. `None` where the kernel has
/// to say what is meant.
///
/// # Safety
/// As [`send`].
unsafe fn destination(
    udp: &AcceleratedUdp,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<Option<SocketAddr>> {
    if to.is_null() {
        return Some(None);
    }
    // SAFETY: the caller's promise.
    let to = unsafe { arg::address(to, to_len) }?;
    // An address of the other family, or with a scope: the kernel says what it means.
    let is_plain = match to {
        SocketAddr::V4(_) => !udp.is_v6(),
        SocketAddr::V6(to) => udp.is_v6() && to.scope_id() == 0,
    };
    is_plain.then_some(Some(to))
}

/// Sends the first of `msgs`, as many as go past the kernel, with one ring for all that go to one peer; how many.
/// Their lengths are stored. `is_kernels` is set where the next one is known to be the kernel's.
///
/// # Safety
/// Valid messages to send.
pub(super) unsafe fn send_first(
    fd: c_int,
    msgs: &mut [mmsghdr],
    flags: c_int,
    is_kernels: &mut bool,
) -> Option<c_int> {
    *is_kernels = false;
    let handle = datagrams::enter(fd, Side::Send)?;
    let udp = handle.udp()?;
    if flags & !options::DATAGRAM_SEND_FLAGS != 0 {
        return None;
    }
    let n = guard::enter(|| {
        let mut batch = udp.begin_batch(handle.fd());
        let mut n = 0;
        for mmsghdr { msg_hdr: msg, msg_len } in msgs {
            if msg.msg_controllen != 0 {
                break;
            }
            // SAFETY: the address of a valid message.
            let to = unsafe { destination(udp, msg.msg_name.cast(), msg.msg_namelen) };
            let Some(to) = to else { break };
            let mut send = |bufs: &[IoSlice<'_>]| {
                batch.send(bufs, to).then(|| bufs.iter().map(|buf| buf.len()).sum::<usize>())
            };
            // SAFETY: the vector of a valid message.
            let sent =
                unsafe { arg::with_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, &mut send) };
            match sent {
                Ok(Some(len)) => *msg_len = c_uint::try_from(len).unwrap_or(c_uint::MAX),
                Ok(None) => {
                    *is_kernels = true;
                    break;
                }
                Err(_) => break,
            }
            n += 1;
        }
        Ok(n)
    });
    datagrams::tell_news(fd, udp);
    n.ok()
}

/// Room for a name.
const NAME_ROOM: socklen_t = 128;
const _: () = assert!(size_of::<sockaddr_storage>() == 128);

/// What a receive says beside the bytes, and has room for.
struct Told {
    /// Who sent it, as the kernel lays it out.
    name: MaybeUninit<sockaddr_storage>,
    name_len: socklen_t,
    /// Room for control data, and how much of it was used.
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}

impl Told {
    /// Room for control data of `control_len` bytes at `control`.
    fn new(control: *mut c_void, control_len: usize) -> Self {
        Self { name: MaybeUninit::zeroed(), name_len: 0, control, control_len, flags: 0 }
    }

    /// Stores who sent it, as much as there is room for, and how long that is.
    ///
    /// # Safety
    /// `room` bytes are writable at `to`.
    unsafe fn put_name(&self, to: *mut sockaddr, room: socklen_t) -> socklen_t {
        let len = room.min(self.name_len) as usize;
        // SAFETY: the caller's promise; the name is at least as long.
        unsafe { ptr::copy_nonoverlapping(self.name.as_ptr().cast::<u8>(), to.cast(), len) };
        self.name_len
    }

    fn set_name(&mut self, from: SocketAddr) {
        let mut len = NAME_ROOM;
        // SAFETY: the storage has that much room, and both are valid.
        unsafe { arg::put_address(from, self.name.as_mut_ptr().cast(), &raw mut len) };
        self.name_len = len;
    }

    /// Asks the kernel.
    ///
    /// # Safety
    /// `control` is null or has `control_len` writable bytes.
    unsafe fn ask(
        &mut self,
        fd: c_int,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        control_room: usize,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        // SAFETY: plain numbers and pointers, of which none may not be zero.
        let mut msg: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        msg.msg_name = self.name.as_mut_ptr().cast();
        msg.msg_namelen = NAME_ROOM;
        // `IoSliceMut` has the layout of `iovec`.
        msg.msg_iov = bufs.as_mut_ptr().cast();
        msg.msg_iovlen = bufs.len();
        msg.msg_control = self.control;
        msg.msg_controllen = control_room;
        // SAFETY: room for a name, for as many slices as it says, and for control data by the caller's promise.
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
/// The control data of `told` is null or writable.
unsafe fn recv(
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
    told: &mut Told,
) -> Option<ssize_t> {
    let handle = datagrams::enter(fd, Side::Recv)?;
    let udp = handle.udp()?;
    let room = told.control_len;
    let known = RecvFlags::from_bits_retain(flags.cast_unsigned());
    let got = guard::enter(|| {
        udp.recv(handle.descriptor(), bufs, known, |fd, bufs, flags| {
            // SAFETY: the caller's promise.
            unsafe { told.ask(fd.as_raw_fd(), bufs, flags, room) }
        })
    });
    datagrams::tell_news(fd, udp);
    let result = match got {
        Ok(Reception::Kernel(n)) => Ok(n),
        Ok(Reception::Queue(Received { len, full_len, from })) => {
            told.set_name(from);
            told.control_len = 0;
            let is_cut = full_len > len;
            told.flags = flags & libc::MSG_CMSG_CLOEXEC | if is_cut { libc::MSG_TRUNC } else { 0 };
            Ok(if flags & libc::MSG_TRUNC != 0 { full_len } else { len })
        }
        Err(e) => Err(e),
    };
    if let Err(libc::ENOTSOCK | libc::EBADF) = result
        && !udp.is_same_socket(handle.fd())
        && crate::fdtable::key(fd) == Some(handle.key())
    {
        // Closed behind our back, and used again.
        drop(handle);
        crate::fdtable::note_made(fd);
        return None;
    }
    drop(handle);
    Some(errno::ret_len(result))
}

/// As `sendto(2)`.
///
/// # Safety
/// `buf` is null or has `len` readable bytes, `to` is null or has `to_len`.
pub(super) unsafe fn send_bytes(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise. What is wrong with it the kernel says.
    let bytes = unsafe { arg::bytes(buf, len) }.ok()?;
    // SAFETY: as above.
    unsafe { send(fd, &[IoSlice::new(bytes)], flags, to, to_len) }
}

/// As `recvfrom(2)`.
///
/// # Safety
/// `buf` is null or has `len` writable bytes; `from` is null, or `from_len` is null or valid and `from` has
/// as many bytes as it says.
pub(super) unsafe fn recv_bytes(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> Option<ssize_t> {
    let room = if from.is_null() {
        0
    } else if from_len.is_null() {
        return None;
    } else {
        // SAFETY: valid by the caller's promise. A negative one the kernel refuses.
        let room = unsafe { from_len.read_unaligned() };
        (room.cast_signed() >= 0).then_some(room)?
    };
    // SAFETY: the caller's promise. What is wrong with it the kernel says.
    let bytes = unsafe { arg::bytes_mut(buf, len) }.ok()?;
    let mut told = Told::new(ptr::null_mut(), 0);
    // SAFETY: no room for control data.
    let n = unsafe { recv(fd, &mut [IoSliceMut::new(bytes)], flags, &mut told) }?;
    if n >= 0 && !from.is_null() {
        // SAFETY: writable by the caller's promise.
        let len = unsafe { told.put_name(from, room) };
        // SAFETY: valid by the caller's promise.
        unsafe { from_len.write_unaligned(len) };
    }
    Some(n)
}

/// As `writev(2)`.
///
/// # Safety
/// `iov` is null or has `n` entries of readable bytes.
pub(super) unsafe fn send_vector(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    flags: c_int,
) -> Option<ssize_t> {
    let send_all = |bufs: &[IoSlice<'_>]| {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return None;
        }
        // SAFETY: no address.
        unsafe { send(fd, bufs, flags, ptr::null(), 0) }
    };
    // SAFETY: the caller's promise.
    unsafe { arg::with_slices(iov, usize::try_from(n).ok()?, libc::EINVAL, send_all) }.ok()?
}

/// As `readv(2)`.
///
/// # Safety
/// `iov` is null or has `n` entries of writable bytes.
pub(super) unsafe fn recv_vector(
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
        unsafe { recv(fd, bufs, flags, &mut Told::new(ptr::null_mut(), 0)) }
    };
    // SAFETY: the caller's promise.
    unsafe { arg::with_slices_mut(iov, usize::try_from(n).ok()?, libc::EINVAL, recv_all) }.ok()?
}

/// As `sendmsg(2)`.
///
/// # Safety
/// `msg` is null or a valid message to send.
pub(super) unsafe fn send_message(fd: c_int, msg: *const msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: null or valid by the caller's promise. What is wrong with it the kernel says.
    let msg = unsafe { msg.as_ref() }?;
    if msg.msg_controllen != 0 {
        // For the kernel to understand; what follows must not overtake it.
        crate::fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    let (to, to_len) = (msg.msg_name.cast_const().cast(), msg.msg_namelen);
    // SAFETY: the address of a valid message.
    let send_all = |bufs: &[IoSlice<'_>]| unsafe { send(fd, bufs, flags, to, to_len) };
    // SAFETY: the vector of a valid message.
    unsafe { arg::with_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, send_all) }.ok()?
}

/// As `recvmsg(2)`.
///
/// # Safety
/// `msg` is null or a valid message to receive into.
pub(super) unsafe fn recv_message(fd: c_int, msg: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: null or valid by the caller's promise. What is wrong with it the kernel says.
    let msg = unsafe { msg.as_mut() }?;
    let has_name = !msg.msg_name.is_null();
    if has_name && msg.msg_namelen.cast_signed() < 0 {
        return None;
    }
    let mut told = Told::new(msg.msg_control, msg.msg_controllen);
    // SAFETY: the control data of a valid message.
    let recv_all = |bufs: &mut [IoSliceMut<'_>]| unsafe { recv(fd, bufs, flags, &mut told) };
    // SAFETY: the vector of a valid message.
    let received =
        unsafe { arg::with_slices_mut(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, recv_all) };
    let n = received.ok()??;
    if n >= 0 {
        if has_name {
            // SAFETY: a name of a valid message has as many bytes as it says.
            msg.msg_namelen = unsafe { told.put_name(msg.msg_name.cast(), msg.msg_namelen) };
        }
        msg.msg_controllen = told.control_len;
        msg.msg_flags = told.flags;
    }
    Some(n)
}
