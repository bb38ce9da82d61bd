//! Messages from processes that are not trusted yet, and the descriptors that come with them.
//!
//! A received descriptor can block the receiver: the close of a socket that lingers waits for its
//! peer, and any call on a file in user space (FUSE), close included, waits for the process that
//! serves it. The same holds for a Unix socket in whose queue such descriptors lie. Invariant:
//! nothing here calls a file system, takes a lock of a socket that another process holds, too, or
//! closes a descriptor whose close could wait: `close_helper` does that, and [`is_flooded`] says
//! when no more may be accepted.

mod close_helper;

use crate::cred::PeerCred;
use crate::family::{ProcessId, process};
use crate::own_fd;
use crate::raw;
pub use close_helper::{is_flooded, n_kept_open};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, SealFlags, open};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io::{self, Write};
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most descriptors that the kernel lets one message carry (`SCM_MAX_FD`). There is room for all:
/// the kernel closes those without room in the receiving thread.
const MOST: usize = 253;

/// A received message.
#[derive(Debug)]
pub struct ReceivedMessage {
    /// Length; larger than the buffer if the message was cut.
    pub len: usize,
    /// Descriptors that came along, close-on-exec.
    pub fds: Vec<UntrustedFd>,
    /// Whether descriptors are missing, for want of room in the descriptor table.
    pub is_cut: bool,
    /// Credentials of the sender, where `SO_PASSCRED` is on. Process 0 is one outside of this
    /// process-id namespace.
    pub sender: Option<PeerCred>,
}

/// A descriptor that another process chose. Dropping it never waits.
///
/// # Invariants
/// The descriptor is closed once: in `drop`, unless it was taken out before.
#[derive(Debug)]
pub struct UntrustedFd(ManuallyDrop<OwnedFd>);

/// A Unix socket to which another process may send. Dropping it never waits, whatever lies in its
/// queue.
///
/// # Invariants
/// The descriptor is closed once, in `drop`.
#[derive(Debug)]
pub struct PeerSocket {
    fd: ManuallyDrop<OwnedFd>,
    /// The process that made or accepted it, if that is known: no other process has ever had this
    /// end.
    created_by: Option<ProcessId>,
    /// No descriptor has ever come: the kernel refuses them.
    refuses_descriptors: bool,
}

impl From<OwnedFd> for UntrustedFd {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl UntrustedFd {
    /// Seals of a memory file; `None` for anything else. The call involves no other process.
    pub(crate) fn seals(&self) -> Option<SealFlags> {
        rustix::fs::fcntl_get_seals(&*self.0).ok()
    }

    /// This descriptor as a connected Unix socket with message boundaries, if it is one. The checks
    /// take no lock of the socket.
    pub(crate) fn into_socket(self) -> Option<PeerSocket> {
        let is_fit = sockopt::socket_domain(&*self.0) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&*self.0) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_acceptconn(&*self.0) == Ok(false);
        is_fit.then(|| {
            let mut this = ManuallyDrop::new(self);
            // SAFETY: `this` is never dropped, so the field is not used again.
            let fd = unsafe { ManuallyDrop::take(&mut this.0) };
            // The number is free at once: closing one of two for the same socket does not wait.
            PeerSocket::of(own_fd::raise(fd), None)
        })
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        let is_memory = self.seals().is_some();
        // SAFETY: `self` is being dropped, so the field is not used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        if is_memory { own_fd::close(fd) } else { close_helper::close(fd) }
    }
}

impl AsFd for UntrustedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a socket takes descriptors (Linux, `include/uapi/asm-generic/socket.h`).
const SO_PASSRIGHTS: i32 = 83;

impl PeerSocket {
    /// Wraps a socket that this process made or accepted, and moves its number into the library's
    /// range.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self::of(own_fd::raise(fd), Some(process()))
    }

    /// As [`Self::new`], but keeps the number, because the program uses it.
    #[must_use]
    pub fn with_fixed_number(fd: OwnedFd) -> Self {
        Self::of(fd, Some(process()))
    }

    fn of(fd: OwnedFd, created_by: Option<ProcessId>) -> Self {
        Self { fd: ManuallyDrop::new(fd), created_by, refuses_descriptors: false }
    }

    /// Has the kernel refuse descriptors to senders, if it can (from 6.16 on). To be called before
    /// another process knows of the socket, whose queue then needs no inspection.
    pub fn refuse_descriptors(&mut self) {
        // A kernel that takes options it does not know has not understood this one.
        self.refuses_descriptors = self.pass_descriptors(false) && self.is_refusing();
    }

    /// Undoes [`Self::refuse_descriptors`].
    pub fn accept_descriptors(&mut self) {
        if mem::take(&mut self.refuses_descriptors) {
            let _ = self.pass_descriptors(true);
        }
    }

    /// Whether no descriptor has come and none can.
    #[must_use]
    pub fn refuses_descriptors(&self) -> bool {
        self.refuses_descriptors
    }

    /// Whether the kernel says that it refuses descriptors to senders.
    fn is_refusing(&self) -> bool {
        let mut on = -1i32;
        let mut len = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(0);
        // SAFETY: the value has room for `len` bytes, and both outlive the call.
        let done = unsafe {
            raw::syscall!(
                libc::SYS_getsockopt,
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PASSRIGHTS,
                &raw mut on,
                &raw mut len,
            )
        };
        done.is_ok() && on == 0
    }

    /// Whether the kernel could be told.
    fn pass_descriptors(&self, on: bool) -> bool {
        let on = i32::from(on);
        let len = size_of::<i32>();
        // SAFETY: the value is readable for its length during the call.
        let done = unsafe {
            raw::syscall!(
                libc::SYS_setsockopt,
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PASSRIGHTS,
                &raw const on,
                len,
            )
        };
        done.is_ok()
    }

    /// Whether dropping it would close it now. It stays open for good if something has come, and no
    /// number is left for a look at the queue.
    #[must_use]
    pub fn can_be_closed(&self) -> bool {
        if self.refuses_descriptors || is_restricted() || !self.has_news() {
            return true;
        }
        match rustix::io::fcntl_dupfd_cloexec(&*self.fd, 0) {
            Ok(other) => {
                // Closing one of two for the same socket does not wait.
                own_fd::close(other);
                true
            }
            Err(_) => false,
        }
    }

    /// Whether there is something to receive or to accept, or the end of the peer.
    fn has_news(&self) -> bool {
        let mut fds = [PollFd::new(&*self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_err() || !fds[0].revents().is_empty()
    }

    /// Whether descriptors lie in the queue. What is sent after the check is not seen.
    fn holds_descriptors(&self) -> bool {
        if !self.has_news() {
            return false;
        }
        // The end of the peer shows as something to read, too. Reading would take a lock of the
        // socket that another process may hold while it waits.
        n_queued(self.fd.as_raw_fd()).map_or_else(
            // Without /proc an empty message with descriptors is not seen.
            || rustix::io::ioctl_fionread(&*self.fd) != Ok(0),
            |n| n != 0,
        )
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        if self.refuses_descriptors || is_restricted() {
            // SAFETY: `self` is being dropped, so the field is not used again.
            return own_fd::close(unsafe { ManuallyDrop::take(&mut self.fd) });
        }
        // The option takes a lock of the socket; and a forked child leaves its parent's alone.
        if self.created_by == Some(process()) {
            let _ = self.pass_descriptors(false);
        }
        let is_trap = self.holds_descriptors();
        // SAFETY: `self` is being dropped, so the field is not used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if is_trap { close_helper::close(fd) } else { own_fd::close(fd) }
    }
}

/// Whether the program may have restricted its own system calls.
static IS_RESTRICTED: AtomicBool = AtomicBool::new(false);

/// The program is about to restrict its own system calls, and a forbidden one may end it: from now
/// on descriptors are closed without an inspection, and doorbells are rung without pipes.
pub fn note_restricted() {
    IS_RESTRICTED.store(true, Ordering::Relaxed);
}

/// Whether [`note_restricted`] was called.
pub(crate) fn is_restricted() -> bool {
    IS_RESTRICTED.load(Ordering::Relaxed)
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Descriptors in the queue of Unix socket `fd`, as `/proc` shows (`scm_fds`, from Linux 5.10 on).
fn n_queued(fd: RawFd) -> Option<u32> {
    const NAME: &[u8] = b"scm_fds:";
    let mut path = [0u8; 40];
    write!(&mut path[..], "/proc/self/fdinfo/{fd}\0").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 512];
    let n = rustix::io::read(&file, &mut text);
    own_fd::close(file);
    let text = text.get(..n.ok()?)?;
    let value = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(NAME))?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Space for the ancillary data of any message, aligned as its headers need.
#[repr(C)]
union Control {
    _align: libc::cmsghdr,
    bytes: [MaybeUninit<u8>; CONTROL_LEN],
}

/// Room for the descriptors and the credentials, each with its header.
const CONTROL_LEN: usize = 4 * MOST + 128;

/// `recvmsg(2)`, never waiting. Of a message that is longer than `buf` the rest is lost. Raw,
/// because a sender may have process id 0, for which rustix has no type.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive(from: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<ReceivedMessage> {
    let mut control = Control { bytes: [MaybeUninit::uninit(); CONTROL_LEN] };
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: all-zero is a valid `msghdr`: null pointers and zero lengths.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC;
    // SAFETY: `msg` points to `iov`, which covers `buf`, and to `control`; all outlive the call.
    let len = unsafe { raw::syscall!(libc::SYS_recvmsg, from.as_raw_fd(), &raw mut msg, flags) }?;
    let is_cut = msg.msg_flags & libc::MSG_CTRUNC != 0;
    let mut received = ReceivedMessage { len, fds: Vec::new(), is_cut, sender: None };
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
                    // SAFETY: the kernel has just made this descriptor; it has no other owner.
                    let fd = unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(raw)) };
                    received.fds.push(fd.into());
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                // SAFETY: the kernel wrote a `ucred` there; plain integers, any value is valid.
                let cred: libc::ucred = unsafe { ptr::read_unaligned(data.cast()) };
                received.sender = Some(cred.into());
            }
            _ => {}
        }
        // SAFETY: `at` is a header of `msg`'s control buffer.
        at = unsafe { libc::CMSG_NXTHDR(&raw const msg, at) };
    }
    Ok(received)
}

#[cfg(test)]
mod tests;
