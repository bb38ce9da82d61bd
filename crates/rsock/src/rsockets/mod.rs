//! Streams that speak the rsockets protocol from the first byte, to and from C programs as well.
//!
//! The peer of a [`Stream`] here is another one, a stream of `rsock_tokio::rsockets`, or a C
//! program over rsockets: of this project's `librsock.so` on this host, or of any rdma-core with an
//! RDMA device. Plain TCP peers are refused. In return a stream can [expose](Stream::expose) memory
//! to its peer, which [writes into it](Stream::write_remote) without a call of this end; rsocket(7)
//! calls that *iomap*.
//!
//! ```
//! use rsock::rsockets::{self, Listener};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let mut client = rsockets::connect(listener.local_addr()?)?;
//! let (mut server, from) = listener.accept()?;
//! assert_eq!(from, client.local_addr()?);
//!
//! client.write_all(b"hello")?;
//! let mut word = [0; 5];
//! server.read_exact(&mut word)?;
//! assert_eq!(&word, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Devices
//!
//! A listener listens in shared memory and on RDMA devices. A connect uses shared memory if the
//! address has a listener there, and otherwise a device that reaches the address. `RSOCK_DEVICE`
//! restricts both to `soft` (shared memory) or `rdma`.
//!
//! # Waiting for several sockets
//!
//! [`poll`] waits for streams, listeners, datagram sockets and ordinary descriptors together. The
//! descriptor that [`AsFd`](std::os::fd::AsFd) gives only holds the socket's number; it must not be
//! polled.
//!
//! # Differences from `std::net`
//!
//! There is no `ttl` (no IP packets of the kernel carry the stream), and a send after the peer has
//! closed is `ECONNRESET`, as `rsend` of rdma-core says, where TCP says `EPIPE`.
//!
//! # Source
//! rsocket(7); rdma-core v64.0, `librdmacm/rsocket.c`.

mod builder;
mod listener;
mod stream;

pub use builder::Builder;
pub use listener::{Incoming, Listener};
pub use rsock_core::rsocket::{
    CallerMemory, ExposedRegion, Family, PollEntry, RemoteAccess, Socket, Source, poll,
};
pub use rustix::event::PollFlags;
pub use stream::Stream;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Connects to the first of the addresses that accepts. As [`Stream::connect`].
///
/// # Errors
/// As [`Stream::connect`].
pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Stream> {
    Stream::connect(addr)
}

/// Connects to one address within a time limit. As [`Stream::connect_timeout`].
///
/// # Errors
/// As [`Stream::connect_timeout`].
pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Stream> {
    Stream::connect_timeout(addr, timeout)
}

/// Refuses a time limit of zero, as `std::net` does.
fn time_limit(limit: Option<Duration>) -> io::Result<Option<Duration>> {
    match limit {
        Some(Duration::ZERO) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "a time limit of zero"))
        }
        limit => Ok(limit),
    }
}
