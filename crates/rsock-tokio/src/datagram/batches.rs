//! Receiving and sending several datagrams in one call, as `recvmmsg(2)` and `sendmmsg(2)`.

use super::Datagram;
use crate::waiting::{Direction, retry};
use rsock_core::datagram::Received;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

impl Datagram {
    /// Receives as many datagrams as have come, one into each of `bufs`; waits for the first. The
    /// first entries of `out` then hold their lengths and senders; the number of entries is
    /// returned. What a buffer has no room for is lost. Without a buffer or an entry, it returns 0
    /// at once.
    ///
    /// # Errors
    /// As [`Self::recv`]; an error after the first datagram is left for the next call.
    ///
    /// # Cancel safety
    /// Cancel safe: a future that is dropped before it is ready has taken nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use rsock_tokio::Datagram;
    /// use std::io::{IoSlice, IoSliceMut};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let server = Datagram::bind("127.0.0.1:0").await?;
    /// let client = Datagram::bind("127.0.0.1:0").await?;
    /// let batch = [IoSlice::new(b"one"), IoSlice::new(b"two")];
    /// assert_eq!(client.send_batch(&batch, Some(server.local_addr()?)).await?, 2);
    ///
    /// let (mut space, mut out) = ([[0; 64]; 8], [None; 8]);
    /// let mut n = 0;
    /// while n < 2 {
    ///     let mut bufs = space.each_mut().map(|buf| IoSliceMut::new(buf));
    ///     n += server.recv_batch(&mut bufs[n..], &mut out[n..]).await?;
    /// }
    /// for (received, word) in out.iter().flatten().zip(["one", "two"]) {
    ///     assert_eq!((received.len, received.from), (word.len(), client.local_addr()?));
    /// }
    /// assert_eq!((&space[0][..3], &space[1][..3]), (&b"one"[..], &b"two"[..]));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "recvmmsg")]
    pub async fn recv_batch(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        out: &mut [Option<Received>],
    ) -> io::Result<usize> {
        retry(self, Direction::Read, || self.try_recv_batch(bufs, out)).await
    }

    /// As [`Self::recv_batch`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; otherwise as [`Self::recv_batch`].
    pub fn try_recv_batch(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        out: &mut [Option<Received>],
    ) -> io::Result<usize> {
        self.attempt(|| self.socket.try_recv_batch(bufs, out))
    }

    /// Sends each of `batch` to the peer that the socket is connected to, or to `to`, and wakes the
    /// receiver once; waits for room for the first. Returns how many were sent: fewer than given if
    /// there is no room for the next one. With an empty batch, it returns 0 at once.
    ///
    /// # Errors
    /// As [`Self::send`]; an error after the first datagram is left for the next call.
    ///
    /// # Cancel safety
    /// Cancel safe: a future that is dropped before it is ready has sent nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use rsock_tokio::Datagram;
    /// use std::io::IoSlice;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let server = Datagram::bind("127.0.0.1:0").await?;
    /// let client = Datagram::bind("127.0.0.1:0").await?;
    /// client.connect(server.local_addr()?).await?;
    /// let words = ["a", "batch", "of", "words"];
    /// let batch: Vec<_> = words.iter().map(|word| IoSlice::new(word.as_bytes())).collect();
    /// let mut n = 0;
    /// while n < batch.len() {
    ///     n += client.send_batch(&batch[n..], None).await?;
    /// }
    /// let mut buf = [0; 16];
    /// for word in words {
    ///     let n = server.recv(&mut buf).await?;
    ///     assert_eq!(&buf[..n], word.as_bytes());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "sendmmsg")]
    pub async fn send_batch(
        &self,
        batch: &[IoSlice<'_>],
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        retry(self, Direction::Write, || self.try_send_batch(batch, to)).await
    }

    /// As [`Self::send_batch`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room for the first; otherwise as [`Self::send_batch`].
    pub fn try_send_batch(
        &self,
        batch: &[IoSlice<'_>],
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        self.attempt(|| self.socket.send_batch(batch, to))
    }
}
