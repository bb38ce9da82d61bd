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
pub use rsock_verbs::DatagramCounters;
pub(crate) use sending::yield_to_receiver;
pub use socket::SocketCounters;
pub(crate) use source_check::SourceCheck;
pub(crate) use waiting::{PollUdp, armed};

use local::Local;
use receiving::PendingDatagrams;
use remote::Remote;
use rsock_cm::Port;
use sending::Routes;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

/// A datagram socket that speaks the rsockets protocol: to peers on this host through shared memory
/// and to others over RDMA devices, once both know each other's queues, and to all others through
/// UDP.
#[derive(Debug)]
pub struct Datagram {
    port: Arc<Port>,
    nonblocking: AtomicBool,
    is_closed: AtomicBool,
    /// Forks of this process when the socket was created.
    forks: u32,
    local: OnceLock<Option<Local>>,
    remote: OnceLock<Option<Remote>>,
    routes: Mutex<Routes>,
    inbox: Mutex<PendingDatagrams>,
    /// Datagrams that came by UDP, or were peeked at, and wait for a receive.
    n_pending: AtomicUsize,
    /// Receptions since UDP was last polled.
    since_udp: AtomicU32,
    /// When a sender last polled UDP, by the kernel's coarse clock.
    udp_polled: AtomicU32,
    /// Whether a try has ever left packets in the UDP socket.
    has_given_up: AtomicBool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    n_by_udp: AtomicU64,
    n_received_by_udp: AtomicU64,
    n_bad_packets: AtomicU64,
    n_foreign: AtomicU64,
}

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were stored.
    pub len: usize,
    /// Length of the datagram: more than `len` if it was truncated.
    pub full_len: usize,
    /// The sender's address.
    pub from: SocketAddr,
}

fn raw(fd: BorrowedFd<'_>, events: i16) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Whether an IPv6 address needs a scope, which no header of a queue has.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn errno(e: i32) -> io::Error {
    io::Error::from_raw_os_error(e)
}
