//! Sockets of the rsockets API, and what the faces of rsock build theirs from.
//!
//! [`Socket`] is the stream socket behind `rsocket(3)`, the rsockets streams of the crate `rsock`
//! and those of `rsock-tokio`: it speaks the rsockets protocol from the first byte. [`poll()`]
//! waits for sockets, datagram sockets and ordinary descriptors together. [`AcceleratedSocket`]
//! owns the other kind of stream, a TCP socket and its faster connection; the faces hand it to each
//! other.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c; rsocket(7).

mod accelerated_socket;
mod accept_queue;
mod any_device;
mod arguments;
mod async_wait;
mod connection;
mod exposed_region;

mod options;
mod pending_connect;
mod poll;
mod settings;
mod socket;
mod soft_device;
mod stream_io;
mod system_defaults;
#[cfg(test)]
mod tests;

pub use crate::engine::{CallerMemory, ExposedRegion, RemoteAccess};
pub use accelerated_socket::AcceleratedSocket;
pub use arguments::Family;
pub use async_wait::WaitSet;
pub use options::{
    KeepaliveSettings, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA,
};
pub use poll::{PollEntry, Source, poll};
pub use settings::SocketSettings;
pub use socket::{Socket, close_without_descriptor};
pub use system_defaults::SystemDefaults;
