//! Streams for Tokio that speak TCP to any peer, shared memory to a peer on the same host, and RDMA between
//! hosts that trust each other.
//!
//! [`Stream`] and [`Listener`] stand in for `tokio::net::TcpStream` and `TcpListener`: the same
//! methods, [`AsyncRead`](tokio::io::AsyncRead) and [`AsyncWrite`](tokio::io::AsyncWrite). A
//! connection begins as kernel TCP. Once both ends turn out to be rsock streams on one host, its
//! bytes go through memory that the two processes share, and between hosts that trust each other over an
//! RDMA device; otherwise it stays TCP, and nothing is lost but the gain. The [`rsockets`] module speaks
//! the rsockets protocol alone, to C programs too, and over RDMA devices. [`Datagram`] is a datagram socket of that protocol, over the same ways.
//!
//! # Place in the stack
//!
//! A face over `rsock_core::accelerate`, like the preload library, and over `rsock_core::rsocket`: what a
//! stream may do and when it moves is decided there. Here is only waiting: the wakers of the tasks
//! that wait for one stream, the doorbell that rings when something comes while all sleep, and the
//! hub, a task in each runtime that looks after waiting streams before they go to sleep.
//!
//! # Waiting
//!
//! A read that finds nothing looks again for a moment, then lets the hub look while other tasks
//! run, and only then is the doorbell armed, which costs the peer a system call. How long depends
//! on whether it has helped lately; [`Builder::spin`] and `RSOCK_SPIN_US` limit it (0: not at all).
//! Where others want all CPUs of the machine nobody looks; many streams of one runtime then wake
//! together.
//! There are no threads besides the runtime's.
//!
//! # Examples
//!
//! ```
//! use rsock_tokio::{Listener, Stream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0").await?;
//! let mut client = Stream::connect(listener.local_addr()?).await?;
//! let (mut server, _) = listener.accept().await?;
//! client.write_all(b"ping").await?;
//! let mut word = [0; 4];
//! server.read_exact(&mut word).await?;
//! assert_eq!(&word, b"ping");
//! # Ok(())
//! # }
//! ```
//!
//! # Threads, tasks and runtimes
//!
//! Streams may be used from any task and thread, and move between them; they belong to the runtime
//! in which they were made, which must have I/O enabled and must be running for a wait to end.
//!
//! # Features
//!
//! * `axum`: [`Listener`] is an `axum::serve::Listener`, and so is [`rsockets::Listener`].
//! * `hyper`: `Connector` for hyper-util's clients, and for tonic's channels, in either mode.

#![deny(unsafe_code)]

#[cfg(feature = "axum")]
mod axum;
mod budget;
mod builder;
mod crowd;
mod datagram;
mod hub;
#[cfg(feature = "hyper")]
mod hyper;
mod io;
mod iomap;
mod link;
mod listener;
mod owned;
mod pure;
mod ring;
pub mod rsockets;
mod shared;
mod split;
mod stream;
mod sync;
mod tcp;
mod timer;
mod waiting;
mod wakers;
mod watched;

pub use builder::Builder;
pub use datagram::Datagram;
#[cfg(feature = "hyper")]
pub use hyper::{Connector, Io};
pub use iomap::Opened;
pub use listener::{Incoming, Listener};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::Stream;
