//! Datagram sockets of the rsockets API. They send through a kernel UDP socket, and past it once
//! they know the peer's queue.
//!
//! [`header`] has the wire formats and `table.rs` what is known of destinations; both are values
//! without clock, descriptor or lock. `udp.rs` sends and receives packets, `handshake.rs` connects
//! to peers on this host, `local.rs` has the queue in shared memory, `remote.rs` has the queues on
//! RDMA devices, and `route.rs` is the route to a peer's queue. `socket.rs`, `sending.rs`,
//! `receiving.rs`, `waiting.rs` and `readiness.rs` are the socket made of them.
//!
//! ```
//! use rsock_core::datagram::{Datagram, MessageFlags};
//! use std::io::{IoSlice, IoSliceMut};
//!
//! let server = Datagram::bound("127.0.0.1:0".parse().unwrap())?;
//! let client = Datagram::bound("127.0.0.1:0".parse().unwrap())?;
//! client.send_to(&[IoSlice::new(b"hello")], Some(server.local_addr()?), MessageFlags::empty())?;
//! let mut buf = [0; 64];
//! let received = server.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::empty())?;
//! assert_eq!((&buf[..received.len], received.from), (&b"hello"[..], client.local_addr()?));
//! # Ok::<(), std::io::Error>(())
//! ```

mod flags;
mod handshake;
pub mod header;
pub mod kernel_udp;
mod local;
mod lru;
mod readiness;
mod receiving;
mod remote;
mod route;
mod sending;
mod socket;
mod source_check;
mod table;
#[cfg(test)]
mod tests;
mod udp;
mod waiting;

pub use crate::sys::n_dropped;
pub use flags::MessageFlags;
pub(crate) use receiving::scatter;
pub(crate) use sending::yield_to_receiver;
pub use socket::{Datagram, Received, SocketCounters};
pub(crate) use source_check::SourceCheck;
pub(crate) use waiting::{PollUdp, armed};
