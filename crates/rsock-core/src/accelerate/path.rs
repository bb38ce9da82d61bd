//! The path of an accelerated stream: a stream on the soft device or on an RDMA device.
//!
//! Two things differ between hosts ([`Path::is_remote`]). What was sent may still be lost with the
//! device or the process, so the end of TCP counts only with an end in the stream. And a child of a
//! fork cannot use the device connection of its parent ([`Path::is_inherited`]). Invariant: a child
//! never touches an RDMA stream of its parent, not even to drop it.

#![forbid(unsafe_code)]

use crate::accelerate::verify::SocketId;
use crate::accelerate::{PATIENCE, REMOTE_PATIENCE};
use crate::doorbell::{Doorbell, Kind};
use crate::engine::{Interest, QpStream, ReadMode, RecvError, SendError, Wake};
use crate::interrupt::Watch;
use crate::metrics;
use rsock_cm::manager::{Connected, Status};
use rsock_cm::rdma::RdmaConnection as Connection;
use rsock_proto::switch::{Message, ReceivedMessages};
use rsock_proto::{Ext, Keepalive};
use rsock_verbs::Context;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::rdma::{Rdma, RdmaContext};
use rsock_verbs::soft::{Soft, SoftContext};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Evaluates the same expression on the stream of either device.
macro_rules! on {
    ($path:expr, $stream:ident => $do:expr) => {
        match $path {
            Self::Soft(soft) => {
                let $stream = &soft.stream;
                $do
            }
            Self::Rdma(rdma) => {
                let $stream = &rdma.stream;
                $do
            }
        }
    };
}

/// A stream beside the TCP connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the enum is boxed")]
pub(super) enum Path {
    Soft(SoftPath),
    /// PERF: boxed, as all streams of one host would have room for it.
    Rdma(Box<RdmaPath>),
}

/// A stream in memory that is shared with a process of this host.
#[derive(Debug)]
pub(super) struct SoftPath {
    pub(super) stream: QpStream<Soft>,
    /// The peer's TCP socket.
    pub(super) peer: SocketId,
}

/// A stream on an RDMA device. The fields are declared in the order in which they must be dropped.
#[derive(Debug)]
pub(super) struct RdmaPath {
    pub(super) stream: QpStream<Rdma>,
    connection: Connection,
    pub(super) ctx: RdmaContext,
    owner: ProcessId,
    /// The peer, or its host, has ended the connection.
    is_disconnected: AtomicBool,
}

/// The state of a connection between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// The connection is in use.
    Open,
    /// The other host ended it: the peer closed, gave up or died, or its device is being removed.
    /// TCP tells which.
    Disconnected,
    /// The local device is being removed, and may still work.
    DeviceRemoved,
}

impl RdmaPath {
    pub(super) fn new(stream: QpStream<Rdma>, connection: Connection, ctx: RdmaContext) -> Self {
        Self { stream, connection, ctx, owner: process(), is_disconnected: AtomicBool::new(false) }
    }
}

/// The cell of a stream's path, which is set once.
///
/// In a child of a fork it forgets the path instead of dropping it: the device connection belongs
/// to the parent.
#[derive(Debug, Default)]
pub(super) struct PathCell(OnceLock<Box<Path>>);

impl From<RdmaPath> for PathCell {
    fn from(path: RdmaPath) -> Self {
        Self(OnceLock::from(Box::new(Path::Rdma(Box::new(path)))))
    }
}

impl Deref for PathCell {
    type Target = OnceLock<Box<Path>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for PathCell {
    fn drop(&mut self) {
        if self.0.get().is_some_and(|path| path.is_inherited()) {
            std::mem::forget(self.0.take());
        }
    }
}

impl Path {
    /// Whether the peer is reached over an RDMA device.
    #[inline]
    pub(super) fn is_remote(&self) -> bool {
        matches!(self, Self::Rdma(_))
    }

    /// Whether it belongs to the parent of this process, which cannot use it.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        match self {
            Self::Soft(_) => false,
            Self::Rdma(rdma) => rdma.owner != process(),
        }
    }

    /// How long the ring may be full without progress before a writer moves to TCP.
    pub(super) fn patience(&self) -> Duration {
        if self.is_remote() { REMOTE_PATIENCE } else { PATIENCE }
    }

    /// The transport that `rsock stat` shows.
    #[inline]
    pub(super) fn kind(&self) -> metrics::Transport {
        if self.is_remote() { metrics::Transport::Rdma } else { metrics::Transport::Soft }
    }

    /// The stream on the soft device, if it is one.
    pub(super) fn soft(&self) -> Option<&QpStream<Soft>> {
        match self {
            Self::Soft(soft) => Some(&soft.stream),
            Self::Rdma(_) => None,
        }
    }

    /// The peer's TCP socket, if it is on this host.
    pub(super) fn peer(&self) -> Option<SocketId> {
        match self {
            Self::Soft(soft) => Some(soft.peer),
            Self::Rdma(_) => None,
        }
    }

    /// Whether the stream failed, so that sent bytes may never arrive.
    pub(super) fn has_failed(&self) -> bool {
        on!(self, stream => stream.take_error().is_some())
    }

    /// Whether it failed because the peer's host does not answer any more.
    pub(super) fn is_unanswered(&self) -> bool {
        let errno = on!(self, stream => stream.take_error()).and_then(|e| e.raw_os_error());
        errno == Some(libc::ETIMEDOUT)
    }

    /// `SO_KEEPALIVE` and its times; probes are added to `count`.
    pub(super) fn set_keepalive(
        &self,
        settings: Option<Keepalive>,
        count: Option<&'static AtomicU64>,
    ) {
        on!(self, stream => stream.set_keepalive(settings, count));
    }

    /// The state of the connection between hosts. Costs a system call.
    pub(super) fn connection_state(&self) -> ConnectionState {
        let Self::Rdma(rdma) = self else { return ConnectionState::Open };
        match rdma.connection.status() {
            Status::Connected => ConnectionState::Open,
            Status::Gone => ConnectionState::DeviceRemoved,
            Status::Disconnected | Status::Reset => {
                rdma.is_disconnected.store(true, Ordering::Release);
                ConnectionState::Disconnected
            }
        }
    }

    /// Whether [`Self::connection_state`] has found it disconnected.
    pub(super) fn is_disconnected(&self) -> bool {
        match self {
            Self::Soft(_) => false,
            Self::Rdma(rdma) => rdma.is_disconnected.load(Ordering::Acquire),
        }
    }

    /// The descriptor that is readable when [`Self::connection_state`] may have changed.
    pub(super) fn connection_fd(&self) -> Option<RawFd> {
        match self {
            Self::Rdma(rdma) if !self.is_disconnected() => {
                Some(rdma.connection.as_fd().as_raw_fd())
            }
            _ => None,
        }
    }

    /// Ends the connection for the peer's host, whether or not TCP gets through.
    pub(super) fn disconnect(&self) {
        if let Self::Rdma(rdma) = self {
            rdma.connection.disconnect();
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        on!(self, stream => stream.is_drained())
    }

    #[inline]
    pub(super) fn mark(&self) -> u32 {
        on!(self, stream => stream.mark())
    }

    #[inline]
    pub(super) fn has_changed(&self, mark: u32) -> bool {
        on!(self, stream => stream.has_changed(mark))
    }

    pub(super) fn is_peer_elsewhere(&self) -> Option<bool> {
        on!(self, stream => stream.is_peer_elsewhere())
    }

    pub(super) fn spin(&self, interest: Interest, mark: u32) -> bool {
        on!(self, stream => stream.spin(interest, mark))
    }

    pub(super) fn spin_at_first(&self, interest: Interest, mark: u32) -> bool {
        on!(self, stream => stream.spin_at_first(interest, mark))
    }

    pub(super) fn nap(&self, mark: u32, left: Option<Duration>, watch: Watch) -> Option<Wake> {
        on!(self, stream => stream.nap(mark, left, watch))
    }

    pub(super) fn park(&self, mark: u32, timeout: Duration) -> Wake {
        on!(self, stream => stream.park(mark, timeout))
    }

    /// Wakes all that wait for the ring, to look again.
    pub(super) fn announce(&self) {
        on!(self, stream => stream.announce());
    }

    #[inline]
    pub(super) fn try_send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        on!(self, stream => stream.try_send(bufs))
    }

    #[inline]
    pub(super) fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<usize, RecvError> {
        on!(self, stream => stream.try_recv(bufs, ReadMode::of(peek)))
    }

    pub(super) fn has_input(&self) -> bool {
        on!(self, stream => stream.has_input())
    }

    pub(super) fn has_room(&self) -> bool {
        on!(self, stream => stream.has_room())
    }

    pub(super) fn has_eof(&self) -> bool {
        on!(self, stream => stream.has_eof())
    }

    /// Whether there is nothing to receive but an end of which the kernel tells too: on one host it
    /// does so a moment after the ring, and says whether the end is a reset. As far as completions
    /// have been dispatched: costs a load where the stream has not ended.
    pub(super) fn has_end_alone(&self) -> bool {
        self.soft().is_some_and(|stream| stream.is_over() && stream.bytes_readable() == 0)
    }

    pub(super) fn peer_has_ended(&self) -> bool {
        on!(self, stream => stream.peer_has_ended())
    }

    pub(super) fn is_unread(&self, sent: Option<u64>) -> bool {
        on!(self, stream => stream.is_unread(sent))
    }

    pub(super) fn has_read_all(&self, sent: u64) -> bool {
        on!(self, stream => stream.has_read_all(sent))
    }

    /// Whether the peer's process has ended, as far as the device can tell.
    pub(super) fn is_peer_dead(&self) -> bool {
        on!(self, stream => stream.is_peer_dead())
    }

    pub(super) fn ignore_unread(&self) {
        on!(self, stream => stream.ignore_unread());
    }

    pub(super) fn bytes_readable(&self) -> usize {
        on!(self, stream => stream.bytes_readable())
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        on!(self, stream => stream.shutdown(how));
    }

    pub(super) fn has_extensions(&self) -> bool {
        on!(self, stream => stream.has_extensions())
    }

    /// Sends a message of the switch; false if there is no room for it now.
    pub(super) fn send_message(&self, message: Message) -> bool {
        match message {
            Message::Ready => on!(self, stream => stream.try_send_ext(Ext::Ready)),
            Message::Up { offset } => on!(self, stream => stream.try_send_up(offset)),
            Message::Down => on!(self, stream => stream.try_send_ext(Ext::Down)),
            Message::Leave => on!(self, stream => stream.try_send_ext(Ext::Leave)),
        }
    }

    /// Wakes the threads of this process family that sleep on the ring, as an event from the peer
    /// would.
    pub(super) fn wake_waiters(&self) {
        on!(self, stream => stream.wake_waiters());
    }

    /// Messages of the switch that have arrived: see [`QpStream::poll_messages`].
    #[inline]
    pub(super) fn poll_messages(&self) -> ReceivedMessages {
        on!(self, stream => stream.poll_messages())
    }

    /// Messages of the switch that have been taken from the device.
    #[inline]
    pub(super) fn messages(&self) -> ReceivedMessages {
        on!(self, stream => stream.messages())
    }

    /// A new doorbell.
    pub(super) fn create_doorbell(&self) -> io::Result<Doorbell> {
        Ok(match self {
            Self::Soft(_) => SoftContext::open()?.create_bell()?.into(),
            Self::Rdma(rdma) => rdma.ctx.create_bell()?.into(),
        })
    }

    /// Arms `bell`, a doorbell of this path's device, until [`Self::disarm`].
    pub(super) fn arm_persistent(&self, bell: &Doorbell) -> bool {
        match (self, bell.kind()) {
            (Self::Soft(soft), Kind::Soft(bell)) => soft.stream.arm_persistent(bell),
            (Self::Rdma(rdma), Kind::Rdma(bell)) => rdma.stream.arm_persistent(bell),
            _ => false,
        }
    }

    /// After this time a thread that sleeps with a doorbell has to check whether what was sent has
    /// arrived, and whether the peer lives.
    pub(super) fn check_after(&self) -> Option<Duration> {
        match self {
            Self::Soft(_) => None,
            Self::Rdma(rdma) => rdma.stream.check_after(),
        }
    }

    /// Undoes [`Self::arm_persistent`].
    pub(super) fn disarm(&self, bell: &Doorbell) {
        match (self, bell.kind()) {
            (Self::Soft(soft), Kind::Soft(bell)) => soft.stream.disarm(bell),
            (Self::Rdma(rdma), Kind::Rdma(bell)) => rdma.stream.disarm(bell),
            _ => {}
        }
    }
}
