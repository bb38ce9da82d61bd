//! The connection manager of RDMA devices, through the traits of `manager.rs`.
#![forbid(unsafe_code)]

use super::{RdmaConnecting, RdmaConnection, RdmaListener, RdmaManager};
use crate::error::Error;
use crate::manager::Manager;
use crate::port::Port;
use rsock_verbs::rdma::Rdma;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

impl Manager for RdmaManager {
    type Backend = Rdma;
    type Listener = RdmaListener;
    type Connecting = RdmaConnecting;
    type Connection = RdmaConnection;

    fn listen(&self, port: Arc<Port>, backlog: u32) -> Result<RdmaListener, Error> {
        RdmaListener::listen(port, backlog)
    }

    fn connect(
        &self,
        port: Arc<Port>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<RdmaConnecting, Error> {
        RdmaConnecting::start(port, remote, now, deadline)
    }
}
