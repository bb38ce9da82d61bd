//! A TCP socket together with its accelerated stream, owned as one.

use crate::accelerate::{AcceleratedStream, Channels, FallbackReason, Need, Side};
use rustix::net::{RecvFlags, SendFlags};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A TCP socket and the [`AcceleratedStream`] beside it, if there is one. Dropping it closes both.
///
/// This is what blocking and asynchronous streams hand to each other; a stream for programs is
/// `rsock::Stream`.
pub struct AcceleratedSocket {
    accelerated: Option<Arc<AcceleratedStream>>,
    socket: TcpStream,
    on_drop: OnDrop,
}

/// What dropping the socket does to the accelerated stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    Close,
    /// The TCP connection goes on under another owner.
    Leave,
}

impl AcceleratedSocket {
    /// Takes over a connected socket through which no byte has passed yet. (A socket that has been
    /// used works too, and stays on TCP.)
    ///
    /// `side` says which end of the connection this is. The two ends of a connection between hosts
    /// do different things to set up RDMA, so without a side such a connection stays on TCP.
    #[must_use]
    pub fn adopt(socket: TcpStream, side: Option<Side>) -> Self {
        let accelerated = AcceleratedStream::adopt(socket.as_fd(), side).map(Arc::new);
        Self::from_parts(socket, accelerated)
    }

    /// Joins a socket and the accelerated stream that was made for it. Without one the connection
    /// stays on TCP.
    #[must_use]
    pub fn from_parts(socket: TcpStream, accelerated: Option<Arc<AcceleratedStream>>) -> Self {
        Self { accelerated, socket, on_drop: OnDrop::Close }
    }

    /// The TCP socket, for its options and addresses. Bytes read from or written to it past this
    /// type make the stream stay on TCP, or break it.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The accelerated stream, for [`crate::accelerate::poll`]; `None` if rsock is switched off.
    #[must_use]
    pub fn accelerated(&self) -> Option<&AcceleratedStream> {
        self.accelerated.as_deref()
    }

    /// Receives; of the flags `MSG_PEEK`, `MSG_WAITALL` and `MSG_DONTWAIT` count. 0 is the end of
    /// the stream.
    ///
    /// # Errors
    /// As `recv(2)`: `EAGAIN` (non-blocking, or `SO_RCVTIMEO` is over), `EINTR`, `ECONNRESET`.
    #[inline]
    pub fn recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match &self.accelerated {
            Some(accelerated) => accelerated.recv(fd, bufs, flags),
            None => {
                let mut control = rustix::net::RecvAncillaryBuffer::default();
                Ok(rustix::net::recvmsg(fd, bufs, &mut control, flags)?.bytes)
            }
        }
    }

    /// Sends; a blocking socket sends all of `bufs`. `MSG_NOSIGNAL` is always in force.
    ///
    /// # Errors
    /// As `send(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`.
    #[inline]
    pub fn send(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let (fd, flags) = (self.socket.as_fd(), flags | SendFlags::NOSIGNAL);
        match &self.accelerated {
            Some(accelerated) => accelerated.send(fd, bufs, flags),
            None => {
                let mut control = rustix::net::SendAncillaryBuffer::default();
                Ok(rustix::net::sendmsg(fd, bufs, &mut control, flags)?)
            }
        }
    }

    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// As `shutdown(2)`: `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let Some(accelerated) = &self.accelerated else { return self.socket.shutdown(how) };
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        accelerated.shutdown(self.socket.as_fd(), how)
    }

    /// Bytes that a receive could return now.
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`.
    pub fn bytes_readable(&self) -> io::Result<usize> {
        match &self.accelerated {
            Some(accelerated) => accelerated.bytes_readable(self.socket.as_fd()),
            None => {
                let n = rustix::io::ioctl_fionread(&self.socket)?;
                Ok(usize::try_from(n).unwrap_or(usize::MAX))
            }
        }
    }

    /// The channel of each direction now.
    #[must_use]
    pub fn channels(&self) -> Channels {
        self.accelerated().map_or(Channels::TCP, AcceleratedStream::channels)
    }

    /// Why the stream stays on TCP; [`FallbackReason::None`] if it need not.
    #[must_use]
    pub fn pin_reason(&self) -> FallbackReason {
        self.accelerated().map_or(FallbackReason::Configured, AcceleratedStream::pin_reason)
    }

    /// Brings the stream back to TCP for good. Waits up to 10 ms for a peer on this host and up to
    /// 200 ms for one on another host. Says whether the TCP socket alone now carries the bytes of
    /// both directions; if not, bytes lie unread on the ring, or the peer did not answer in time,
    /// and the stream stays usable.
    #[must_use]
    pub fn return_to_tcp(&self) -> bool {
        self.accelerated.as_ref().is_none_or(|accelerated| {
            accelerated.leave_ring(self.socket.as_fd(), Need::Both, FallbackReason::Passed)
        })
    }

    /// Another descriptor of the TCP socket, whose connection goes on when this value is dropped.
    ///
    /// # Errors
    /// The socket itself, with `WouldBlock` if [`Self::return_to_tcp`] says no, or with what `dup`
    /// answers: `EMFILE`.
    pub fn into_std(mut self) -> Result<TcpStream, (Self, io::Error)> {
        if !self.return_to_tcp() {
            return Err((self, io::ErrorKind::WouldBlock.into()));
        }
        match self.socket.try_clone() {
            Ok(socket) => {
                self.on_drop = OnDrop::Leave;
                Ok(socket)
            }
            Err(e) => Err((self, e)),
        }
    }
}

impl Drop for AcceleratedSocket {
    fn drop(&mut self) {
        if let (Some(accelerated), OnDrop::Close) = (&self.accelerated, self.on_drop) {
            accelerated.close(self.socket.as_fd());
        }
    }
}

impl AsFd for AcceleratedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for AcceleratedSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for AcceleratedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceleratedSocket")
            .field("socket", &self.socket)
            .field("channels", &self.channels())
            .field("pin_reason", &self.pin_reason())
            .finish()
    }
}
