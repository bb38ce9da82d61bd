//! A stream is about to be used by somebody who knows nothing of rings: a program that this process
//! becomes by `exec`, or starts; another process that is sent a descriptor; libc's own streams.
//!
//! All they have is the TCP socket, so all that the peer has written, and will write, to the ring
//! must come out of a socket. Mostly the kernel's own will do: the peer is asked to leave the ring, does
//! so at once if it is waiting for anything, and nothing lies there unread. Where that fails within
//! a short time a process that nobody sees stays behind with the stream and carries the bytes
//! ([`crate::accelerate::handoff::relay`]); the program goes on with another socket in the old one's place.

pub(super) mod detached_process;
mod relay;

use crate::accelerate::ask::Subject;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_RX_PLAIN, FLAG_RX_SHUT, FLAG_TX_PLAIN, FLAG_TX_SHUT};
use crate::accelerate::{AcceleratedStream, FLAG_PINNED, FallbackReason, Search, socket_proxy};
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::switch::{Fault, Left, Receiver, Settled};
use rsock_verbs::family;
use rsock_verbs::soft;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::Shutdown;
use std::io;
use std::time::Duration;

/// How long a peer may take to leave the ring. One that is in a call, or comes back to its stream at
/// all often, does so much faster.
const BOUND: Duration = Duration::from_millis(10);
/// The same for a peer on another host.
const FAR_BOUND: Duration = Duration::from_millis(200);

/// Who may want what lies unread in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The new program, for certain: the stream is its standard input, say.
    Certain,
    /// The new program, unless another process still holds the stream: a descriptor may also be
    /// inherited for no better reason than that nobody closed it.
    Last,
}

/// What is going to be done through the kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Writing.
    Write,
    /// Reading, and perhaps writing.
    Both,
}

impl AcceleratedStream {
    /// Pins the stream for `reason`, and waits, some milliseconds at most, until the kernel alone can do
    /// what is needed. Says whether it can; if not, there is [`Self::hand_over`].
    #[must_use]
    pub fn leave_ring(&self, fd: BorrowedFd<'_>, need: Need, reason: FallbackReason) -> bool {
        if self.is_plain() {
            return true;
        }
        if self.is_sole() {
            return false;
        }
        self.pin(fd, reason);
        let Some(path) = self.path() else { return self.is_settled() };
        let deadline = sys::now().checked_add(if path.is_far() { FAR_BOUND } else { BOUND });
        loop {
            let mark = path.mark();
            let has_left = self.leave(fd, path, need);
            if has_left == Left::Yes {
                return true;
            }
            let left = sys::time_left(deadline).unwrap_or_default();
            // What is on the ring has to be read: there is no reason to wait for more.
            if left.is_zero() || has_left == Left::BytesOnRing {
                return false;
            }
            let _ = path.park(mark, left);
        }
    }

    /// Leaves the stream to a process of its own, after [`Self::leave_ring`] has failed. The answer
    /// is the socket that must take the place of every descriptor of the stream in this process. This
    /// process must not use the twin again then; it may drop it, unless it is a `vfork` child.
    /// `None` if the ring has been left meanwhile, and there is nothing to do. Where there is no TCP it is
    /// a socket whose peer has reset it, and the stream ends.
    ///
    /// # Errors
    /// When a process or a descriptor is needed and cannot be had: `EAGAIN`, `EMFILE`... Then the
    /// stream is as it was.
    pub fn hand_over(&self, fd: BorrowedFd<'_>, claim: Claim) -> io::Result<Option<OwnedFd>> {
        if self.is_sole() {
            self.finish();
            return self.reset_socket(fd).map(Some);
        }
        let Some(path) = self.path().filter(|_| !self.is_plain()) else { return Ok(None) };
        if self.leave(fd, path, Need::Both) == Left::Yes {
            return Ok(None);
        }
        let Some(stream) = path.soft() else {
            // No process of ours could go on with a device of this one. What lies on the ring would be
            // lost to whoever goes on with the socket, so the connection is.
            sys::disconnect(fd);
            self.dirs.raise(FLAG_TX_PLAIN | FLAG_RX_PLAIN);
            return Ok(None);
        };
        let (near, far) = socket_proxy::pair(fd)?;
        // What this end is done with stays so.
        for (flag, how) in [(FLAG_TX_SHUT, Shutdown::Write), (FLAG_RX_SHUT, Shutdown::Read)] {
            if self.has(flag) {
                let _ = rustix::net::shutdown(&near, how);
            }
        }
        // The blocks of this stream get a second owner, as by a fork of the program's.
        family::note_fork();
        let holders = &self.dirs.holders.0;
        let keep = [Some(fd), Some(far.as_fd()), Some(stream.link_fd()), soft::ringer()];
        let note = |pid| holders.add(pid);
        let begun = detached_process::spawn(keep, note, || {
            // Its descriptor is not among those kept. Nobody else is at it, or it is another's for good.
            if let Ok(mut stand_in) = self.stand_in.try_lock() {
                std::mem::forget(stand_in.take());
            }
            relay::run(self, fd, far.as_fd(), claim);
        });
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

    /// Whether another process holds this stream too, as far as is known.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.dirs.holders.0.has_others(family::process().0)
    }

    /// The process is about to fork. A stream that has found its peer goes back to TCP, for good; another does
    /// not look for its peer as long as more than one process holds it.
    pub fn before_fork(&self, fd: BorrowedFd<'_>) {
        if self.path.get().is_none() && !self.has(FLAG_PINNED) {
            // In this order: who looks sees either.
            self.dirs.holders.0.expect_child();
            if let Ok(mut search) = self.search.try_lock() {
                // The child must not inherit what the peer will find.
                if !search.is_over() {
                    *search = Search::new();
                }
                if self.path.get().is_none() {
                    return;
                }
            }
        }
        if self.is_sole() {
            // The parent goes on with it; the child is told.
            return;
        }
        match self.path() {
            // The child could do nothing with what the device brings.
            Some(path) if path.is_far() => {
                let _ = self.leave_ring(fd, Need::Both, FallbackReason::Fork);
            }
            _ => {
                // A close is no reset as long as a child may hold the stream.
                self.dirs.holders.0.expect_child();
                self.pin(fd, FallbackReason::Fork);
            }
        }
    }

    /// One more process holds this stream: this one, a forked child.
    pub fn note_inherited(&self) {
        self.dirs.holders.0.add_child(family::process().0);
    }

    /// This process holds this stream no more: it has closed its last descriptor.
    pub fn note_released(&self) {
        self.dirs.holders.0.remove(family::process().0);
    }

    /// Whether the kernel alone has everything, as a child can tell that has no part in the ring.
    fn is_settled(&self) -> bool {
        let is_sending_on_tcp = self.dirs.tx.0.lock().switch.is_on_tcp();
        is_sending_on_tcp && self.dirs.rx.0.lock().switch.is_on_tcp()
    }

    /// How far the stream is from the kernel alone, in the directions that are needed. It has been pinned.
    fn leave(&self, fd: BorrowedFd<'_>, path: &Path, need: Need) -> Left {
        let _section = Section::enter();
        {
            let mut tx = self.dirs.tx.0.lock();
            match self.settle_sending(fd, &mut tx) {
                Settled::Yes if need == Need::Write => return Left::Yes,
                Settled::Yes => {}
                Settled::NotYet => return Left::NotYet,
                Settled::BreakOff => return Left::Fault(Fault::Lost),
                Settled::Fault(fault) => return Left::Fault(fault),
            }
        }
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        let left = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::leave);
        if rx.switch.is_on_tcp() {
            self.quiet_stand_in(&rx, path);
        }
        left.unwrap_or(Left::NotYet)
    }
}
