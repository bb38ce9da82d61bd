//! A socket of the C interface: a stream socket or a datagram socket.
//!
//! Calls that both kinds have are passed on here; calls that only one kind has fail on the other as
//! the kernel's sockets do.

use crate::errno::error;
use libc::c_int;
use rsock_core::datagram::{Datagram, MessageFlags};
use rsock_core::rsocket::{Socket, Source, close_without_descriptor};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// A socket of either kind.
#[derive(Debug)]
pub(crate) enum AnySocket {
    Stream(Box<Socket>),
    Datagram(Box<Datagram>),
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// The number of bytes stored.
    pub(crate) len: usize,
    /// The number of bytes that arrived: more than `len` for a datagram that was truncated.
    pub(crate) full_len: usize,
    pub(crate) from: SocketAddr,
}

impl Received {
    /// The return value of the call: with `MSG_TRUNC` the full length.
    pub(crate) fn reported_len(&self, flags: c_int) -> usize {
        if flags & libc::MSG_TRUNC == 0 { self.len } else { self.full_len }
    }
}

/// Runs the same expression on either kind.
macro_rules! either {
    ($any:expr, $socket:ident => $do:expr) => {
        match $any {
            AnySocket::Stream($socket) => $do,
            AnySocket::Datagram($socket) => $do,
        }
    };
}

impl AnySocket {
    pub(crate) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        either!(self, socket => socket.bind(addr))
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<()> {
        match self {
            Self::Stream(socket) => socket.connect(to, None),
            Self::Datagram(socket) => socket.connect(to),
        }
    }

    /// The stream socket: only streams listen, accept and have iomaps.
    pub(crate) fn stream(&self) -> io::Result<&Socket> {
        match self {
            Self::Stream(socket) => Ok(socket),
            Self::Datagram(_) => error(libc::EOPNOTSUPP),
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Stream(socket) => socket.shutdown(how),
            // COMPAT: librdmacm does nothing either.
            Self::Datagram(_) => Ok(()),
        }
    }

    pub(crate) fn close(&self) {
        either!(self, socket => socket.close());
    }

    /// As [`Self::close`], of a socket that is not dropped: its descriptor was closed already.
    pub(crate) fn close_without_descriptor(&self) {
        match self {
            Self::Stream(socket) => close_without_descriptor(socket),
            Self::Datagram(socket) => _ = socket.close_without_descriptor(),
        }
    }

    /// Sends; the only flag with an effect is `MSG_DONTWAIT`. An address is `EISCONN` on a stream.
    pub(crate) fn send(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> io::Result<usize> {
        match self {
            Self::Stream(_) if to.is_some() => error(libc::EISCONN),
            Self::Stream(socket) => {
                socket.send(bufs, SendFlags::from_bits_retain(flags.cast_unsigned()))
            }
            Self::Datagram(socket) => socket.send_to(bufs, to, message_flags(flags)),
        }
    }

    /// Receives; the flags with an effect are `MSG_DONTWAIT` and `MSG_PEEK`, and on a stream
    /// `MSG_WAITALL`. Does not look the source up where that costs a call.
    pub(crate) fn recv(&self, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> io::Result<usize> {
        match self {
            Self::Stream(socket) => {
                socket.recv(bufs, RecvFlags::from_bits_retain(flags.cast_unsigned()))
            }
            Self::Datagram(_) => Ok(self.recv_from(bufs, flags)?.reported_len(flags)),
        }
    }

    /// As [`Self::recv`], with the source; for a stream that is the peer.
    pub(crate) fn recv_from(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: c_int,
    ) -> io::Result<Received> {
        match self {
            Self::Stream(socket) => {
                let len = self.recv(bufs, flags)?;
                Ok(Received { len, full_len: len, from: socket.peer_addr()? })
            }
            Self::Datagram(socket) => {
                let received = socket.recv_from(bufs, message_flags(flags))?;
                let rsock_core::datagram::Received { len, full_len, from } = received;
                Ok(Received { len, full_len, from })
            }
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(self, socket => socket.local_addr())
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        either!(self, socket => socket.peer_addr())
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        either!(self, socket => socket.is_nonblocking())
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        either!(self, socket => socket.set_nonblocking(on));
    }

    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
        either!(self, socket => socket.set_option(level, name, value))
    }

    /// The value as C lays it out, for a caller with room for `room` bytes.
    pub(crate) fn option(&self, level: c_int, name: c_int, room: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Stream(socket) => socket.option(level, name),
            Self::Datagram(socket) => socket.option(level, name, room),
        }
    }

    /// For [`rsock_core::rsocket::poll`].
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Self::Stream(socket) => Source::Socket(socket),
            Self::Datagram(socket) => Source::Datagram(socket),
        }
    }
}

impl AsFd for AnySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, socket => socket.as_fd())
    }
}

/// Those of the flags of C that a datagram socket takes.
fn message_flags(flags: c_int) -> MessageFlags {
    let mut result = MessageFlags::empty();
    result.set(MessageFlags::DONT_WAIT, flags & libc::MSG_DONTWAIT != 0);
    result.set(MessageFlags::PEEK, flags & libc::MSG_PEEK != 0);
    result
}
