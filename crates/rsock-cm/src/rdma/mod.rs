//! Connections over RDMA devices: rdma_cm, as C rsockets use it.
//!
//! ```text
//! connector                         listener
//!   resolve address, route            bind, listen
//!   REQ   qp, private data     ->     CONNECT_REQUEST: the upper layer decides
//!                              <-     REP qp, private data   or   REJ private data
//!   RTU                        ->     ESTABLISHED
//!   DREQ / DREP                <->    either end disconnects
//! ```
//!
//! The kernel does the talking; librdmacm hands its events to whoever looks. Every listener and every
//! connection has an event channel, whose descriptor is the one to poll; there is no thread. Queue
//! pairs are the caller's own: the numbers that the kernel negotiated for them reach them through
//! their path (`route.rs`).

mod address;
mod channel;
mod connecting;
mod connection;
mod device;
mod id;
mod listener;
mod manager;
mod route;

pub use connecting::Connecting;
pub use connection::Connection;
pub use device::at as device_at;
pub use listener::Listener;
pub use manager::RdmaManager;

/// What happened at a listener.
pub type Event = crate::manager::Event<RdmaManager>;
/// Somebody wants to connect.
pub type Request = crate::manager::Request<RdmaManager>;
/// What a connect found.
pub type Progress = crate::manager::Progress<RdmaManager>;
