//! Handoff: a stream is about to be used by code that knows no ring: a program that this process
//! becomes by `exec`, or starts; another process that is sent a descriptor; libc's own streams.
//!
//! Such code has the TCP socket alone, so all that the peer has written, and will write, to the
//! ring must come out of a socket. Mostly the kernel's own will do: the peer is asked to leave the
//! ring, does so at once if it is waiting for anything, and nothing lies there unread. Where that
//! fails within a short time, a process that the program does not see keeps the stream and carries
//! its bytes ([`crate::accelerate::handoff::relay`]); the program goes on with a socket proxy.

mod calls;
pub(super) mod detached_process;
mod relay;

use crate::accelerate::ask::Subject;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_RX_PLAIN, FLAG_RX_SHUT, FLAG_TX_PLAIN, FLAG_TX_SHUT};
use crate::accelerate::{AcceleratedStream, FLAG_PINNED, FallbackReason, Search, socket_proxy};
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::switch::{DirectionSwitch, Fault, LeaveStatus, Receiver, SettleStatus};
use rsock_verbs::family;
use rsock_verbs::soft;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::Shutdown;
use std::io;
use std::time::Duration;

/// How long a peer may take to leave the ring. A peer that is in a call, or uses its stream often,
/// leaves much faster.
const LEAVE_LIMIT: Duration = Duration::from_millis(10);
/// The same for a peer on another host.
const REMOTE_LEAVE_LIMIT: Duration = Duration::from_millis(200);

/// What entitles the relay to read the bytes that lie unread in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The new program certainly reads them: the stream is its standard input, say.
    Certain,
    /// The new program reads them, unless another process still holds the stream: a descriptor may
    /// also be inherited only because it was not closed.
    Last,
}

/// What the program is going to do through the kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Writing.
    Write,
    /// Reading, and perhaps writing.
    Both,
}

/// Waits, until `limit` has passed at most, until the kernel alone can serve these streams, which
/// have been pinned. Bytes that lie on a ring are not waited for. Returns whether there is nothing
/// to wait for any more.
pub fn await_leave(streams: &[(&AcceleratedStream, BorrowedFd<'_>)], limit: Duration) -> bool {
    let deadline = sys::now().checked_add(limit);
    let mut waiting: Vec<_> = streams.iter().collect();
    loop {
        let mut first = None;
        waiting.retain(|(stream, fd)| {
            let Some(path) = stream.path().filter(|_| !stream.is_plain()) else { return false };
            let mark = path.mark();
            let is_on_the_way = stream.leave(*fd, path, Need::Both) == LeaveStatus::NotYet;
            if is_on_the_way {
                first.get_or_insert((path, mark));
            }
            is_on_the_way
        });
        let Some((path, mark)) = first else { return true };
        let left = sys::time_left(deadline).unwrap_or_default();
        if left.is_zero() {
            return false;
        }
        let _ = path.park(mark, left);
    }
}

impl AcceleratedStream {
    /// Pins the stream for `reason`, and waits, some milliseconds at most, until the kernel alone
    /// can do what is needed. Returns whether it can; if not, there is [`Self::hand_off`].
    #[must_use]
    pub fn leave_ring(&self, fd: BorrowedFd<'_>, need: Need, reason: FallbackReason) -> bool {
        if self.is_plain() {
            return true;
        }
        self.pin(fd, reason);
        let Some(path) = self.path() else { return self.is_settled() };
        let deadline =
            sys::now().checked_add(if path.is_remote() { REMOTE_LEAVE_LIMIT } else { LEAVE_LIMIT });
        loop {
            let mark = path.mark();
            let has_left = self.leave(fd, path, need);
            if has_left == LeaveStatus::Yes {
                return true;
            }
            let left = sys::time_left(deadline).unwrap_or_default();
            // The bytes on the ring have to be read first: there is no reason to wait longer.
            if left.is_zero() || has_left == LeaveStatus::BytesOnRing {
                return false;
            }
            let _ = path.park(mark, left);
        }
    }

    /// Leaves the stream to a relay, after [`Self::leave_ring`] has failed. The answer is the
    /// socket that must take the place of every descriptor of the stream in this process. This
    /// process must not use the stream again then; it may drop it, unless it is a `vfork` child.
    /// `None` if the ring has been left meanwhile, and there is nothing to do.
    ///
    /// # Errors
    /// When a process or a descriptor is needed and cannot be had: `EAGAIN`, `EMFILE`... Then the
    /// stream is unchanged.
    pub fn hand_off(&self, fd: BorrowedFd<'_>, claim: Claim) -> io::Result<Option<OwnedFd>> {
        let Some(path) = self.path().filter(|_| !self.is_plain()) else { return Ok(None) };
        if self.leave(fd, path, Need::Both) == LeaveStatus::Yes {
            return Ok(None);
        }
        let Some(stream) = path.soft() else {
            // A relay could not use the device. The bytes on the ring would be lost to the program
            // that goes on with the socket, so the connection is broken.
            sys::disconnect(fd);
            self.dirs.raise(FLAG_TX_PLAIN | FLAG_RX_PLAIN);
            return Ok(None);
        };
        let (proxy, kept) = socket_proxy::pair(fd)?;
        // A direction that this end has shut down stays so.
        for (flag, how) in [(FLAG_TX_SHUT, Shutdown::Write), (FLAG_RX_SHUT, Shutdown::Read)] {
            if self.has(flag) {
                let _ = rustix::net::shutdown(&proxy, how);
            }
        }
        // The relay becomes a second owner of this stream's memory, as a forked child of the
        // program would.
        family::note_fork();
        let holders = &self.dirs.holders.0;
        let keep = [Some(fd), Some(kept.as_fd()), Some(stream.link_fd()), soft::ringer()];
        let note = |pid| holders.add(pid);
        let begun = detached_process::spawn(keep, note, || {
            // The descriptor of the epoll proxy is not among those kept.
            self.epoll_proxy.forget();
            relay::run(self, fd, kept.as_fd(), claim);
        });
        sys::close(kept);
        match begun {
            Ok(()) => {
                // Not `process`: a `vfork` child is not a holder, and its parent remains one.
                holders.remove(rustix::process::getpid().as_raw_nonzero().get().cast_unsigned());
                Ok(Some(proxy))
            }
            Err(e) => {
                sys::close(proxy);
                Err(e)
            }
        }
    }

    /// Whether another process holds this stream too, as far as is known.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.dirs.holders.0.has_others(family::process().0)
    }

    /// Forgets processes that held this stream and have become other programs.
    pub(super) fn forget_former_holders(&self, fd: BorrowedFd<'_>) {
        if let Ok(stat) = rustix::fs::fstat(fd) {
            self.dirs.holders.0.forget_former(family::process().0, stat.st_ino);
        }
    }

    /// To be called when the process is about to fork. A stream that has found its peer goes back
    /// to TCP, for good; another does not search for its peer as long as more than one process
    /// holds it.
    pub fn before_fork(&self, fd: BorrowedFd<'_>) {
        if self.path.get().is_none() && !self.has(FLAG_PINNED) {
            // In this order: a thread that searches sees one or the other.
            self.dirs.holders.0.expect_child();
            if let Ok(mut search) = self.search.try_lock() {
                // The child must not inherit the meeting point that the peer will find.
                if !search.is_over() {
                    *search = Search::new();
                }
                if self.path.get().is_none() {
                    return;
                }
            }
        }
        match self.path() {
            // The child could not use what the device brings.
            Some(path) if path.is_remote() => {
                let _ = self.leave_ring(fd, Need::Both, FallbackReason::Fork);
            }
            _ => {
                // A close is not a reset as long as a child may hold the stream.
                self.dirs.holders.0.expect_child();
                self.pin(fd, FallbackReason::Fork);
            }
        }
    }

    /// To be called after [`Self::before_fork`], for a child that will not call
    /// [`Self::note_inherited`]: other processes hold this stream for good.
    pub fn note_unnoted_child(&self) {
        self.dirs.holders.0.note_unknown();
    }

    /// To be called in a forked child: this process holds the stream too.
    pub fn note_inherited(&self) {
        self.dirs.holders.0.add_child(family::process().0);
    }

    /// To be called when this process has closed its last descriptor of the stream.
    pub fn note_released(&self) {
        self.dirs.holders.0.remove(family::process().0);
    }

    /// Whether the kernel alone has everything, for a child that has no part in the ring.
    fn is_settled(&self) -> bool {
        let is_sending_on_tcp = self.dirs.tx.0.lock().switch.is_on_tcp();
        is_sending_on_tcp && self.dirs.rx.0.lock().switch.is_on_tcp()
    }

    /// How far the stream is from being the kernel's alone, in the directions that are needed. It
    /// has been pinned.
    fn leave(&self, fd: BorrowedFd<'_>, path: &Path, need: Need) -> LeaveStatus {
        let _section = Section::enter();
        {
            let mut tx = self.dirs.tx.0.lock();
            match self.settle_sending(fd, &mut tx) {
                SettleStatus::Yes if need == Need::Write => return LeaveStatus::Yes,
                SettleStatus::Yes => {}
                SettleStatus::NotYet => return LeaveStatus::NotYet,
                SettleStatus::BreakOff => return LeaveStatus::Fault(Fault::Lost),
                SettleStatus::Fault(fault) => return LeaveStatus::Fault(fault),
            }
        }
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        let left = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::leave);
        if rx.switch.is_on_tcp() {
            self.quiet_epoll_proxy(&rx, path);
        }
        left.unwrap_or(LeaveStatus::NotYet)
    }
}
