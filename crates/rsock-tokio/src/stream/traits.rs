//! Tokio's traits for the stream and its halves.

use super::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf};
use crate::transport::Transport;
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
