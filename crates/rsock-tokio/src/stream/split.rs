//! The halves of a stream, for reading and writing at once.

use super::Stream;
use crate::transport::{Accelerated, Transport};
use std::error::Error;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{Interest, ReadBuf, Ready};

/// The reading half of a borrowed stream; made by [`Stream::split`]. The stream's other methods
/// are reached by `as_ref`.
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let mut client = Stream::connect(listener.local_addr()?).await?;
/// let (mut server, _) = listener.accept().await?;
/// let (mut reading, mut writing) = client.split();
/// let echo = async {
///     let mut word = [0; 4];
///     server.read_exact(&mut word).await?;
///     server.write_all(&word).await
/// };
/// let mut answer = [0; 4];
/// tokio::try_join!(writing.write_all(b"ping"), reading.read_exact(&mut answer), echo)?;
/// assert_eq!(&answer, b"ping");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ReadHalf<'a, T: Transport = Accelerated>(&'a Stream<T>);

/// The writing half of a borrowed stream; made by [`Stream::split`].
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let mut client = Stream::connect(listener.local_addr()?).await?;
/// let (mut server, _) = listener.accept().await?;
/// let (_, mut writing) = client.split();
/// writing.writable().await?;
/// writing.write_all(b"one way").await?;
/// writing.shutdown().await?;
/// let mut received = String::new();
/// server.read_to_string(&mut received).await?;
/// assert_eq!(received, "one way");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WriteHalf<'a, T: Transport = Accelerated>(&'a Stream<T>);

impl<'a, T: Transport> ReadHalf<'a, T> {
    pub(super) fn new(stream: &'a Stream<T>) -> Self {
        Self(stream)
    }
}

impl<'a, T: Transport> WriteHalf<'a, T> {
    pub(super) fn new(stream: &'a Stream<T>) -> Self {
        Self(stream)
    }
}

/// The methods of every half.
macro_rules! impl_half {
    ($half:ty) => {
        impl<T: Transport> $half {
            /// As [`Stream::ready`].
            ///
            /// # Errors
            /// As [`Stream::ready`].
            ///
            /// # Cancel safety
            /// Cancel safe: nothing is transferred.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.as_ref().ready(interest).await
            }

            /// The address of this end.
            ///
            /// # Errors
            /// As `getsockname(2)`.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.as_ref().local_addr()
            }

            /// The address of the peer.
            ///
            /// # Errors
            /// As `getpeername(2)`: `ENOTCONN` once the connection has ended.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.as_ref().peer_addr()
            }
        }
    };
}

/// The methods of a reading half.
macro_rules! impl_read_half {
    ($half:ty) => {
        impl<T: Transport> $half {
            /// As [`Stream::readable`].
            ///
            /// # Errors
            /// As [`Stream::readable`].
            ///
            /// # Cancel safety
            /// Cancel safe: nothing is taken.
            pub async fn readable(&self) -> io::Result<()> {
                self.as_ref().readable().await
            }

            /// As [`Stream::peek`].
            ///
            /// # Errors
            /// As [`Stream::peek`].
            ///
            /// # Cancel safety
            /// Cancel safe: nothing is taken.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.as_ref().peek(buf).await
            }

            /// As [`Stream::poll_peek`].
            ///
            /// # Errors
            /// As [`Stream::peek`].
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.as_ref().poll_peek(cx, buf)
            }

            /// As [`Stream::try_read`].
            ///
            /// # Errors
            /// As [`Stream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.as_ref().try_read(buf)
            }

            /// As [`Stream::try_read_vectored`].
            ///
            /// # Errors
            /// As [`Stream::try_read`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.as_ref().try_read_vectored(bufs)
            }
        }
    };
}

/// The methods of a writing half.
macro_rules! impl_write_half {
    ($half:ty) => {
        impl<T: Transport> $half {
            /// As [`Stream::writable`].
            ///
            /// # Errors
            /// As [`Stream::writable`].
            ///
            /// # Cancel safety
            /// Cancel safe: nothing is written.
            pub async fn writable(&self) -> io::Result<()> {
                self.as_ref().writable().await
            }

            /// As [`Stream::try_write`].
            ///
            /// # Errors
            /// As [`Stream::try_write`].
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.as_ref().try_write(buf)
            }

            /// As [`Stream::try_write_vectored`].
            ///
            /// # Errors
            /// As [`Stream::try_write`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.as_ref().try_write_vectored(bufs)
            }
        }
    };
}

impl_half!(ReadHalf<'_, T>);
impl_half!(WriteHalf<'_, T>);
impl_half!(OwnedReadHalf<T>);
impl_half!(OwnedWriteHalf<T>);
impl_read_half!(ReadHalf<'_, T>);
impl_read_half!(OwnedReadHalf<T>);
impl_write_half!(WriteHalf<'_, T>);
impl_write_half!(OwnedWriteHalf<T>);

impl<T: Transport> AsRef<Stream<T>> for ReadHalf<'_, T> {
    fn as_ref(&self) -> &Stream<T> {
        self.0
    }
}

impl<T: Transport> AsRef<Stream<T>> for WriteHalf<'_, T> {
    fn as_ref(&self) -> &Stream<T> {
        self.0
    }
}

/// The reading half of a stream; made by [`Stream::into_split`].
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let client = Stream::connect(listener.local_addr()?).await?;
/// let (mut server, _) = listener.accept().await?;
/// let (mut reading, mut writing) = client.into_split();
/// let sender = tokio::spawn(async move { writing.write_all(b"hello").await });
/// let mut received = String::new();
/// server.read_to_string(&mut received).await?; // ends as `writing` is dropped
/// assert_eq!(received, "hello");
/// sender.await??;
/// drop(server);
/// assert_eq!(reading.read(&mut [0]).await?, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf<T: Transport = Accelerated> {
    stream: Arc<Stream<T>>,
}

/// The writing half of a stream; made by [`Stream::into_split`]. Dropping it ends the direction:
/// the peer reads to the end.
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
/// use tokio::io::AsyncReadExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let client = Stream::connect(listener.local_addr()?).await?;
/// let (mut server, _) = listener.accept().await?;
/// let (_reading, writing) = client.into_split();
/// assert_eq!(writing.try_write(b"bye")?, 3);
/// drop(writing);
/// let mut received = String::new();
/// server.read_to_string(&mut received).await?;
/// assert_eq!(received, "bye");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedWriteHalf<T: Transport = Accelerated> {
    stream: Arc<Stream<T>>,
    /// Cleared by [`Self::forget`], and once the direction has ended.
    ends_on_drop: bool,
}

impl<T: Transport> OwnedReadHalf<T> {
    pub(super) fn pair(stream: Stream<T>) -> (Self, OwnedWriteHalf<T>) {
        let stream = Arc::new(stream);
        let write = OwnedWriteHalf { stream: Arc::clone(&stream), ends_on_drop: true };
        (Self { stream }, write)
    }

    /// Puts the two halves of one stream together again.
    ///
    /// # Errors
    /// If they are halves of different streams: the error holds both.
    pub fn reunite(self, other: OwnedWriteHalf<T>) -> Result<Stream<T>, ReuniteError<T>> {
        if !Arc::ptr_eq(&self.stream, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        other.forget();
        Arc::try_unwrap(self.stream).map_err(|stream| {
            // Unreachable: there are never more handles than the two halves.
            let write = OwnedWriteHalf { stream: Arc::clone(&stream), ends_on_drop: true };
            ReuniteError(Self { stream }, write)
        })
    }
}

impl<T: Transport> OwnedWriteHalf<T> {
    /// The direction has ended: the drop need not end it.
    pub(super) fn forget_end(&mut self) {
        self.ends_on_drop = false;
    }

    /// Drops it without ending the direction: it ends when the reading half is dropped.
    pub fn forget(mut self) {
        self.ends_on_drop = false;
    }

    /// Puts the two halves of one stream together again.
    ///
    /// # Errors
    /// As [`OwnedReadHalf::reunite`].
    pub fn reunite(self, other: OwnedReadHalf<T>) -> Result<Stream<T>, ReuniteError<T>> {
        other.reunite(self)
    }
}

impl<T: Transport> AsRef<Stream<T>> for OwnedReadHalf<T> {
    fn as_ref(&self) -> &Stream<T> {
        &self.stream
    }
}

impl<T: Transport> AsRef<Stream<T>> for OwnedWriteHalf<T> {
    fn as_ref(&self) -> &Stream<T> {
        &self.stream
    }
}

impl<T: Transport> Drop for OwnedWriteHalf<T> {
    fn drop(&mut self) {
        if self.ends_on_drop {
            // If it is not connected any more, the direction has ended already.
            let _ = self.stream.shutdown_now(Shutdown::Write);
        }
    }
}

/// The error of [`OwnedReadHalf::reunite`]: two halves of different streams, which it gives back.
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let (one, _) = Stream::connect(listener.local_addr()?).await?.into_split();
/// let (_, two) = Stream::connect(listener.local_addr()?).await?.into_split();
/// let error = one.reunite(two).expect_err("of two streams");
/// assert_eq!(error.to_string(), "halves of different streams");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ReuniteError<T: Transport = Accelerated>(pub OwnedReadHalf<T>, pub OwnedWriteHalf<T>);

impl<T: Transport> fmt::Display for ReuniteError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("halves of different streams")
    }
}

impl<T: Transport> Error for ReuniteError<T> {}
