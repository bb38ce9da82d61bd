//! The soft device's connection manager, through the traits of `manager.rs`.
#![forbid(unsafe_code)]

use super::{SoftConnecting, SoftConnection, SoftListener, SoftManager};
use crate::addr::PortSpace;
use crate::error::Error;
use crate::manager::Manager;
use crate::port::Port;
use rsock_verbs::soft::{Soft, SoftContext};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

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
