//! Remote memory (iomaps): one end exposes memory, and the other writes into it directly.
//!
//! On an accelerated stream nothing wakes a task when the peer is found or takes messages again,
//! and that happens soon or never: the futures try again at growing intervals. With rsockets they
//! wait as writers do.

use super::Stream;
use crate::timer::Timer;
use crate::transport::{Operations, Rsockets};
use crate::waiting::{Direction, retry};
use rsock_core::accelerate::AcceleratedStream;
use rsock_core::rsocket::ExposedRegion;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop;

/// The first pause between two tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));
/// Bytes that are written before other tasks get their turn.
const CHUNK: usize = 256 << 10;

impl Stream {
    /// Waits until the peer has been found in shared memory: [`Self::expose`] and
    /// [`Self::write_remote`] work from then on. Both ends must call this; bytes may be sent and
    /// received meanwhile, and need not have been.
    ///
    /// # Errors
    /// `EOPNOTSUPP` (`Unsupported`) if the peer will never be found, because it is on another host,
    /// is no rsock stream, or for another [`Self::fallback_reason`]. There is no time limit: the
    /// future waits for as long as the peer does not call this.
    ///
    /// # Cancel safety
    /// Cancel safe: the next call continues the search.
    pub async fn accelerated(&self) -> io::Result<()> {
        let stream = self.accelerated_stream()?;
        at_intervals(|| match stream.find_peer(self.as_fd())? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        })
        .await?;
        self.wake_for_new_queue();
        Ok(())
    }

    /// Exposes `len` bytes of fresh zeroed memory to the peer's [`Self::write_remote`] under
    /// `offset`, any number that both ends know, for as long as the returned region lives. The peer
    /// knows of it before it receives what is sent after this returned.
    ///
    /// # Errors
    /// `ENOTCONN` before [`Self::accelerated`]; `ENOMEM` if all regions that the peer's
    /// [`Builder::iomap_slots`](crate::Builder::iomap_slots) allows are in use; `EINVAL` for more
    /// than 4 GiB; `EOPNOTSUPP` if the stream can never leave TCP.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped future has withdrawn what it exposed.
    ///
    /// # Examples
    ///
    /// ```
    /// use rsock_tokio::{Builder, Listener};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// const BOARD: u64 = 1; // a number that both ends know
    /// let listener = Listener::bind("127.0.0.1:0").await?;
    /// let mut client = Builder::new().iomap_slots(1).connect(listener.local_addr()?).await?;
    /// let (mut server, _) = listener.accept().await?;
    /// tokio::try_join!(client.accelerated(), server.accelerated())?;
    ///
    /// let board = server.expose(4096, BOARD).await?;
    /// server.write_all(b"!").await?; // the peer may begin
    ///
    /// client.read_exact(&mut [0]).await?;
    /// client.write_remote(b"hello", BOARD + 10).await?;
    /// client.write_all(b"!").await?; // the bytes are there
    ///
    /// server.read_exact(&mut [0]).await?;
    /// let mut word = [0; 5];
    /// board.read_at(10, &mut word);
    /// assert_eq!(&word, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn expose(&self, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        let stream = self.accelerated_stream()?;
        let region = stream.expose(len, offset)?;
        at_intervals(|| stream.try_announce()).await?;
        Ok(region)
    }

    /// Writes `bytes` into the memory that the peer exposed under `offset`, without the peer's help
    /// and without another copy. The peer is not told, but what is sent afterwards arrives
    /// afterwards. Returns how many bytes were written: fewer than given where the exposed region
    /// ends.
    ///
    /// # Errors
    /// `EFAULT` if nothing is exposed there; `ENOTCONN` before [`Self::accelerated`]; `ECONNRESET`,
    /// `EPIPE` once the peer has closed the connection.
    ///
    /// # Cancel safety
    /// A dropped future has written a part of the bytes, from the first one on; writing them again
    /// is harmless.
    pub async fn write_remote(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        write_chunks(bytes, offset, async |bytes, offset| {
            let stream = self.accelerated_stream()?;
            at_intervals(|| stream.try_write_remote(bytes, offset)).await
        })
        .await
    }

    fn accelerated_stream(&self) -> io::Result<&Arc<AcceleratedStream>> {
        Ok(self.transport.stream().ok_or(rustix::io::Errno::OPNOTSUPP)?)
    }
}

impl Stream<Rsockets> {
    /// Exposes `len` bytes of fresh zeroed memory to the peer's [`Self::write_remote`] under
    /// `offset`, any number that both ends know, for as long as the returned region lives. The peer
    /// knows of it before it receives what is sent after this returned.
    ///
    /// # Errors
    /// `ENOMEM` if all regions that the peer's
    /// [`Builder::iomap_slots`](crate::rsockets::Builder::iomap_slots) allows are in use;
    /// `ENOTCONN` once the connection has ended.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped future has withdrawn what it exposed.
    pub async fn expose(&self, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        let region = self.transport.socket().expose(len, offset)?;
        // The announcement goes ahead of what is sent: here, of nothing.
        retry(self, Direction::Write, || self.transport.try_send(&[])).await?;
        Ok(region)
    }

    /// Writes `bytes` into the memory that the peer exposed under `offset`, without the peer's help
    /// and without another copy. The peer is not told, but what is sent afterwards arrives
    /// afterwards. Returns how many bytes were written: fewer than given where the exposed region
    /// ends.
    ///
    /// # Errors
    /// `EFAULT` if nothing is exposed there; `ECONNRESET` once the peer has closed the connection.
    ///
    /// # Cancel safety
    /// A dropped future has written a part of the bytes, from the first one on; writing them again
    /// is harmless.
    pub async fn write_remote(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        write_chunks(bytes, offset, async |bytes, offset| {
            retry(self, Direction::Write, || {
                self.transport.socket().try_write_remote(bytes, offset)
            })
            .await
        })
        .await
    }
}

/// Writes all of `bytes` by calls of `write`, which may write fewer than it is given. An error
/// after the first byte is left for the next call.
async fn write_chunks(
    bytes: &[u8],
    offset: u64,
    write: impl AsyncFn(&[u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    for chunk in bytes.chunks(CHUNK) {
        let mut left = chunk;
        while !left.is_empty() {
            match write(left, offset.wrapping_add(done as u64)).await {
                Ok(n) => {
                    done += n;
                    left = &left[n..];
                }
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
        coop::consume_budget().await;
    }
    Ok(done)
}

/// Tries `io` at growing intervals until it returns something other than `WouldBlock`.
async fn at_intervals<R>(mut io: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    let mut timer = None;
    let mut pause = PAUSES.0;
    loop {
        match io() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        let timer = match &timer {
            Some(timer) => timer,
            None => timer.insert(Timer::new()?),
        };
        timer.start(pause)?;
        poll_fn(|cx| timer.poll(cx)).await?;
        pause = (pause * 2).min(PAUSES.1);
    }
}
