//! The connecting side of a handshake over rdma_cm.
#![forbid(unsafe_code)]

use super::RdmaManager;
use super::channel::{CmEvent, EventChannel};
use super::connection::RdmaConnection;
use super::id::Id;
use super::{RdmaProgress, device, negotiated_path};
use crate::addr::destination;
use crate::error::Error;
use crate::manager::{self, Answer};
use crate::port::Port;
use crate::private_data::PrivateData;
use rsock_rdma_sys::cm::rdma_cm_event_type as Kind;
use rsock_verbs::QpNum;
use rsock_verbs::rdma::RdmaPath;
use rustix::event::PollFlags;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connect that is under way.
#[derive(Debug)]
pub struct RdmaConnecting {
    id: Arc<Id>,
    channel: Arc<EventChannel>,
    /// The address to connect from, unless the connection manager chooses it.
    local: Option<SocketAddr>,
    port: Option<Arc<Port>>,
    dest: SocketAddr,
    deadline: Instant,
    state: State,
    /// Attempts at the step under way; each gets twice the time of the one before.
    attempts: u32,
    /// Requests with a queue pair whose number the peer still knew from another connection.
    n_stale: u32,
}

#[derive(Clone, Debug)]
enum State {
    Address,
    Route,
    /// The caller has to send its request.
    Routed(RdmaPath),
    Requested(RdmaPath),
    /// The caller has to call [`manager::Connecting::establish`].
    Answered(RdmaPath),
    Over,
}

impl RdmaConnecting {
    pub(super) fn start(
        port: Arc<Port>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let local = Some(port.local_addr()?).filter(|local| local.port() != 0);
        Self::new(local, Some(port), remote, now, deadline)
    }

    /// Starts to connect from the local address `local`, and a port that the connection manager
    /// chooses: for callers that hold the ports of kernel TCP already.
    ///
    /// # Errors
    /// `Unreachable` if no device has that address; as [`manager::Manager::connect`].
    pub fn from(
        local: IpAddr,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<Self, Error> {
        Self::new(Some(SocketAddr::new(local, 0)), None, remote, now, deadline)
    }

    /// Starts to connect from the address and a port of the connection manager's own choice.
    ///
    /// # Errors
    /// As [`manager::Manager::connect`].
    pub fn to(remote: SocketAddr, now: Instant, deadline: Instant) -> Result<Self, Error> {
        Self::new(None, None, remote, now, deadline)
    }

    fn new(
        local: Option<SocketAddr>,
        port: Option<Arc<Port>>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let dest = destination(remote);
        if dest.port() == 0 {
            return Err(Error::Refused);
        }
        let channel = EventChannel::new()?;
        let id = Id::new(&channel)?;
        let state = State::Address;
        let (attempts, n_stale) = (0, 0);
        let mut this = Self { id, channel, local, port, dest, deadline, state, attempts, n_stale };
        this.begin(now)?;
        Ok(this)
    }

    /// Starts with a new identifier.
    fn begin(&mut self, now: Instant) -> Result<(), Error> {
        if let Some(local) = self.local {
            self.id.bind(local, false).map_err(bind_error)?;
        }
        self.state = State::Address;
        self.attempts = 0;
        self.resolve(now)
    }

    /// Starts the step under way, again.
    fn resolve(&mut self, now: Instant) -> Result<(), Error> {
        let within = FIRST_TRY * (1 << self.attempts.min(6));
        let left = self.deadline.saturating_duration_since(now);
        let within = within.min(left);
        self.attempts += 1;
        match self.state {
            State::Address => self.id.resolve_addr(self.dest, within),
            _ => self.id.resolve_route(within),
        }
        .map_err(unreachable)
    }

    /// Handles an event; `None` if there may be another.
    fn take(&mut self, event: &CmEvent, now: Instant) -> Result<Option<RdmaProgress>, Error> {
        match (&self.state, event.kind) {
            (State::Address, Kind::RDMA_CM_EVENT_ADDR_RESOLVED) => {
                self.state = State::Route;
                self.attempts = 0;
                self.resolve(now)?;
            }
            (State::Address, Kind::RDMA_CM_EVENT_ADDR_ERROR)
            | (State::Route, Kind::RDMA_CM_EVENT_ROUTE_ERROR) => {
                let source = io::Error::from_raw_os_error(event.status.abs());
                if source.raw_os_error() != Some(libc::ETIMEDOUT) {
                    return Err(Error::Unreachable(source));
                }
                if now >= self.deadline {
                    return Err(Error::TimedOut);
                }
                self.resolve(now)?;
            }
            (State::Route, Kind::RDMA_CM_EVENT_ROUTE_RESOLVED) => {
                let (name, port) = self.id.device()?;
                let path = negotiated_path::path(&self.id, port, self.dest.ip());
                self.state = State::Routed(path.clone());
                return Ok(Some(RdmaProgress::Path(device::open(&name)?, path)));
            }
            (State::Requested(path), Kind::RDMA_CM_EVENT_CONNECT_RESPONSE) => {
                self.state = State::Answered(path.clone());
                let private_data = padded(event, PrivateData::REPLY)?;
                return Ok(Some(RdmaProgress::Accepted(Answer {
                    qp_num: event.qp_num,
                    private_data,
                })));
            }
            (State::Requested(_), Kind::RDMA_CM_EVENT_REJECTED)
                if event.status == REJECTED_AS_STALE && self.n_stale < MOST_STALE =>
            {
                // Another queue pair has another number. An identifier sends only one request.
                self.n_stale += 1;
                self.id = Id::new(&self.channel)?;
                self.begin(now)?;
            }
            (_, Kind::RDMA_CM_EVENT_REJECTED) => {
                if event.status != REJECTED_BY_CONSUMER {
                    // There is no listener; or, as in C, anything else for which the peer's kernel
                    // rejects the request.
                    return Err(Error::Refused);
                }
                return Ok(Some(RdmaProgress::Rejected(padded(event, PrivateData::REJECT)?)));
            }
            (_, Kind::RDMA_CM_EVENT_UNREACHABLE) => return Err(Error::TimedOut),
            (_, Kind::RDMA_CM_EVENT_CONNECT_ERROR | Kind::RDMA_CM_EVENT_DISCONNECTED) => {
                return Err(Error::PeerGone);
            }
            (_, Kind::RDMA_CM_EVENT_DEVICE_REMOVAL) => {
                return Err(Error::Device(rsock_verbs::Error::NoDevice));
            }
            _ => {}
        }
        Ok(None)
    }
}

/// The private data of an event, as long as its kind is.
pub(super) fn padded(event: &CmEvent, len: usize) -> Result<PrivateData, Error> {
    PrivateData::padded(&event.data()[..event.data().len().min(len)], len)
}

/// No device, or no route.
fn unreachable(e: Error) -> Error {
    match e {
        Error::System { source, .. } => Error::Unreachable(source),
        e => e,
    }
}

pub(super) fn bind_error(e: Error) -> Error {
    match e {
        Error::System { source, .. } if source.raw_os_error() == Some(libc::EADDRINUSE) => {
            Error::AddressInUse
        }
        e => e,
    }
}

impl manager::Connecting<RdmaManager> for RdmaConnecting {
    fn progress(&mut self, now: Instant) -> Result<RdmaProgress, Error> {
        if matches!(self.state, State::Over) {
            return Ok(RdmaProgress::Pending);
        }
        let result = loop {
            match self.channel.next() {
                Ok(Some(event)) => match self.take(&event, now) {
                    Ok(None) => {}
                    Ok(Some(progress)) => break Ok(progress),
                    Err(e) => break Err(e),
                },
                Ok(None) if now >= self.deadline => break Err(Error::TimedOut),
                Ok(None) => return Ok(RdmaProgress::Pending),
                Err(e) => break Err(e),
            }
        };
        if matches!(result, Err(_) | Ok(RdmaProgress::Rejected(_))) {
            self.state = State::Over;
        }
        result
    }

    fn send_request(&mut self, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error> {
        let State::Routed(path) = self.state.clone() else {
            return Err(Error::LocalState("no path yet, or sent already"));
        };
        let data = PrivateData::padded(private_data, PrivateData::REQUEST)?;
        self.id.connect(qp_num, data.as_bytes())?;
        self.state = State::Requested(path);
        Ok(())
    }

    fn establish(&mut self) -> Result<RdmaConnection, Error> {
        let State::Answered(path) = self.state.clone() else {
            return Err(Error::LocalState("not accepted"));
        };
        self.id.establish()?;
        self.state = State::Over;
        let addrs = (manager::Connecting::local_addr(self), self.dest);
        let (id, channel) = (Arc::clone(&self.id), Arc::clone(&self.channel));
        Ok(RdmaConnection::new(id, channel, path, addrs, self.port.clone()))
    }

    fn local_addr(&self) -> SocketAddr {
        // Unknown until the route is known.
        let held = || self.port.as_ref().and_then(|port| port.local_addr().ok());
        self.id.local_addr().or_else(held).unwrap_or(self.dest)
    }

    fn peer_addr(&self) -> SocketAddr {
        self.dest
    }

    fn interest(&self) -> PollFlags {
        match self.state {
            State::Over => PollFlags::empty(),
            _ => PollFlags::IN,
        }
    }

    fn next_timeout(&self) -> Instant {
        self.deadline
    }
}

impl AsFd for RdmaConnecting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// First timeout of the resolution of an address or a route.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// The status in a rejection that the listener sent, not its kernel.
///
/// # Source
/// Linux, `include/rdma/ib_cm.h`: `IB_CM_REJ_CONSUMER_DEFINED`.
const REJECTED_BY_CONSUMER: i32 = 28;

/// The kernel's code for: the peer has, or had a moment ago, a connection with a local queue pair
/// of this number.
///
/// # Source
/// Linux, `include/rdma/ib_cm.h`: `IB_CM_REJ_STALE_CONN`.
const REJECTED_AS_STALE: i32 = 10;
/// Queue pairs that are tried, beside the first one: a device may give numbers away in turn.
const MOST_STALE: u32 = 16;
