//! Sockets as in [`std::net`] that leave TCP for shared memory or RDMA by themselves.
//!
//! [`Stream`] and [`Listener`] have the methods of [`TcpStream`](std::net::TcpStream) and
//! [`TcpListener`](std::net::TcpListener). A connection begins as kernel TCP and reaches any TCP
//! peer. When the peer uses rsock too, through this crate, rsock-tokio or the preload library, the
//! bytes move to a ring in shared memory (a peer on this host) or to an RDMA device (a peer on
//! another host, if the hosts trust each other), and back to TCP when that is needed. The program
//! reads and writes one stream of bytes and need not know where they travel; [`Stream::channels`]
//! and [`Stream::fallback_reason`] tell.
//!
//! ```
//! use rsock::{Listener, Stream};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let mut client = Stream::connect(listener.local_addr()?)?;
//! let (mut server, _) = listener.accept()?;
//!
//! client.write_all(b"ping")?;
//! let mut word = [0; 4];
//! server.read_exact(&mut word)?;
//! assert_eq!(&word, b"ping");
//! # Ok(())
//! # }
//! ```
//!
//! # Which type to use
//!
//! * [`Stream`], [`Listener`] and [`Builder`] reach any TCP program, and are faster with rsock at
//!   both ends.
//! * [`rsockets::Stream`] and [`rsockets::Listener`] reach rsockets programs alone, in Rust and in
//!   C. They use no TCP, and each end can write into memory that the other exposes.
//! * [`Datagram`] reaches its own kind, and C programs over `rsocket(3)` with `SOCK_DGRAM`: by UDP
//!   first, then past it.
//! * `rsock::tokio`, with the feature `tokio`, has the same three for the tasks of Tokio.
//!
//! # A connection to another host
//!
//! The two ends of a connection do different things to set up RDMA, so a stream must know its side.
//! [`Stream::connect`] and [`Listener::accept`] know it. For a socket that the program made by
//! other means, [`Stream::with_side`] takes it; a stream made by `From<TcpStream>` uses TCP between
//! hosts, and shared memory on one host.
//!
//! # Configuration
//!
//! `RSOCK_DEVICE`, `RSOCK_SPIN_US` and `RSOCK_CONFIG` of the environment count for this crate as
//! they do for unmodified programs under `rsock run`: see `docs/man/rsock-preload.7.md` of the
//! repository. `RSOCK_DEVICE=tcp` keeps every [`Stream`] on TCP; [`Builder::acceleration`] does so
//! for one connection. `rsock stat` shows the streams of a process, and why one is on TCP.
//!
//! # Features
//!
//! * `tokio`: the module `rsock::tokio`, which is the crate rsock-tokio. Its own features (`axum`,
//!   `hyper`) need a dependency on rsock-tokio.
//!
//! # Errors
//!
//! Methods return [`std::io::Error`] with the errno of the system call of the same name, as
//! [`std::net`] does, and so with the same [`ErrorKind`](std::io::ErrorKind)s: `WouldBlock` when a
//! time limit of a blocking call is over, `ConnectionReset` (`ECONNRESET`) when the peer ended
//! without reading all bytes, and so on. Times count in the resolution of the kernel.
//!
//! # Threads
//!
//! All types are [`Send`] and [`Sync`], and reading and writing work on shared references. A thread
//! that reads and one that writes do not disturb each other.
//!
//! # Sources
//!
//! tcp(7), udp(7), socket(7), rsocket(7) and rsocket(3); rdma-core v64.0, `librdmacm/rsocket.c`.

#![forbid(unsafe_code)]

mod builder;
mod datagram;
mod listener;
pub mod rsockets;
mod stream;
mod stream_io;
#[cfg(feature = "tokio")]
mod tokio_streams;

pub use builder::{Acceleration, Builder};
pub use datagram::Datagram;
pub use listener::{Incoming, Listener};
pub use rsock_core::accelerate::{Channel, Channels, FallbackReason, Side};
pub use rsock_core::datagram::{DatagramCounters, Received, SocketCounters};
pub use rsock_core::rsocket::KeepaliveSettings;
#[cfg(feature = "tokio")]
pub use rsock_tokio as tokio;
pub use stream::{IntoStdError, Stream};
