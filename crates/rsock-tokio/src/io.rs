//! Tokio's traits for the stream and its halves: all of them read and write through [`Shared`].

use crate::shared::Shared;
use crate::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::stream::Stream;
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

impl Shared {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let bufs = &mut [IoSliceMut::new(buf.initialize_unfilled())];
        let n = ready!(self.poll_recv(cx, bufs, RecvFlags::empty()))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

/// Implements reading for a type, given how to reach the shared part.
macro_rules! reads {
    ($type:ty) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                self.shared().poll_read(cx, buf)
            }
        }
    };
}

/// Implements writing; `$ended` runs after the direction was shut down.
macro_rules! writes {
    ($type:ty, $ended:expr) => {
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.shared().poll_send(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.shared().poll_send(cx, bufs)
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
                let done = self.shared().shutdown(Shutdown::Write);
                let ended: fn(&mut Self) = $ended;
                ended(&mut self);
                Poll::Ready(match done {
                    // The peer was faster, and ended both: so Tokio's own.
                    Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
                    done => done,
                })
            }
        }
    };
}

reads!(Stream);
reads!(ReadHalf<'_>);
reads!(OwnedReadHalf);
writes!(Stream, |_| {});
writes!(WriteHalf<'_>, |_| {});
writes!(OwnedWriteHalf, Self::ended);

impl Stream {
    fn shared(&self) -> &Shared {
        &self.shared
    }
}
