//! Connections on the soft device: two processes of one host, over abstract Unix sockets.
//!
//! A [`Listener`] binds a name made from its port space, address and port; a [`Connecting`] looks
//! the names up. The handshake on that Unix socket is
//!
//! ```text
//! connector                         listener
//!   HELLO  addresses, link     ->             (credentials checked, addresses compared)
//!                              <-   WELCOME   whether that link exists
//!   OFFER  segment, link end   ->             only the first time that two processes meet
//!                              <-   LINKED    segment
//!   REQUEST  qp, private data  ->             the upper layer decides
//!                              <-   REPLY qp, private data   or   REJECT private data
//!   READY                      ->             established
//! ```
//!
//! Memory is shared only after both ends have looked at the other's credentials: the connector at
//! those of the process that answered, not only of the one that listened, because a server may
//! listen as one user and accept as another. The Unix socket stays as the connection's *anchor*:
//! when it hangs up the peer is gone, however it ended.

mod channel;
mod connecting;
mod connection;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod listener;
mod manager;
mod pending;
#[cfg(test)]
mod tests;
mod wire;

pub use crate::manager::{Answer, RequestId, Status};
pub use connecting::Connecting;
pub use connection::Connection;
pub use listener::Listener;
pub use manager::SoftManager;
pub use rsock_verbs::soft::SoftContext;

/// What happened at a listener.
pub type Event = crate::manager::Event<SoftManager>;
/// Somebody wants to connect.
pub type Request = crate::manager::Request<SoftManager>;
/// What a connect found.
pub type Progress = crate::manager::Progress<SoftManager>;
