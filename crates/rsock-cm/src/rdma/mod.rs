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
//! The kernel exchanges the messages; librdmacm delivers its events to the thread that reads them.
//! Every listener and every connection has an event channel, whose descriptor is the one to poll;
//! there is no thread. Queue pairs are the caller's own: the numbers that the kernel negotiated for
//! them reach them through their path (`negotiated_path.rs`).

mod address;
mod channel;
mod connecting;
mod connection;
mod device;
mod id;
mod listener;
mod manager;
mod negotiated_path;

pub use connecting::RdmaConnecting;
pub use connection::RdmaConnection;
pub use device::at as device_at;
pub use listener::RdmaListener;

/// Connections over the RDMA device of an address.
#[derive(Clone, Copy, Debug, Default)]
pub struct RdmaManager;

/// What happened at a listener.
pub type RdmaEvent = crate::manager::Event<RdmaManager>;
/// A client wants to connect.
pub type RdmaRequest = crate::manager::Request<RdmaManager>;
/// The progress of a connect.
pub type RdmaProgress = crate::manager::Progress<RdmaManager>;
