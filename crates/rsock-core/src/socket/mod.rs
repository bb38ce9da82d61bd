//! The public blocking sockets.
//!
//! Two kinds. [`Stream`] and [`Listener`] mirror `std::net`: they are TCP first and move to a
//! faster path when both ends run rsock, so they reach any peer. [`rsockets`] speaks the rsockets
//! protocol from the first byte, as C rsockets do: it reaches rsockets peers only, has iomaps, and
//! the C interface is made of it ([`Socket`]). [`Datagram`] speaks it with datagrams.

mod accepting;
mod defaults;
mod device;
mod either;
mod established;
mod listener;
mod opening;
mod options;
mod poll;
mod rsocket;
pub mod rsockets;
mod stream;
#[cfg(test)]
mod tests;
mod waiting;

pub use crate::dgram::Datagram;
pub use crate::engine::CallerMemory;
pub use defaults::Defaults;
pub use listener::Listener;
pub use options::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
pub use poll::{PollEntry, Source, poll};
pub use rsocket::Socket;
pub use stream::Stream;
pub use waiting::WaitSet;
