//! Connections on the soft device: two processes of one host, over abstract Unix sockets.
//!
//! A [`SoftListener`] binds a name made from its port space, address and port; a [`SoftConnecting`]
//! looks the names up. The handshake on that Unix socket is
//!
//! ```text
//! connector                         listener
//!   HELLO  addresses, link     ->             (credentials checked, addresses compared)
//!                              <-   WELCOME   whether that link exists
//!   OFFER  segment, link end   ->             only for the first connection of two processes
//!                              <-   LINKED    segment
//!   REQUEST  qp, private data  ->             the upper layer decides
//!                              <-   REPLY qp, private data   or   REJECT private data
//!   READY                      ->             established
//! ```
//!
//! Memory is shared only after both ends have checked the other's credentials: the connector checks
//! those of the process that answered, not only of the one that listened, because a server may
//! listen as one user and accept as another. The Unix socket stays as the connection's *anchor*:
//! when it hangs up the peer is gone, however it ended.

mod connecting;
mod connection;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod listener;
mod manager;
mod message_socket;
mod peer_link;
mod pending;
#[cfg(test)]
mod tests;
mod wire;

pub use crate::manager::{Answer, RequestId, Status};
pub use connecting::SoftConnecting;
pub use connection::SoftConnection;
pub use listener::SoftListener;
pub use rsock_verbs::soft::SoftContext;

/// Connections between processes of this host.
#[derive(Clone, Debug)]
pub struct SoftManager {
    ctx: SoftContext,
}

/// What happened at a listener.
pub type SoftEvent = crate::manager::Event<SoftManager>;
/// A client wants to connect.
pub type SoftRequest = crate::manager::Request<SoftManager>;
/// The progress of a connect.
pub type SoftProgress = crate::manager::Progress<SoftManager>;
