//! TCP first, then a faster path: a kernel TCP socket (the *twin*) that may move to a ring in
//! shared memory at an exact byte offset, and back.
//!
//! The preload library and the async adapter both build on [`Twin`]. A twin does not own its
//! descriptor: the program does. Every call therefore takes the descriptor it came in by (a `dup`
//! has another number for the same twin).
//!
//! # How a direction moves
//!
//! Once the two ends have found each other (`pair`), an rsockets stream on the soft device exists
//! beside the TCP connection, unused. Each direction moves on its own, by messages in that stream
//! (`proto::Ext`), in order with its data:
//!
//! 1. The *reader* invites (`Ready`), when none of its threads sleeps where the ring cannot
//!    wake it and its own count of bytes agrees with the kernel's.
//! 2. The *writer* moves up (`Up`, with the offset at which TCP ends) and writes to the ring.
//! 3. The reader takes TCP up to that offset, then the ring.
//! 4. The writer may move down at any time, alone: `Down`, then TCP. It does so when asked
//!    (`Leave`), when pinned, and when the ring is full and the reader idle: TCP's buffers then
//!    take what they would have taken.
//!
//! What is handed to a program without rings leaves the ring first, or has its bytes carried on by a
//! process of ours (`handover`, `relay`).
//!
//! Between hosts the stream lies on an RDMA device (`far`, `path`). Then TCP may be faster than the ring, so a
//! writer waits after `Down` until the device has brought it; and what was sent may be lost, so the
//! end of TCP counts only with an end on the ring.
//!
//! A peer that speaks rsockets alone has no TCP to go back to: there the stream on the device is all there is
//! (`door`, `call`, `sole`), and nothing of the above applies.
//!
//! A reader that has invited and not yet seen `Up` reads TCP only as far as the kernel's queue
//! reached *before* it looked for `Up`: bytes written after a later `Down` cannot be among them.

mod call;
mod detached;
mod door;
mod far;
mod handover;
mod holders;
mod iomap;
mod offset;
mod pair;
mod path;
mod pin;
mod poll;
mod relay;
mod rx;
mod sole;
mod standin;
mod state;
mod substitute;
#[cfg(test)]
mod tests;
mod tuple;
mod tx;
mod verify;
mod waiting;

pub use call::{call, is_called};
pub use door::Door;
pub use handover::{Claim, Need};
pub use iomap::Opened;
pub use pin::PinReason;
pub use poll::{PollEntry, poll};
pub use waiting::{Doorbell, Mark};

use crate::engine::{Config, ExtSeen};
use crate::interrupt::Section;
use crate::proto::{iomap_size_from_wire, iomap_size_to_wire};
use crate::stat::{self, Direction};
use crate::sys;
use pair::{Search, Step, Subject};
use path::{Path, Place};
use rsock_verbs::family::FamilyBox;
use rustix::fd::{BorrowedFd, RawFd};
use rustix::net::Shutdown;
use rx::queued;
use state::{
    Directions, FLAG_BROKEN, FLAG_PAIRED, FLAG_PINNED, FLAG_RX_PLAIN, FLAG_TX_PLAIN, RxMode, TxMode,
};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tuple::Tuple;

/// One accelerated-or-not TCP connection.
///
/// Safe to share between threads; sending and receiving do not disturb each other.
#[derive(Debug)]
pub struct Twin {
    dirs: FamilyBox<Directions>,
    /// The search for the peer. Private to the process: a forked child does not search.
    search: Mutex<Search>,
    path: Place,
    /// Which end of the connection it is, for a peer on another host.
    side: Option<Side>,
    tuple: OnceLock<Option<Tuple>>,
    looking_since: OnceLock<std::time::Instant>,
    /// Inode of the socket, from the first look on: a short connection does not ask for it.
    inode: OnceLock<u64>,
    stat: OnceLock<stat::Slot>,
    stand_in: Mutex<Option<standin::StandIn>>,
    /// Buffers that the peer may open to us at once.
    iomap_slots: u16,
    /// In the place of TCP, where there is none. After the path, which must go first.
    sole: Option<sole::Sole>,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that called `connect`.
    Connected,
    /// The one that came out of `accept`.
    Accepted,
}

/// How a wait on the ring was spent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    Spinning,
    Sleeping,
}

/// Calls after which a connection begins to look for its peer: a short one never pays for it.
const FIRST_LOOK: u32 = 6;
/// Calls, and time since the first look, after which a connection whose peer never showed itself
/// stops looking. Both: a writer of small pieces makes a thousand calls before its reader makes six.
const GIVE_UP: (u32, Duration) = (1024, Duration::from_secs(1));
/// The time for a peer on another host, whose first request may be lost, and who may have to load the libraries of
/// its device first.
const FAR_GIVE_UP: Duration = Duration::from_secs(15);
/// How long a full ring may stay without progress before a writer moves to TCP.
const PATIENCE: Duration = Duration::from_millis(5);
/// The same between hosts, where news of progress take longer.
const FAR_PATIENCE: Duration = Duration::from_millis(20);
/// How long the end of a stream between hosts may take to arrive. A peer that is there answers within the
/// network's round trip.
const LINGER: Duration = Duration::from_secs(5);
/// How long the cheapest sleep may last before descriptors are watched too.
const PARK: Duration = Duration::from_millis(5);

impl Twin {
    /// Wraps a connected TCP socket through which no byte has passed yet. `None` if it can never be accelerated
    /// (switched off, no memory): then the caller forgets about it. With a peer on another host the two
    /// sides do different things; without a side the connection stays on TCP then.
    #[must_use]
    pub fn adopt(fd: BorrowedFd<'_>, side: Option<Side>) -> Option<Self> {
        Self::adopt_with(fd, side, 0)
    }

    /// As [`Self::adopt`], with room for that many buffers that the peer may [open](Self::open) to us. The
    /// wire knows 0 to 128, then multiples of 256 up to 32512: others are rounded down.
    #[must_use]
    pub fn adopt_with(_fd: BorrowedFd<'_>, side: Option<Side>, iomap_slots: u16) -> Option<Self> {
        if !crate::env::is_enabled() {
            return None;
        }
        Some(Self {
            dirs: FamilyBox::new(Directions::new())?,
            search: Mutex::new(Search::new()),
            path: Place::default(),
            side,
            tuple: OnceLock::new(),
            looking_since: OnceLock::new(),
            inode: OnceLock::new(),
            stat: OnceLock::new(),
            stand_in: Mutex::new(None),
            iomap_slots: iomap_size_from_wire(iomap_size_to_wire(iomap_slots.into())),
            sole: None,
        })
    }

    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
        {
            let _section = Section::enter();
            let tx = self.dirs.tx.0.lock();
            if how != Shutdown::Write {
                self.dirs.raise(state::FLAG_RX_SHUT);
            }
            if how != Shutdown::Read {
                // WIRE: the end of the stream goes into the ring before it reaches the socket, so
                // that a FIN without it means that the peer closed or died.
                if let Some(path) = self.path()
                    && (tx.mode == TxMode::Ring || path.is_far())
                {
                    path.shutdown(std::net::Shutdown::Write);
                }
                self.dirs.raise(state::FLAG_TX_SHUT);
            }
        }
        Ok(rustix::net::shutdown(fd, how)?)
    }

    /// Bytes that a `recv` could return now (`FIONREAD`).
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`.
    pub fn bytes_readable(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let Some(path) = self.path() else { return queued(fd) };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        // Before looking for `Up`: bytes written after a later `Down` cannot be among them.
        let early = queued(fd)?;
        if self.steer_rx(fd, &mut rx, path).is_err() {
            return Ok(0);
        }
        Ok(match rx.mode {
            RxMode::Tcp | RxMode::Invited => early,
            RxMode::Clamped => {
                let left = usize::try_from(rx.limit.wrapping_sub(rx.tcp_bytes)).unwrap_or(0);
                if early < left { early } else { left + path.bytes_readable() }
            }
            RxMode::Ring => {
                // In this order: with `Down` seen, all that came before it is counted.
                let is_last = path.ext_seen().contains(ExtSeen::DOWN);
                path.bytes_readable() + if is_last { queued(fd)? } else { 0 }
            }
        })
    }

    /// Bytes sent and not yet taken by the peer's kernel (`SIOCOUTQ`); bytes in the ring have been
    /// taken.
    ///
    /// # Errors
    /// As `ioctl(SIOCOUTQ)`.
    pub fn bytes_unsent(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        if self.is_sole() {
            return Ok(0);
        }
        offset::queued(fd)
    }

    /// Whether the kernel alone knows this stream's readiness, now and for ever. Then `poll` and
    /// friends may go straight to the kernel.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.dirs.has_all(FLAG_RX_PLAIN | FLAG_TX_PLAIN)
    }

    /// Leaves the fast path for good: what is written from now on goes to TCP. Needs no answer of
    /// the peer and never blocks. Does nothing where there is no TCP.
    pub fn pin(&self, fd: BorrowedFd<'_>, reason: PinReason) {
        if self.is_sole() {
            return;
        }
        let _section = Section::enter();
        self.show(fd);
        self.pin_for(reason);
        {
            let mut tx = self.dirs.tx.0.lock();
            self.settle_tx(&mut tx);
        }
        {
            let mut rx = self.dirs.rx.0.lock();
            self.settle_rx(&mut rx);
        }
        if let Ok(mut search) = self.search.try_lock() {
            *search = Search::Over;
        }
    }

    /// The program is about to close its last descriptor of this twin (the kernel decides whether
    /// it really is the last of all). Bytes that nobody read make the close a reset, as on TCP.
    pub fn close(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path() else { return };
        if self.is_sole() {
            return self.close_sole(fd, path);
        }
        let shared =
            matches!(self.pin_reason(), PinReason::Fork | PinReason::Passed) || self.is_shared();
        if !shared && path.bytes_readable() != 0 || !self.end(path) {
            let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        }
    }

    /// The process is about to end, and with it what it has not brought to another host yet.
    pub fn finish(&self) {
        if let Some(path) = self.path() {
            self.end(path);
        }
    }

    /// Ends a stream between hosts and waits until the peer's device has everything, which takes no call of
    /// the peer's. False if it may not.
    fn end(&self, path: &Path) -> bool {
        if !path.is_far() || self.has(FLAG_BROKEN) {
            return true;
        }
        let _section = Section::enter();
        path.shutdown(std::net::Shutdown::Both);
        let deadline = sys::now().checked_add(LINGER);
        loop {
            let mark = path.mark();
            if path.has_failed() {
                // Nothing was under way on the ring if it was not in use.
                return self.dirs.tx.0.lock().mode == TxMode::Tcp;
            }
            if path.is_drained() {
                return true;
            }
            let left = sys::time_left(deadline).unwrap_or_default();
            if left.is_zero() {
                return false;
            }
            let _ = path.park(mark, left.min(PARK));
        }
    }

    /// The path, if it is of use to this process.
    #[inline]
    fn path(&self) -> Option<&Path> {
        self.path.get().map(|path| &**path).filter(|path| !path.is_inherited())
    }

    /// The descriptor to be watched beside the socket and the ring while waiting: of the search, or of the
    /// connection between hosts.
    fn side_fd(&self) -> Option<RawFd> {
        match self.path() {
            Some(path) => path.fate_fd(),
            None => self.search_fd(),
        }
    }

    /// Does what is to be done when [`Self::side_fd`] has become readable.
    fn on_side_ready(&self, fd: BorrowedFd<'_>) {
        match self.path() {
            Some(path) => self.mind_fate(path),
            None => self.on_search_ready(fd),
        }
    }

    /// Ends the connection between hosts, which is broken. By TCP's end, which is said again until it is heard,
    /// as a reset is not: without an end on the ring it is none to the peer's reader, nor to ours.
    fn break_connection(&self, fd: BorrowedFd<'_>) -> io::Error {
        self.pin_for(PinReason::PathFailed);
        if !self.has(FLAG_BROKEN) {
            self.dirs.raise(FLAG_BROKEN);
            // Not the kernel's to answer for any more.
            self.dirs.lower(FLAG_RX_PLAIN);
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
            if let Some(path) = self.path() {
                path.cut();
            }
        }
        rustix::io::Errno::CONNRESET.into()
    }

    /// Why the stream stays on TCP; `None` if it need not.
    #[must_use]
    pub fn pin_reason(&self) -> PinReason {
        self.dirs.pin_reason()
    }

    /// Whether `fd` is the socket that this twin began with, and not a successor of its number. `None`:
    /// nobody knows, nor needs to, because nothing has left TCP and the peer has not been looked for.
    #[must_use]
    pub fn is_same_socket(&self, fd: BorrowedFd<'_>) -> Option<bool> {
        self.inode.get().map(|known| inode_of(fd) == *known)
    }

    /// Whether sending and receiving use the ring now.
    #[must_use]
    pub fn on_ring(&self) -> (bool, bool) {
        let tx = self.dirs.tx.0.lock().mode == TxMode::Ring;
        let rx = matches!(self.dirs.rx.0.lock().mode, RxMode::Ring | RxMode::Clamped);
        (tx, rx)
    }

    fn has(&self, flag: u32) -> bool {
        self.dirs.has(flag)
    }

    /// Counts a call, and looks for the peer when it is time: at doubling call counts for what costs
    /// system calls, more often once something is under way.
    fn count(&self, fd: BorrowedFd<'_>, calls: &mut u32) {
        *calls = calls.wrapping_add(1);
        let n = *calls;
        if n >= FIRST_LOOK && !self.has(FLAG_PAIRED | FLAG_PINNED) {
            let is_due = n == FIRST_LOOK || n.is_multiple_of(if n < 1024 { 8 } else { 64 });
            if is_due {
                self.look(fd, n);
            }
        }
    }

    /// Takes a step of the search, if no other thread does. Called with or without a direction's lock.
    #[cold]
    fn look(&self, fd: BorrowedFd<'_>, calls: u32) {
        let Ok(mut search) = self.search.try_lock() else { return };
        if search.is_over() || self.has(FLAG_PINNED) || self.is_shared() {
            return;
        }
        let since = *self.looking_since.get_or_init(sys::now);
        let give_up = if search.is_far() { FAR_GIVE_UP } else { GIVE_UP.1 };
        if calls >= GIVE_UP.0 && search.is_unanswered() && since.elapsed() >= give_up {
            *search = Search::Over;
            drop(search);
            self.give_up(PinReason::NoPeer);
            return;
        }
        if search.fd().is_none() && calls != FIRST_LOOK && !calls.is_power_of_two() {
            return;
        }
        self.show(fd);
        if sys::is_crowded(fd) {
            drop(search);
            self.give_up(PinReason::Resources);
            return;
        }
        let tuple =
            self.tuple.get_or_init(|| Tuple::of(fd).ok().flatten().filter(|t| t.role().is_some()));
        let Some(tuple) = tuple else {
            drop(search);
            self.give_up(PinReason::Remote);
            return;
        };
        let config = Config { iomap_slots: self.iomap_slots, ..Config::default() };
        let subject = Subject { socket: fd, tuple, config: &config, side: self.side };
        match search.step(subject) {
            Step::Pending => {}
            Step::Paired(stream) => {
                if stream.has_extensions() && self.path.set(stream).is_ok() {
                    self.dirs.raise(FLAG_PAIRED);
                }
            }
            Step::Failed(reason) => {
                drop(search);
                self.give_up(reason);
            }
        }
    }

    /// Pins, and says why where operators look.
    fn pin_for(&self, reason: PinReason) {
        if self.is_sole() {
            return;
        }
        self.dirs.pin(reason);
        if let Some(stat) = self.stat.get() {
            stat.set_pin(self.pin_reason());
        }
    }

    /// Opens this connection's line for `rsock stat`. Not for short connections: it costs a few
    /// system calls.
    fn show(&self, fd: BorrowedFd<'_>) {
        self.stat.get_or_init(|| {
            let none = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
            let [local, peer] = self.sole_addrs().unwrap_or_else(|| {
                Tuple::of(fd).ok().flatten().map_or([none; 2], |t| [t.local, t.peer])
            });
            let inode = *self.inode.get_or_init(|| inode_of(fd));
            let slot = stat::Slot::open(local, peer, inode);
            let (tx, rx) = (self.dirs.tx.0.try_lock(), self.dirs.rx.0.try_lock());
            if let (Some(tx), Some(rx)) = (tx, rx) {
                slot.add_bytes(Direction::Send, stat::Path::Tcp, tx.tcp_bytes);
                slot.add_bytes(Direction::Recv, stat::Path::Tcp, rx.tcp_bytes);
            }
            slot
        });
    }

    /// Counts bytes moved.
    #[inline]
    fn count_bytes(&self, direction: Direction, path: stat::Path, n: usize) {
        if let Some(stat) = self.stat.get() {
            stat.add_bytes(direction, path, n as u64);
        }
    }

    /// Counts a wait on the ring.
    fn count_wait(&self, direction: Direction, waited: Waited) {
        if let Some(stat) = self.stat.get() {
            match waited {
                Waited::Spinning => stat.add_spin(direction),
                Waited::Sleeping => stat.add_wakeup(direction),
            }
        }
    }

    /// Notes how a direction travels from now on.
    fn note_path(&self, direction: Direction, path: stat::Path) {
        if let Some(stat) = self.stat.get() {
            stat.set_path(direction, path);
        }
    }

    /// Stays on TCP. Nothing was moved yet, so both directions are plain at once.
    fn give_up(&self, reason: PinReason) {
        self.pin_for(reason);
        self.dirs.raise(FLAG_RX_PLAIN | FLAG_TX_PLAIN);
    }

    /// Continues the search when its descriptor became readable while waiting.
    fn on_search_ready(&self, fd: BorrowedFd<'_>) {
        let _section = Section::enter();
        self.look(fd, FIRST_LOOK);
    }

    /// The search's descriptor, to be watched while waiting.
    fn search_fd(&self) -> Option<RawFd> {
        if self.has(FLAG_PAIRED | FLAG_PINNED) {
            return None;
        }
        self.search.lock().unwrap_or_else(PoisonError::into_inner).fd()
    }
}

/// The inode of what `fd` names, or 0.
fn inode_of(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |s| s.st_ino)
}
