//! The connection manager of RDMA devices, as the one of any device is seen.
#![forbid(unsafe_code)]

use super::{Connecting, Connection, Listener};
use crate::error::Error;
use crate::manager::Manager;
use crate::port::Port;
use rsock_verbs::rdma::Rdma;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Connections over whatever RDMA device an address leads to.
#[derive(Clone, Copy, Debug, Default)]
pub struct RdmaManager;

impl Manager for RdmaManager {
    type Backend = Rdma;
    type Listener = Listener;
    type Connecting = Connecting;
    type Connection = Connection;

    fn listen(&self, port: Arc<Port>, backlog: u32) -> Result<Listener, Error> {
        Listener::listen(port, backlog)
    }

    fn connect(
        &self,
        port: Arc<Port>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<Connecting, Error> {
        Connecting::start(port, remote, now, deadline)
    }
}
