//! Accelerated streams: a kernel TCP socket whose stream may move to a ring, in shared memory or on
//! an RDMA device, at an exact byte offset, and back.
//!
//! The preload library and the async adapter both build on [`AcceleratedStream`]. It does not own
//! its descriptor: the program does. Every call therefore takes the descriptor that the program
//! named (a `dup` has another number for the same stream).
//!
//! # How a direction moves
//!
//! Once the two ends have found each other (`discovery`), an rsockets stream on the soft device
//! lies beside the TCP connection, unused. Each direction moves on its own, by messages in that
//! stream (`rsock_proto::Ext`), in order with its data:
//!
//! 1. The *reader* invites (`Ready`), when none of its threads sleeps where the ring cannot
//!    wake it and its own count of bytes equals the kernel's.
//! 2. The *writer* moves up (`Up`, with the offset at which TCP ends) and writes to the ring.
//! 3. The reader reads TCP up to that offset, then the ring.
//! 4. The writer may move down at any time, alone: `Down`, then TCP. It does so when the reader
//!    asks for it (`Leave`), when the stream is pinned, and when the ring is full and the reader
//!    idle: then TCP's buffers take as much as they would have taken without a ring.
//!
//! A stream that is handed to a program without rings leaves the ring first, or a relay process
//! carries its bytes (`handoff`).
//!
//! Between hosts the stream lies on an RDMA device (`discovery::remote`, `path`). Then TCP may be
//! faster than the ring, so a writer waits after `Down` until the peer's device has received it;
//! and sent bytes may be lost, so the end of TCP counts only with an end on the ring.
//!
//! A peer that speaks rsockets alone has no TCP to go back to. The stream on the device is a
//! [`NativeStream`] then, and nothing of the above applies. [`StreamRef`] is a stream of either
//! kind.
//!
//! A reader that has invited, and to which no `Up` has come yet, reads no more of TCP than was in
//! the kernel's queue *before* it checked for `Up`: bytes written after a later `Down` cannot be
//! among them.

mod ask;
mod async_wait;
mod bells;
mod call_stops;
mod channels;
mod close;
mod counters;
mod diag_socket;
mod discovery;
mod epoll_proxy;
mod epoll_watch;
mod first_spin;
mod four_tuple;
mod full_sends;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod halt;
mod handoff;
mod holders;
mod iomap;
mod kernel_look;
pub(crate) mod kernel_only_waiter;
mod kernel_spin;
mod native_peer;
mod offsets;
mod path;
mod peer_check;
mod poll;
mod poll_state;
mod quiet;
mod receive;
mod send;
mod socket_proxy;
mod state;
mod stream_ref;
mod tcp_socket;
#[cfg(test)]
mod tests;
mod time_limit;
mod verify;
mod wait_settings;

pub use crate::metrics::FallbackReason;
pub use crate::page_reclaim::rest::Rest;
pub use async_wait::Mark;
pub use channels::{Channel, Channels};
pub use discovery::limit::close_searches;
pub use epoll_watch::{EpollState, RemoteWatch, RingWatch, WatchId, on_path_found, spin_until};
pub use halt::Halt;
pub use handoff::{Claim, Need, await_leave};
pub use kernel_look::note_kernel_call;
pub use kernel_spin::{events_before_sleep, note_connection, recv_before_sleep};
pub use native_peer::{NativeListener, NativeStream};
pub use poll::{Changed, PollDescriptor, PolledSet, poll, poll_since};
pub use state::Before;
pub use stream_ref::StreamRef;
pub use tcp_socket::is_nonblocking;
pub use wait_settings::{change_wait_settings, report_wait_settings};

use crate::closing::Closings;
use crate::interrupt::Section;
use crate::metrics;
use crate::sys;
pub use crate::sys::socket_inode;
use ask::Subject;
use call_stops::CallStops;
use counters::Waited;
use discovery::local::Search;
use discovery::schedule::is_search_call;
use epoll_proxy::ProxySlot;
use epoll_watch::WatchSlot;
use four_tuple::FourTuple;
use path::{Path, PathCell};
use rsock_proto::switch::{DirectionSwitch, Readable, Receiver};
use rsock_proto::{iomap_size_from_wire, iomap_size_to_wire};
use rsock_verbs::family::FamilyBox;
use rustix::fd::BorrowedFd;
use state::{Directions, FLAG_PINNED, FLAG_RX_PLAIN, FLAG_TX_PLAIN, Receiving};
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tcp_socket::queued;
use wait_settings::WaitSettings;

/// A TCP connection that may be accelerated.
///
/// Threads may share it; sending and receiving do not block each other.
#[derive(Debug)]
pub struct AcceleratedStream {
    dirs: FamilyBox<Directions>,
    /// The search for the peer. Private to the process: a forked child does not search.
    search: Arc<Mutex<Search>>,
    path: PathCell,
    /// Which end of the connection this is, for a peer on another host.
    side: Option<Side>,
    tuple: OnceLock<Option<FourTuple>>,
    search_began: OnceLock<std::time::Instant>,
    /// Inode of the socket, once discovery has begun: a short connection does not ask for it.
    inode: OnceLock<u64>,
    stat: OnceLock<metrics::StreamSlot>,
    epoll_proxy: ProxySlot,
    epoll_watch: WatchSlot,
    /// For calls in progress whose descriptor the program closes.
    closings: Closings,
    /// For calls in progress when the stream is handed off.
    call_stops: CallStops,
    /// What is known of how receives wait.
    recv_settings: WaitSettings,
    /// Number of buffers that the peer may expose to this end at once.
    iomap_slots: u16,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that called `connect`.
    Connected,
    /// The end that `accept` returned.
    Accepted,
}

/// How long a full ring may stay without progress before a writer moves to TCP. A reader makes
/// progress when it has read a buffer: one of 26 MB/s has read 256 KiB by then.
const PATIENCE: Duration = Duration::from_millis(10);
/// The same between hosts, where signs of progress take longer to arrive.
const REMOTE_PATIENCE: Duration = Duration::from_millis(20);
/// How long the cheapest sleep may last before descriptors are watched too: so late a waiting
/// reader learns of the death of its peer. PERF: at 100 requests a second each wait of 10 ms slept
/// twice when this was 5 ms; CPU time went from 1.26 to 1.15 of the kernel's (medians of five).
const PARK: Duration = Duration::from_millis(20);

impl AcceleratedStream {
    /// Wraps a connected TCP socket through which no byte has passed yet. `None` if it can never be
    /// accelerated (switched off, no memory): then the caller leaves it to the kernel. With a peer
    /// on another host the two sides do different things; if `side` is `None`, such a connection
    /// stays on TCP.
    #[must_use]
    pub fn adopt(fd: BorrowedFd<'_>, side: Option<Side>) -> Option<Self> {
        Self::adopt_with(fd, side, 0)
    }

    /// As [`Self::adopt`], for a socket of which the caller knows what has gone through it.
    #[must_use]
    pub fn adopt_after(fd: BorrowedFd<'_>, side: Option<Side>, before: Before) -> Option<Self> {
        let stream = Self::adopt(fd, side)?;
        if before != Before::default() {
            let _section = Section::enter();
            stream.dirs.go_on_after(before);
        }
        Some(stream)
    }

    /// As [`Self::adopt`], with room for `iomap_slots` buffers that the peer may
    /// [expose](Self::expose) to this end. The wire knows 0 to 128, then multiples of 256 up to
    /// 32512: others are rounded down.
    #[must_use]
    pub fn adopt_with(fd: BorrowedFd<'_>, side: Option<Side>, iomap_slots: u16) -> Option<Self> {
        if !crate::config::environment::is_enabled() {
            return None;
        }
        note_connection(fd);
        Some(Self {
            dirs: FamilyBox::new(Directions::new())?,
            search: Arc::new(Mutex::new(Search::new())),
            path: PathCell::default(),
            side,
            tuple: OnceLock::new(),
            search_began: OnceLock::new(),
            inode: OnceLock::new(),
            stat: OnceLock::new(),
            epoll_proxy: ProxySlot::default(),
            epoll_watch: WatchSlot::default(),
            closings: Closings::new(),
            call_stops: CallStops::default(),
            recv_settings: WaitSettings::default(),
            iomap_slots: iomap_size_from_wire(iomap_size_to_wire(iomap_slots.into())),
        })
    }

    /// Bytes that a `recv` could return now (`FIONREAD`).
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`.
    pub fn bytes_readable(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let Some(path) = self.path() else { return queued(fd) };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        match self.ask(&mut *rx, &mut seen, &mut subject, Receiver::count_readable)? {
            Readable::Bytes(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
            Readable::Fault(_) => Ok(0),
        }
    }

    /// Whether as many bytes can be read as the program waits for (`SO_RCVLOWAT`). Only a pinned
    /// stream may have a mark of more than one byte. Moves nothing.
    fn reaches_low_water(&self, rx: &mut Receiving, subject: &mut Subject<'_>) -> bool {
        let low = sys::low_water(subject.fd).unwrap_or(1);
        if low <= 1 {
            return true;
        }
        let mut seen = self.begin(rx, subject);
        let Ok(ahead) = self.ask(rx, &mut seen, subject, |switch, seen| switch.peek_order(seen))
        else {
            return true;
        };
        let queued = queued(subject.fd).unwrap_or(0) as u64;
        let behind = if ahead.tcp_follows { queued.max(ahead.on_tcp) } else { ahead.on_tcp };
        let readable = if queued < ahead.on_tcp { queued } else { behind + ahead.on_ring };
        readable >= low as u64
    }

    /// As `sockatmark(3)`: whether the next byte of the stream is an urgent one. Bytes on the ring
    /// come before it.
    #[must_use]
    pub fn is_at_mark(&self, fd: BorrowedFd<'_>) -> bool {
        sys::is_at_mark(fd) && self.path().is_none_or(|path| path.bytes_readable() == 0)
    }

    /// Bytes sent and not yet taken by the peer's kernel (`SIOCOUTQ`); bytes in the ring have been
    /// taken.
    ///
    /// # Errors
    /// As `ioctl(SIOCOUTQ)`.
    pub fn bytes_unsent(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        offsets::queued(fd)
    }

    /// Whether the kernel alone knows this stream's readiness from now on. Then `poll` and the like
    /// may go straight to the kernel.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.dirs.has_all(FLAG_RX_PLAIN | FLAG_TX_PLAIN) || self.call_stops.is_replaced()
    }

    /// Bytes on the ring that no call has received.
    #[must_use]
    pub fn bytes_on_ring(&self) -> usize {
        self.path().map_or(0, Path::bytes_readable)
    }

    /// Leaves the fast path for good: later writes go to TCP. Needs no answer of the peer and never
    /// blocks.
    pub fn pin(&self, fd: BorrowedFd<'_>, reason: FallbackReason) {
        let _section = Section::enter();
        self.open_metrics(fd);
        self.pin_for(reason);
        {
            let mut tx = self.dirs.tx.0.lock();
            let _ = self.settle_sending(fd, &mut tx);
        }
        {
            let mut rx = self.dirs.rx.0.lock();
            let mut subject = Subject::new(fd, self.path());
            let mut seen = self.begin(&*rx, &subject);
            let _ = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::settle);
        }
        if let Ok(mut search) = self.search.try_lock() {
            *search = Search::Over;
        }
    }

    /// The path, if this process can use it.
    #[inline]
    fn path(&self) -> Option<&Path> {
        self.path.get().map(|path| &**path).filter(|path| !path.is_inherited())
    }

    /// Why the stream stays on TCP; `None` if it need not.
    #[must_use]
    pub fn pin_reason(&self) -> FallbackReason {
        self.dirs.pin_reason()
    }

    /// Whether `fd` is the socket that this stream began with, and not a successor of its number.
    /// `None`: that is not known, and makes no difference, because no byte has left TCP and
    /// discovery has not begun.
    #[must_use]
    pub fn is_same_socket(&self, fd: BorrowedFd<'_>) -> Option<bool> {
        self.inode.get().map(|known| inode_of(fd) == *known)
    }

    /// The inode of the socket, where it is known: see [`Self::is_same_socket`].
    pub(super) fn inode(&self) -> Option<u64> {
        self.inode.get().copied()
    }

    /// What calls on this socket need if their descriptor may be closed while they run.
    #[inline]
    #[must_use]
    pub fn closings(&self) -> &Closings {
        &self.closings
    }

    /// Waits for every call that holds the lock of a direction.
    fn await_locked_calls(&self) {
        drop(self.dirs.tx.0.lock());
        drop(self.dirs.rx.0.lock());
    }

    /// The channel of each direction now.
    #[must_use]
    pub fn channels(&self) -> Channels {
        let channel = |is_on_ring| if is_on_ring { Channel::Ring } else { Channel::Tcp };
        let send = channel(self.dirs.tx.0.lock().switch.is_on_ring());
        let recv = channel(self.dirs.rx.0.lock().switch.is_on_ring());
        Channels { send, recv }
    }

    fn has(&self, flag: u32) -> bool {
        self.dirs.has(flag)
    }

    /// Whether the kernel alone serves the direction whose flag is `plain`, in this process.
    #[inline]
    fn is_served_by_kernel(&self, plain: u32) -> bool {
        self.has(plain) || self.call_stops.is_replaced()
    }

    /// Pins the stream, and publishes the reason in the metrics.
    fn pin_for(&self, reason: FallbackReason) {
        self.dirs.pin(reason);
        if let Some(stat) = self.stat.get() {
            stat.set_fallback(self.pin_reason());
        }
    }
}

/// As [`socket_inode`], or 0.
fn inode_of(fd: BorrowedFd<'_>) -> u64 {
    socket_inode(fd).unwrap_or(0)
}
