//! Conversions between blocking sockets and those for Tokio.

use crate::{Datagram, Stream, rsockets, tokio};
use std::io;
use std::sync::Arc;

impl TryFrom<tokio::Stream> for Stream {
    type Error = io::Error;

    /// The blocking stream of the same connection, wherever its bytes are now. As with
    /// `tokio::net::TcpStream::into_std` it stays non-blocking until
    /// [`Stream::set_nonblocking`].
    ///
    /// # Errors
    /// As `rsock::tokio::Stream::into_std`.
    fn try_from(stream: tokio::Stream) -> io::Result<Self> {
        stream.into_std().map(Self::from)
    }
}

impl TryFrom<rsockets::Stream> for tokio::rsockets::Stream {
    type Error = io::Error;

    /// The same connection for tasks, whatever has passed through it.
    ///
    /// # Errors
    /// `NotConnected`; when the runtime cannot watch it.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    fn try_from(stream: rsockets::Stream) -> io::Result<Self> {
        Self::from_blocking(Arc::from(stream))
    }
}

impl TryFrom<Datagram> for tokio::Datagram {
    type Error = io::Error;

    /// The same socket for tasks, whatever has passed through it.
    ///
    /// # Errors
    /// `ResourceBusy` if the socket has clones; when the runtime cannot watch it.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    fn try_from(socket: Datagram) -> io::Result<Self> {
        match socket.into_inner() {
            Ok(socket) => Self::from_blocking(socket),
            Err(_) => Err(io::Error::new(io::ErrorKind::ResourceBusy, "the socket has clones")),
        }
    }
}
