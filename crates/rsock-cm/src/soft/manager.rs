//! The soft device's connection manager, through the traits of `manager.rs`.
#![forbid(unsafe_code)]

use super::peer_link::Path;
use super::{SoftConnecting, SoftConnection, SoftEvent, SoftListener, SoftProgress};
use crate::addr::PortSpace;
use crate::error::Error;
use crate::manager::{self, Connected, Listening, Manager, RequestId, Status};
use crate::port::Port;
use rsock_verbs::QpNum;
use rsock_verbs::soft::{Soft, SoftContext};
use rustix::event::PollFlags;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Connections between processes of this host.
#[derive(Clone, Debug)]
pub struct SoftManager {
    ctx: SoftContext,
}

impl SoftManager {
    /// A manager on an opened device.
    #[must_use]
    pub fn new(ctx: SoftContext) -> Self {
        Self { ctx }
    }
}

impl Manager for SoftManager {
    type Backend = Soft;
    type Listener = SoftListener;
    type Connecting = SoftConnecting;
    type Connection = SoftConnection;

    fn listen(&self, port: Arc<Port>, backlog: u32) -> Result<SoftListener, Error> {
        SoftListener::listen(&self.ctx, PortSpace::Tcp, port, backlog)
    }

    fn connect(
        &self,
        port: Arc<Port>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<SoftConnecting, Error> {
        SoftConnecting::start(&self.ctx, PortSpace::Tcp, port, remote, now, deadline)
    }
}

impl Listening<SoftManager> for SoftListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr()
    }

    fn set_backlog(&mut self, backlog: u32) -> Result<(), Error> {
        self.set_backlog(backlog)
    }

    fn try_next(&mut self, now: Instant) -> Result<Option<SoftEvent>, Error> {
        self.try_next(now)
    }

    fn accept(&mut self, id: RequestId, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error> {
        self.accept(id, qp_num, private_data)
    }

    fn reject(&mut self, id: RequestId, private_data: &[u8]) -> Result<(), Error> {
        self.reject(id, private_data)
    }

    fn n_pending(&self) -> usize {
        self.n_pending()
    }
}

impl manager::Connecting<SoftManager> for SoftConnecting {
    fn progress(&mut self, now: Instant) -> Result<SoftProgress, Error> {
        self.progress(now)
    }

    fn send_request(&mut self, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error> {
        self.send_request(qp_num, private_data)
    }

    fn establish(&mut self) -> Result<SoftConnection, Error> {
        self.establish()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer_addr()
    }

    fn interest(&self) -> PollFlags {
        self.interest()
    }

    fn next_timeout(&self) -> Instant {
        self.next_timeout()
    }
}

impl Connected<SoftManager> for SoftConnection {
    fn path(&self) -> &Path {
        self.path()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer_addr()
    }

    fn disconnect(&self) {
        self.disconnect();
    }

    fn reset(&self) {
        self.reset();
    }

    fn status(&self) -> Status {
        self.status()
    }

    fn peer_pid(&self) -> u32 {
        self.path().peer_cred().pid
    }

    /// Only its hang-up.
    fn interest(&self) -> PollFlags {
        PollFlags::empty()
    }
}
