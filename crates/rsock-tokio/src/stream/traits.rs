//! Traits of Tokio and of the standard library for the stream and its halves.

use super::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf};
use crate::builder::default_spin;
use crate::transport::Transport;
use rustix::net::RecvFlags;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

impl<T: Transport> Stream<T> {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let bufs = &mut [IoSliceMut::new(buf.initialize_unfilled())];
        let n = ready!(self.poll_recv(cx, bufs, RecvFlags::empty()))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&self) -> Poll<io::Result<()>> {
        Poll::Ready(match self.shutdown_now(Shutdown::Write) {
            // The peer has ended both directions before: Tokio's own stream reports success.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        })
    }
}

/// Implements reading for a type that is `AsRef` of its stream.
macro_rules! impl_async_read {
    ($type:ty) => {
        impl<T: Transport> AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                AsRef::<Stream<T>>::as_ref(&*self).poll_read(cx, buf)
            }
        }
    };
}

/// Implements writing for a type that is `AsRef` of its stream; `$ended` runs after the direction
/// was shut down.
macro_rules! impl_async_write {
    ($type:ty, $ended:expr) => {
        impl<T: Transport> AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsRef::<Stream<T>>::as_ref(&*self).poll_send(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsRef::<Stream<T>>::as_ref(&*self).poll_send(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                let done = AsRef::<Stream<T>>::as_ref(&*self).poll_shutdown();
                let ended: fn(&mut Self) = $ended;
                ended(&mut self);
                done
            }
        }
    };
}

impl_async_read!(Stream<T>);
impl_async_read!(ReadHalf<'_, T>);
impl_async_read!(OwnedReadHalf<T>);
impl_async_write!(Stream<T>, |_| {});
impl_async_write!(WriteHalf<'_, T>, |_| {});
impl_async_write!(OwnedWriteHalf<T>, Self::forget_end);

impl<T: Transport> AsRef<Self> for Stream<T> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl From<TcpStream> for Stream {
    /// As [`Stream::from_std`], for a socket of this runtime.
    fn from(socket: TcpStream) -> Self {
        Self::new(socket, None, default_spin(), 0)
    }
}

impl<T: Transport> AsFd for Stream<T> {
    /// The TCP socket: reading or writing it directly makes the stream stay on TCP, or is reported
    /// as an error. With rsockets, a descriptor that can only be closed and compared.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

impl<T: Transport> AsRawFd for Stream<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: Transport> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("transport", &self.transport).finish_non_exhaustive()
    }
}
