//! Sending and receiving owned buffers ([`Bytes`]).
//!
//! What is sent goes from the buffer's own memory to the peer in one copy, made while it is sent,
//! so that the buffer is free again at once. What is received is copied once, into memory that only
//! this process reaches: the receive buffer itself cannot be lent out, because the peer may write
//! it at any time.

use super::Stream;
use crate::transport::Transport;
use crate::waiting::{Direction, retry};
use bytes::{Buf, Bytes, BytesMut};
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};

/// The smallest buffer of a receive, in bytes, for what comes after its size was chosen.
const LEAST: usize = 512;

impl<T: Transport> Stream<T> {
    /// Sends all of `bytes`, which becomes empty.
    ///
    /// # Errors
    /// As `send(2)` with `MSG_NOSIGNAL`: `ECONNRESET`, `EPIPE`, `ETIMEDOUT`. What is left in
    /// `bytes` was not sent.
    ///
    /// # Cancel safety
    /// Cancel safe: what was sent is gone from `bytes`, and nothing else.
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use rsock_tokio::{Listener, Stream};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let listener = Listener::bind("127.0.0.1:0").await?;
    /// let client = Stream::connect(listener.local_addr()?).await?;
    /// let (server, _) = listener.accept().await?;
    /// client.send(&mut Bytes::from_static(b"owned")).await?;
    /// assert_eq!(server.recv(1 << 20).await?, "owned");
    /// drop(client);
    /// assert!(server.recv(1 << 20).await?.is_empty(), "the end");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, bytes: &mut Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let rest = [IoSlice::new(bytes)];
            let n = retry(self, Direction::Write, || self.send_now(&rest)).await?;
            bytes.advance(n);
        }
        Ok(())
    }

    /// Receives what has come, at most `most` bytes, in a buffer of the length received. Empty at
    /// the end of the stream, and if `most` is 0.
    ///
    /// # Errors
    /// As `recv(2)`: `ECONNRESET`, `ETIMEDOUT`.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped future has taken nothing.
    pub async fn recv(&self, most: usize) -> io::Result<Bytes> {
        let mut buf = BytesMut::new();
        if most == 0 {
            return Ok(buf.freeze());
        }
        let receive = || {
            let len = self.transport.bytes_readable()?.max(LEAST).min(most);
            if buf.len() < len {
                buf = BytesMut::zeroed(len);
            }
            self.recv_now(&mut [IoSliceMut::new(&mut buf)], RecvFlags::empty())
        };
        let n = retry(self, Direction::Read, receive).await?;
        buf.truncate(n);
        Ok(buf.freeze())
    }
}
