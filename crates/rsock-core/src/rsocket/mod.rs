//! The public blocking sockets.
//!
//! Two kinds. [`Stream`] and [`Listener`] mirror `std::net`: they are TCP first and move to a
//! faster path when both ends run rsock, so they reach any peer. [`rsockets`] speaks the rsockets
//! protocol from the first byte, as C rsockets do: it reaches rsockets peers only, has iomaps, and
//! the C interface is made of it ([`Socket`]). [`Datagram`] speaks it with datagrams.

mod accepting;
mod any_device;
mod connection;
mod defaults;
mod device;
mod listener;
mod opening;
mod options;
mod poll;
pub mod rsockets;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod waiting;

pub use crate::datagram::Datagram;
pub use crate::engine::CallerMemory;
pub use defaults::Defaults;
pub use listener::Listener;
pub use options::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
pub use poll::{PollEntry, Source, poll};
pub use socket::Socket;
pub use stream::Stream;
pub use waiting::WaitSet;
