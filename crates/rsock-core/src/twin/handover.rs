//! A stream is about to belong to a program that knows nothing of rings: one that this process
//! becomes by `exec`, or starts.
//!
//! The kernel hands on the TCP socket and nothing else, so all that the peer has written, and will
//! write, to the ring must come out of a socket. Mostly the kernel's own will do: the peer is asked
//! to leave the ring, does so at once if it is waiting for input, and nothing lies there unread.
//! Where that fails within a short time a process that nobody sees stays behind with the stream and
//! carries the bytes ([`super::relay`]); the program goes on with another socket in the old one's
//! place.

use super::rx::has_ended;
use super::state::{FLAG_RX_PLAIN, FLAG_TX_PLAIN, RxMode};
use super::{PinReason, Twin, detached, relay, substitute};
use crate::engine::{ExtSeen, Stream};
use crate::interrupt::Section;
use crate::sys;
use rsock_verbs::family;
use rsock_verbs::soft::{self, Soft};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::time::Duration;

/// How long a peer may take to leave the ring. One that is in a call, or comes back to its stream at
/// all often, does so much faster.
const BOUND: Duration = Duration::from_millis(10);

/// Who may want what lies unread in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The new program, for certain: the stream is its standard input, say.
    Certain,
    /// The new program, unless another process still holds the stream: a descriptor may also be
    /// inherited for no better reason than that nobody closed it.
    Last,
}

impl Twin {
    /// Makes the stream usable through the kernel alone, for a program that is about to be given
    /// `fd`. `None` if it already is: then there is nothing more to do. Otherwise the answer is the
    /// socket that must take the place of every descriptor of the stream in this process, before
    /// the program starts; the twin must not be used again then, nor dropped.
    ///
    /// Waits for some milliseconds at most.
    ///
    /// # Errors
    /// When a process or a descriptor is needed and cannot be had: `EAGAIN`, `EMFILE`... Then the
    /// stream is as it was, but for being pinned to TCP.
    pub fn hand_over(&self, fd: BorrowedFd<'_>, claim: Claim) -> io::Result<Option<OwnedFd>> {
        if self.is_plain() {
            return Ok(None);
        }
        self.pin(fd, PinReason::Passed);
        let Some(path) = self.path.get() else { return Ok(None) };
        if self.leaves_ring(fd, path) {
            return Ok(None);
        }
        let (near, far) = substitute::pair(fd)?;
        // The blocks of this stream get a second owner, as by a fork of the program's.
        family::note_fork();
        let holders = &self.dirs.holders.0;
        let keep = [Some(fd), Some(far.as_fd()), Some(path.link_fd()), soft::ringer()];
        let note = |pid| holders.add(pid);
        let begun = detached::spawn(keep, note, || relay::run(self, fd, far.as_fd(), claim));
        sys::close(far);
        match begun {
            Ok(()) => {
                // Not `process`: a `vfork` child is no holder, and its parent stays one.
                holders.remove(rustix::process::getpid().as_raw_nonzero().get().cast_unsigned());
                Ok(Some(near))
            }
            Err(e) => {
                sys::close(near);
                Err(e)
            }
        }
    }

    /// One more process holds this stream: this one, a forked child.
    pub fn note_inherited(&self) {
        self.dirs.holders.0.add(family::process().0);
    }

    /// This process holds this stream no more: it has closed its last descriptor.
    pub fn note_released(&self) {
        self.dirs.holders.0.remove(family::process().0);
    }

    /// Waits until the ring is out of use in both directions, for a bounded time, and not at all
    /// once it is certain that somebody must read it. Says whether it is.
    fn leaves_ring(&self, fd: BorrowedFd<'_>, path: &Stream<Soft>) -> bool {
        let deadline = sys::now().checked_add(BOUND);
        loop {
            let mark = path.mark();
            if self.is_off_ring(fd, path) {
                return true;
            }
            let left = sys::time_left(deadline).unwrap_or_default();
            if left.is_zero() || path.bytes_readable() != 0 {
                return false;
            }
            let _ = path.park(mark, left);
        }
    }

    fn is_off_ring(&self, fd: BorrowedFd<'_>, path: &Stream<Soft>) -> bool {
        let _section = Section::enter();
        {
            let mut tx = self.dirs.tx.0.lock();
            self.settle_tx(&mut tx);
        }
        let mut rx = self.dirs.rx.0.lock();
        if !self.has(FLAG_TX_PLAIN) || self.steer_rx(fd, &mut rx, path).is_err() {
            return false;
        }
        if rx.mode == RxMode::Tcp {
            return self.has(FLAG_RX_PLAIN);
        }
        // In this order: after either, nothing more comes to the ring. What TCP still has up to the
        // offset at which the peer moved up, if it ever did, is followed by what it has after it.
        let is_last = path.ext_seen().contains(ExtSeen::DOWN) || has_ended(fd);
        is_last && path.bytes_readable() == 0
    }
}
