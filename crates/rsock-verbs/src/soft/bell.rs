//! Doorbells: a descriptor or two of a sleeping thread, which other processes ring by their names.
//!
//! A bell is a datagram socket with a random abstract name. Ringing sends one byte without
//! blocking: a bell whose queue is full has rung already, and ringing a bell that is gone does
//! nothing. A peer that learns a name can wake the bell's owner for nothing, and no more.
//!
//! A bell that rings often gets a [pipe](super::doorbell_pipe) beside its socket, where its owner
//! watches both.

use super::doorbell_pipe::DoorbellPipe;
use super::hello::random;
use crate::device;
use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use crate::raw;
use crate::sync::waiter::BellName;
use crate::untrusted::{self, PeerSocket};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, sendto, socket_with,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Rings that one system call takes.
const AT_ONCE: usize = 4;

/// A thread's doorbell.
#[derive(Debug)]
pub struct SoftBell {
    id: u64,
    socket: PeerSocket,
    pipe: OnceLock<DoorbellPipe>,
    /// How often rings were found, up to [`BEFORE_PIPE`].
    n_found: AtomicU32,
}

/// Times that rings are found before a bell gets a pipe. A program that waits a few times and ends
/// has none.
const BEFORE_PIPE: u32 = 16;

/// The socket that all rings of this process family go through.
static RINGER: AtomicPtr<HighFd> = AtomicPtr::new(ptr::null_mut());

fn socket() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(verb("socket"))
}

fn address(id: u64) -> Result<SocketAddrUnix, Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut name = *b"rsock-bell-0000000000000000";
    for (i, digit) in name[11..].iter_mut().enumerate() {
        *digit = DIGITS[(id >> (60 - 4 * i) & 0xf) as usize];
    }
    SocketAddrUnix::new_abstract_name(&name).map_err(verb("bind"))
}

/// Opens the socket that rings are sent from, so that the data path need not. A process that cannot
/// ring must not have sleeping peers: they would never be woken.
pub(super) fn prepare() -> Result<(), Error> {
    if opened().is_none() {
        let fresh = Box::into_raw(Box::new(HighFd::new(socket()?)));
        // SYNC(ringer): publishes the box. Pairs with the Acquire in `opened`. No thread waits for
        // another one here: a forked child may lack that other thread.
        let none = ptr::null_mut();
        if RINGER.compare_exchange(none, fresh, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: made above and not published, because another thread was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    Ok(())
}

fn opened() -> Option<&'static HighFd> {
    // SAFETY: null, or a box that `prepare` published and that is never freed.
    unsafe { RINGER.load(Ordering::Acquire).as_ref() }
}

/// The descriptor that rings are sent from, for a process that closes every descriptor a stream
/// does not need.
#[must_use]
pub fn ringer() -> Option<BorrowedFd<'static>> {
    opened().map(AsFd::as_fd)
}

/// Rings bell `id`.
#[cold]
pub(super) fn ring(id: u64) {
    let Some(ringer) = opened() else { return };
    let Ok(to) = address(id) else { return };
    let ring = |from: &HighFd| sendto(from, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to);
    if ring(ringer) == Err(Errno::AGAIN) {
        // Either this bell's queue is full, so it has rung already; or pending rings of all bells
        // have used up this socket's send buffer. A fresh socket has its own send buffer.
        if let Ok(fresh) = socket() {
            let _ = ring(&HighFd::new(fresh));
        }
    }
    // Gone or refused: the bell has no owner left to wake.
}

impl SoftBell {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::make(true)
    }

    /// A bell as on a kernel that cannot refuse descriptors.
    #[cfg(test)]
    pub(crate) fn new_of_old_kernel() -> Result<Self, Error> {
        Self::make(false)
    }

    fn make(may_refuse: bool) -> Result<Self, Error> {
        prepare()?;
        let mut socket = PeerSocket::new(socket()?);
        if may_refuse {
            // Before the socket has a name that a sender could learn.
            socket.refuse_descriptors();
        }
        loop {
            let [a, b, c, d, e, f, g, h, ..] = random()?;
            let id = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            match bind(&socket, &address(id)?) {
                Ok(()) if id != 0 => {
                    let (pipe, n_found) = Default::default();
                    return Ok(Self { id, socket, pipe, n_found });
                }
                Ok(()) | Err(Errno::ADDRINUSE) => {}
                Err(e) => return Err(verb("bind")(e)),
            }
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How peers ring it.
    pub(crate) fn name(&self) -> BellName {
        let pipe = self.pipe.get().map_or(0, |pipe| pipe.name().to_word());
        BellName { id: self.id, pipe }
    }

    /// Gives the bell a pipe if it has rung often. From then on rings come by either, so its owner
    /// watches both; `watch` begins that, and says whether it could. To be called by one thread at
    /// a time.
    pub fn add_pipe_if_busy(&self, watch: impl FnOnce(BorrowedFd<'_>) -> bool) {
        if self.pipe.get().is_some() || self.n_found.load(Ordering::Relaxed) != BEFORE_PIPE {
            return;
        }
        // Where there is none now, there may be one after as many rings again.
        self.n_found.store(0, Ordering::Relaxed);
        if let Some(pipe) = DoorbellPipe::new()
            && watch(pipe.as_fd())
        {
            let _ = self.pipe.set(pipe);
        }
    }

    /// Takes all pending rings, of the pipe too; returns whether there were any.
    pub(super) fn take_all(&self) -> bool {
        let by_pipe = self.pipe.get().is_some_and(DoorbellPipe::empty);
        self.take() || by_pipe
    }

    /// Takes the pending rings of the socket; returns whether there were any.
    pub(super) fn take(&self) -> bool {
        let mut any = false;
        // Bounded: a hostile sender must not keep this thread here.
        for _ in 0..64 {
            // Descriptors that come with a ring are closed without waiting, here or by the kernel.
            let (is_rung, may_be_more) = if self.socket.refuses_descriptors() {
                let n = self.take_several();
                (n != 0, n == AT_ONCE)
            } else {
                let is_rung = untrusted::receive(self.socket.as_fd(), &mut [0; 1]).is_ok();
                (is_rung, is_rung)
            };
            any |= is_rung;
            if !may_be_more {
                break;
            }
        }
        let n_found = self.n_found.load(Ordering::Relaxed);
        if any && n_found < BEFORE_PIPE {
            self.n_found.store(n_found + 1, Ordering::Relaxed);
        }
        any
    }

    /// Takes up to [`AT_ONCE`] rings by one system call; returns how many.
    fn take_several(&self) -> usize {
        let mut byte = [0u8; 1];
        let mut slice = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: zeroes are a valid `mmsghdr`: no address, no buffers, no control data.
        let mut messages: [libc::mmsghdr; AT_ONCE] = unsafe { std::mem::zeroed() };
        for message in &mut messages {
            message.msg_hdr.msg_iov = &raw mut slice;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: as many headers as are said, each with one live buffer of one byte.
        let taken = unsafe {
            raw::syscall!(
                libc::SYS_recvmmsg,
                self.socket.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                AT_ONCE,
                libc::MSG_DONTWAIT,
                ptr::null_mut::<libc::timespec>(),
            )
        };
        taken.unwrap_or(0)
    }
}

impl AsFd for SoftBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl device::Bell for SoftBell {
    fn ring(&self) {
        ring(self.id);
    }

    fn drain(&self) {
        // What is left in the socket ends the next sleep.
        if !self.pipe.get().is_some_and(DoorbellPipe::empty) {
            self.take();
        }
    }

    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.get().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(bell: &SoftBell) -> bool {
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
    }

    #[test]
    fn a_bell_is_readable_from_ring_to_drain_however_often_it_rang() {
        let (a, b) = (SoftBell::new().expect("bell"), SoftBell::new().expect("bell"));
        for _ in 0..1000 {
            ring(a.id());
        }
        assert!(is_readable(&a) && !is_readable(&b));
        assert!(a.take());
        assert!(!is_readable(&a) && !a.take());
    }

    #[test]
    fn pending_rings_of_many_bells_do_not_keep_another_from_ringing() {
        // More rings than fit one socket's send buffer.
        let bells: Vec<_> = (0..400).map(|_| SoftBell::new().expect("bell")).collect();
        for bell in &bells {
            ring(bell.id());
        }
        assert_eq!(bells.iter().filter(|bell| bell.take()).count(), bells.len());
    }

    #[test]
    fn ringing_a_bell_that_is_gone_does_nothing() {
        let id = SoftBell::new().expect("bell").id();
        ring(id);
    }
}
