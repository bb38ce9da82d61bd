//! Two system calls that rustix does not wrap as we need them: it stores process ids as non-zero
//! numbers, and the kernel reports 0 for a process outside our process-id namespace. Raw, so that
//! nothing here enters a libc symbol that the preload library exports.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Most descriptors that one message of ours carries; one more is room to notice too many.
pub(crate) const MAX_FDS: usize = 4;

/// A received message.
#[derive(Debug)]
pub(crate) struct Message {
    /// Length; larger than the buffer if the message was cut.
    pub(crate) len: usize,
    /// Descriptors that came along, close-on-exec.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether more descriptors came than fit: the rest is closed already.
    pub(crate) is_cut: bool,
    /// Who sent it, where `SO_PASSCRED` is on.
    pub(crate) sender: Option<libc::ucred>,
}

/// Credentials of the process that connected, or that listened, as of then.
pub(crate) fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len: libc::socklen_t =
        size_of::<libc::ucred>().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `cred` is writable for `len` bytes, and `len` is a live value.
    let r = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut cred,
            &raw mut len,
        )
    };
    if r == 0 { Ok(cred) } else { Err(io::Error::last_os_error()) }
}

/// Space for the ancillary data that we accept, aligned as its headers need.
#[repr(C)]
union Control {
    _align: libc::cmsghdr,
    bytes: [MaybeUninit<u8>; 128],
}

/// `recvmsg(2)`, never waiting. A message of length 0 is the end: nothing of ours is empty.
pub(crate) fn receive(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Message> {
    let mut control = Control { bytes: [MaybeUninit::uninit(); 128] };
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: all-zero is a valid `msghdr`: null pointers and zero lengths.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC;
    // SAFETY: `msg` points to `iov`, which covers `buf`, and to `control`; all outlive the call.
    let n = unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut msg, flags) };
    let len = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let mut message = Message {
        len,
        fds: Vec::new(),
        is_cut: msg.msg_flags & libc::MSG_CTRUNC != 0,
        sender: None,
    };
    // SAFETY: `msg` and its control buffer are as the kernel left them.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
    while !at.is_null() {
        // SAFETY: a header that the kernel wrote, aligned within the control buffer.
        let header = unsafe { ptr::read(at) };
        // SAFETY: computes the address behind a header of the control buffer.
        let data = unsafe { libc::CMSG_DATA(at) };
        // SAFETY: pure arithmetic.
        let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
        let bytes = header.cmsg_len.saturating_sub(overhead);
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for i in 0..bytes / size_of::<RawFd>() {
                    let slot = data.wrapping_add(i * size_of::<RawFd>());
                    // SAFETY: the kernel wrote `bytes` bytes of descriptors there.
                    let raw = unsafe { ptr::read_unaligned(slot.cast::<[u8; 4]>()) };
                    let raw = RawFd::from_ne_bytes(raw);
                    // SAFETY: the kernel made this descriptor for us just now; nobody else owns it.
                    message.fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                // SAFETY: the kernel wrote a `ucred` there; plain integers, any value is valid.
                message.sender = Some(unsafe { ptr::read_unaligned(data.cast()) });
            }
            _ => {}
        }
        // SAFETY: `at` is a header of `msg`'s control buffer.
        at = unsafe { libc::CMSG_NXTHDR(&raw const msg, at) };
    }
    Ok(message)
}
