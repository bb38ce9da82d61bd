//! Listeners over rdma_cm: on each device that has the address.

use super::RdmaManager;
use super::channel::{CmEvent, EventChannel};
use super::connecting::{bind_error, padded};
use super::connection::RdmaConnection;
use super::id::Id;
use super::{RdmaEvent, RdmaRequest, device, negotiated_path};
use crate::error::Error;
use crate::manager::{Listening, RequestId};
use crate::port::Port;
use crate::private_data::PrivateData;
use rsock_rdma_sys::cm::rdma_cm_event_type as Kind;
use rsock_verbs::QpNum;
use rsock_verbs::rdma::RdmaPath;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

/// A listener on every RDMA device that has its address.
#[derive(Debug)]
pub struct RdmaListener {
    /// Dropped before the listening identifier, which they came from.
    pending: HashMap<u64, Pending>,
    id: Arc<Id>,
    channel: Arc<EventChannel>,
    local: SocketAddr,
    backlog: u32,
    next: u64,
    /// Holds the port for as long as the listener lives.
    _port: Option<Arc<Port>>,
}

/// A client that has sent a request.
#[derive(Debug)]
struct Pending {
    id: Arc<Id>,
    path: RdmaPath,
    addrs: (SocketAddr, SocketAddr),
    is_accepted: bool,
}

impl RdmaListener {
    pub(super) fn listen(port: Arc<Port>, backlog: u32) -> Result<Self, Error> {
        port.bind_if_unbound()?;
        let this = Self::begin(port.local_addr()?, port.is_v6_only(), backlog)?;
        port.make_exclusive()?;
        Ok(Self { _port: Some(port), ..this })
    }

    /// Listens on the device that has the address `local`, at its port, whatever kernel TCP does
    /// there: for callers that have a TCP connection with that address.
    ///
    /// # Errors
    /// `AddressInUse`; `System` with `ENODEV` if no device has the address.
    pub fn at(local: SocketAddr, backlog: u32) -> Result<Self, Error> {
        Self::begin(local, local.is_ipv6(), backlog)
    }

    /// Listens on every device that has the address `local`, which may be a wildcard, at its port,
    /// whatever kernel TCP does there: for callers that have a listening TCP socket with that
    /// address.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn beside(local: SocketAddr, v6_only: bool, backlog: u32) -> Result<Self, Error> {
        Self::begin(local, v6_only, backlog)
    }

    fn begin(local: SocketAddr, v6_only: bool, backlog: u32) -> Result<Self, Error> {
        let channel = EventChannel::new()?;
        let id = Id::new(&channel)?;
        id.bind(local, v6_only).map_err(bind_error)?;
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        // The kernel's own limit cannot be changed later, and counts only requests that have not
        // been read.
        id.listen(MAX_BACKLOG)?;
        let pending = HashMap::new();
        Ok(Self { pending, id, channel, local, backlog, next: 0, _port: None })
    }

    /// Handles an event; `None` if there may be another.
    fn take(&mut self, event: &CmEvent) -> Result<Option<RdmaEvent>, Error> {
        if event.kind == Kind::RDMA_CM_EVENT_CONNECT_REQUEST {
            // SAFETY: the event of a request brings an identifier on the listener's channel, which
            // is the listener's to destroy; this is the event's only taker.
            let id = unsafe { Id::from_request(event.id, &self.channel) };
            return Ok(id.map(|id| match self.request(id, event) {
                Ok(request) => RdmaEvent::Request(request),
                Err(e) => RdmaEvent::Refused(e),
            }));
        }
        if event.id == self.id.raw() {
            return match event.kind {
                Kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    Err(Error::Device(rsock_verbs::Error::NoDevice))
                }
                _ => Ok(None),
            };
        }
        let known = self.pending.iter().find(|(_, pending)| pending.id.raw() == event.id);
        let Some((&number, _)) = known else { return Ok(None) };
        let id = RequestId(number);
        let error = match event.kind {
            Kind::RDMA_CM_EVENT_ESTABLISHED => {
                return Ok(self.pending.remove(&number).map(|pending| match connection(pending) {
                    Ok(connection) => RdmaEvent::Established { id, connection },
                    Err(error) => RdmaEvent::Abandoned { id, error },
                }));
            }
            Kind::RDMA_CM_EVENT_UNREACHABLE => Error::TimedOut,
            Kind::RDMA_CM_EVENT_REJECTED
            | Kind::RDMA_CM_EVENT_CONNECT_ERROR
            | Kind::RDMA_CM_EVENT_DISCONNECTED => Error::PeerGone,
            Kind::RDMA_CM_EVENT_DEVICE_REMOVAL => Error::Device(rsock_verbs::Error::NoDevice),
            _ => return Ok(None),
        };
        self.pending.remove(&number);
        Ok(Some(RdmaEvent::Abandoned { id, error }))
    }

    fn request(&mut self, id: Arc<Id>, event: &CmEvent) -> Result<RdmaRequest, Error> {
        let limit = usize::try_from(self.backlog).unwrap_or(usize::MAX).max(MIN_PENDING);
        if self.pending.len() >= limit {
            // Destroyed, which rejects it.
            return Err(Error::TimedOut);
        }
        let unknown = || Error::from(crate::error::Violation::Address);
        let local = id.local_addr().ok_or_else(unknown)?;
        let peer = id.peer_addr().ok_or_else(unknown)?;
        let (name, port) = id.device()?;
        let path = negotiated_path::path(&id, port, peer.ip());
        let request = RdmaRequest {
            id: RequestId(self.next),
            local_addr: local,
            peer_addr: peer,
            ctx: device::open(&name)?,
            path: path.clone(),
            qp_num: event.qp_num,
            private_data: padded(event, PrivateData::REQUEST)?,
        };
        let pending = Pending { id, path, addrs: (local, peer), is_accepted: false };
        self.pending.insert(self.next, pending);
        self.next += 1;
        Ok(request)
    }
}

/// The connection, with an event channel of its own.
fn connection(pending: Pending) -> Result<RdmaConnection, Error> {
    let channel = EventChannel::new()?;
    pending.id.migrate(&channel)?;
    Ok(RdmaConnection::new(pending.id, channel, pending.path, pending.addrs, None))
}

impl Listening<RdmaManager> for RdmaListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn set_backlog(&mut self, backlog: u32) -> Result<(), Error> {
        self.backlog = backlog.clamp(1, MAX_BACKLOG);
        Ok(())
    }

    fn try_next(&mut self, _now: Instant) -> Result<Option<RdmaEvent>, Error> {
        while let Some(event) = self.channel.next()? {
            if let Some(event) = self.take(&event)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn accept(&mut self, id: RequestId, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error> {
        let pending = self.pending.get_mut(&id.0).filter(|pending| !pending.is_accepted);
        let pending = pending.ok_or(Error::LocalState("no such request"))?;
        let data = PrivateData::padded(private_data, PrivateData::REPLY)?;
        // A client that gave up meanwhile shows only here.
        pending.id.accept(qp_num, data.as_bytes()).map_err(|_| Error::PeerGone)?;
        pending.is_accepted = true;
        Ok(())
    }

    fn reject(&mut self, id: RequestId, private_data: &[u8]) -> Result<(), Error> {
        let pending = self.pending.get(&id.0).ok_or(Error::LocalState("no such request"))?;
        let data = PrivateData::padded(private_data, PrivateData::REJECT)?;
        // A client that is gone is rejected, too.
        let _ = pending.id.reject(data.as_bytes());
        self.pending.remove(&id.0);
        Ok(())
    }

    fn n_pending(&self) -> usize {
        self.pending.len()
    }
}

impl AsFd for RdmaListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Handshakes that may be under way however small the backlog is.
const MIN_PENDING: usize = 16;
/// Largest backlog; larger ones are cut, as `listen(2)` does.
const MAX_BACKLOG: u32 = 4096;
