//! The interface of connection managers, which `soft` and `rdma` implement.
//!
//! The shapes are those of librdmacm. Nothing blocks: every object has a descriptor to poll and a
//! method that makes what progress there is. Read this before either device.

use crate::error::Error;
use crate::port::Port;
use crate::private_data::PrivateData;
use rsock_verbs::{Backend, QpNum};
use rustix::event::PollFlags;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// A connection manager for stream connections.
pub trait Manager: Clone + Debug + Send + Sync + 'static {
    /// Its device.
    type Backend: Backend;
    /// A listener.
    type Listener: Listening<Self>;
    /// A connect under way.
    type Connecting: Connecting<Self>;
    /// An established connection.
    type Connection: Connected<Self>;

    /// Listens on `port`, which is bound to an ephemeral port of the wildcard address if it is not
    /// bound yet. At most `backlog` clients wait for their turn.
    ///
    /// # Errors
    /// `AddressInUse`; `System` as `bind(2)` and `listen(2)`; the device's error.
    fn listen(&self, port: Arc<Port>, backlog: u32) -> Result<Self::Listener, Error>;

    /// Starts to connect to `remote` from `port`. It is `now`; the connect gives up at `deadline`.
    ///
    /// # Errors
    /// `Refused`, `Unreachable`, `System`; the device's error.
    fn connect(
        &self,
        port: Arc<Port>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<Self::Connecting, Error>;
}

/// How a manager's queue pairs reach their peers.
pub type PathOf<M> = <<M as Manager>::Backend as Backend>::Path;
/// A manager's opened device.
pub type ContextOf<M> = <<M as Manager>::Backend as Backend>::Context;

/// Names a request of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// A client wants to connect: answer with [`Listening::accept`] or [`Listening::reject`].
#[derive(Clone, Debug)]
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
pub struct Request<M: Manager> {
    /// For the answer.
    pub id: RequestId,
    /// The local canonical address that the client connects to.
    pub local_addr: SocketAddr,
    /// The client's canonical address.
    pub peer_addr: SocketAddr,
    /// The device that the client is reached over.
    pub ctx: ContextOf<M>,
    /// How a queue pair reaches the client.
    pub path: PathOf<M>,
    /// The client's queue pair.
    pub qp_num: QpNum,
    /// What the client's upper layer sent.
    pub private_data: PrivateData,
}

/// What happened at a listener.
#[derive(Debug)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "an event lives for one match")]
pub enum Event<M: Manager> {
    /// A client requests a connection.
    Request(Request<M>),
    /// A client that was accepted has its queue pair running.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established {
        /// The request.
        id: RequestId,
        /// The connection.
        connection: M::Connection,
    },
    /// A client that had sent a request went away, or violated the handshake, before it was
    /// established.
    Abandoned {
        /// The request.
        id: RequestId,
        /// Why.
        error: Error,
    },
    /// A client was refused before its request: a user that is not trusted, malformed messages, or
    /// too slow.
    Refused(Error),
}

/// What [`Connecting::progress`] found.
#[derive(Debug)]
pub enum Progress<M: Manager> {
    /// Nothing has changed.
    Pending,
    /// The path to the peer is known: make a queue pair on this device for this path and call
    /// [`Connecting::send_request`]. Returned again if the peer cannot use that queue pair's
    /// number: create another queue pair before the first is dropped, and send the request again.
    Path(ContextOf<M>, PathOf<M>),
    /// The listener accepted: bring the queue pair up, then call [`Connecting::establish`].
    Accepted(Answer),
    /// The listener rejected. (`ECONNREFUSED`)
    Rejected(PrivateData),
}

/// An accepting answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The peer's queue pair.
    pub qp_num: QpNum,
    /// What the peer's upper layer sent.
    pub private_data: PrivateData,
}

/// The state of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It is connected.
    Connected,
    /// It disconnected in good order.
    Disconnected,
    /// It reset the connection; data under way is lost.
    Reset,
    /// It ended without a message, or violated the protocol: its process, the connection or the
    /// local device is gone.
    Gone,
}

/// A listener. Its one descriptor is readable when [`Self::try_next`] has something to do. Dropping
/// it refuses clients that are not established.
pub trait Listening<M: Manager>: AsFd + Debug + Send {
    /// The canonical address.
    fn local_addr(&self) -> SocketAddr;

    /// Changes the backlog.
    ///
    /// # Errors
    /// As `listen(2)`.
    fn set_backlog(&mut self, backlog: u32) -> Result<(), Error>;

    /// Makes what progress there is, never waiting, up to the next event. Call it until it returns
    /// `None`; then wait for the descriptor.
    ///
    /// # Errors
    /// The listener itself failed, for instance for lack of descriptors: try again later. A
    /// client's fault is an [`Event`].
    fn try_next(&mut self, now: Instant) -> Result<Option<Event<M>>, Error>;

    /// Accepts a request with the local queue pair, ready to send and receive, and at most
    /// [`PrivateData::REPLY`] bytes. [`Event::Established`] follows, or [`Event::Abandoned`].
    ///
    /// # Errors
    /// `LocalPrivateData`; `LocalState` for a request that is no longer there; `PeerGone`.
    fn accept(&mut self, id: RequestId, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error>;

    /// Rejects a request with at most [`PrivateData::REJECT`] bytes.
    ///
    /// # Errors
    /// `LocalPrivateData`; `LocalState` for a request that is no longer there.
    fn reject(&mut self, id: RequestId, private_data: &[u8]) -> Result<(), Error>;

    /// Handshakes under way.
    fn n_pending(&self) -> usize;
}

/// A connect that is under way. Call [`Self::progress`] whenever the descriptor is ready for
/// [`Self::interest`] or [`Self::next_timeout`] has come. Dropping it gives up.
pub trait Connecting<M: Manager>: AsFd + Debug + Send {
    /// Makes what progress there is; never waits.
    ///
    /// # Errors
    /// The connect has failed: `Refused`, `TimedOut`, `Unreachable`, `PeerUntrusted`,
    /// `PeerVersion`, `PeerViolation`, or the errors of the device and the system.
    fn progress(&mut self, now: Instant) -> Result<Progress<M>, Error>;

    /// Sends the request with the local queue pair, ready to be connected, and at most
    /// [`PrivateData::REQUEST`] bytes.
    ///
    /// # Errors
    /// `LocalPrivateData`; `LocalState` before the path is known or a second time; `PeerGone`.
    fn send_request(&mut self, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error>;

    /// Reports to the listener that the local queue pair runs.
    ///
    /// # Errors
    /// `LocalState` unless the answer has come; `PeerGone`.
    #[doc(alias = "rdma_establish")]
    fn establish(&mut self) -> Result<M::Connection, Error>;

    /// The local canonical address.
    fn local_addr(&self) -> SocketAddr;

    /// The canonical address of the peer.
    fn peer_addr(&self) -> SocketAddr;

    /// Events to poll the descriptor for; none while only a timeout can lead on.
    fn interest(&self) -> PollFlags;

    /// When to call [`Self::progress`] even if nothing happened.
    fn next_timeout(&self) -> Instant;
}

/// An established connection. Its descriptor becomes ready when the peer disconnects or dies
/// ([`Self::interest`]); [`Self::status`] says which. Dropping it disconnects without a message.
pub trait Connected<M: Manager>: AsFd + Debug + Send + Sync {
    /// How queue pairs of this connection reach their peer.
    fn path(&self) -> &PathOf<M>;

    /// The local canonical address.
    fn local_addr(&self) -> SocketAddr;

    /// The peer's canonical address.
    fn peer_addr(&self) -> SocketAddr;

    /// Ends the connection with a message to the peer. Does nothing the second time.
    #[doc(alias = "rdma_disconnect")]
    fn disconnect(&self);

    /// As [`Self::disconnect`], but reports a reset to the peer, where the device can.
    fn reset(&self);

    /// The state of the peer; never blocks.
    fn status(&self) -> Status;

    /// Events to poll the descriptor for, and a hang-up.
    fn interest(&self) -> PollFlags;

    /// The id of the peer's process, if it is on this host and known; 0 otherwise.
    fn peer_pid(&self) -> u32 {
        0
    }
}

impl Status {
    pub(crate) fn from_byte(byte: u8) -> Self {
        [Self::Connected, Self::Disconnected, Self::Reset]
            .into_iter()
            .find(|s| *s as u8 == byte)
            .unwrap_or(Self::Gone)
    }
}
