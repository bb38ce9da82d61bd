//! Tokio streams that speak TCP to any peer, shared memory to a peer on the same host, and RDMA
//! between hosts that trust each other.
//!
//! # Which type to use
//!
//! | type | in place of | peers |
//! | --- | --- | --- |
//! | [`Stream`], [`Listener`] | `tokio::net::TcpStream`, `TcpListener` | any TCP program |
//! | [`rsockets::Stream`], [`rsockets::Listener`] | those | programs over the rsockets protocol |
//! | [`Datagram`] | `tokio::net::UdpSocket` | datagram programs over the rsockets protocol |
//!
//! All have the methods of Tokio's types, and streams have [`AsyncRead`](tokio::io::AsyncRead) and
//! [`AsyncWrite`](tokio::io::AsyncWrite). A [`Stream`] begins as kernel TCP. Once both ends turn
//! out to be such streams on one host, its bytes go through memory that the two processes share,
//! and between hosts that trust each other over an RDMA device; with any other peer it stays TCP.
//! [`Stream::channels`] shows where the bytes go, and [`Stream::fallback_reason`] why they stay
//! on TCP.
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
//! A stream moves after a few messages. Nothing needs to be done for it, and nothing in the program
//! changes when it happens:
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
//! let mut calls = 0;
//! while !client.channels().are_accelerated() && client.fallback_reason().is_none() {
//!     client.write_u32(calls).await?;
//!     server.read_u32().await?;
//!     server.write_u32(calls).await?;
//!     assert_eq!(client.read_u32().await?, calls);
//!     calls += 1;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//!
//! A read that finds nothing polls for a moment, then leaves the stream to the *poll driver*, a
//! task in each runtime that polls the waiting streams while other tasks run. Only when nothing
//! comes for as long as usually helps does the stream arm its *doorbell*, a descriptor that the
//! peer makes readable by a system call. How long a wait polls depends on whether polling has
//! helped lately; [`Builder::spin`] and `RSOCK_SPIN_US` limit it (0: not at all). Nothing polls
//! while other processes want all CPUs of the machine. There are no threads besides the runtime's.
//!
//! # Configuration
//!
//! `RSOCK_DEVICE` and `RSOCK_CONFIG` of the environment count as for unmodified programs:
//! `RSOCK_DEVICE=tcp` keeps every [`Stream`] on TCP, and `RSOCK_CONFIG` names the file of trusted
//! hosts. `rsock stat` shows the streams of a process, and why one is on TCP.
//!
//! # Cancel safety
//!
//! As with Tokio's types: a dropped future of a read, a peek, an accept or a wait for readiness has
//! taken nothing, and one of a write has written nothing. Each `async` function documents what its
//! dropped future may have done.
//!
//! # Errors
//!
//! Errors are those of the system calls: the documentation names the errno, which
//! [`io::Error::raw_os_error`](std::io::Error::raw_os_error) returns, and the
//! [`kind`](std::io::Error::kind) is that of the same error on TCP.
//!
//! # Threads, tasks and runtimes
//!
//! Streams may be used from any task and thread, and move between them. They belong to the runtime
//! in which they were made, which must have I/O enabled and must be running for a wait to end.
//!
//! # Features
//!
//! * `axum`: `axum::serve` takes a [`Listener`] and an [`rsockets::Listener`].
//! * `hyper`: `Connector` for hyper-util's clients and for tonic's channels.

#![deny(unsafe_code)]

mod async_fd;
#[cfg(feature = "axum")]
mod axum;
mod builder;
mod datagram;
#[cfg(feature = "hyper")]
mod hyper;
mod listener;
mod poll_driver;
pub mod rsockets;
mod source;
mod spin_budget;
mod stream;
mod sync;
mod timer;
mod transport;
mod waiter;
mod waiting;
mod wakers;

pub use builder::Builder;
pub use datagram::Datagram;
#[cfg(feature = "hyper")]
pub use hyper::{Connector, Io};
pub use listener::{Incoming, Listener};
pub use rsock_core::accelerate::{Channel, Channels, FallbackReason};
pub use rsock_core::datagram::{DatagramCounters, Received, SocketCounters};
pub use rsock_core::rsocket::ExposedRegion;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, Stream, WriteHalf};
pub use transport::{Accelerated, Rsockets, Transport};
