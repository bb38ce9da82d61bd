//! One end of the handshake's Unix socket: whole messages, with descriptors, never waiting.

use super::wire::MAX_LEN;
use crate::error::{Error, Violation};
use rsock_verbs::cred::PeerCred;
use rsock_verbs::untrusted::{self, PeerSocket, UntrustedFd};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

/// A connected sequential-packet socket.
#[derive(Debug)]
pub(super) struct MessageSocket {
    fd: PeerSocket,
}

/// Most descriptors that one message of this handshake carries.
const MAX_FDS: usize = 4;

/// A message taken from a [`MessageSocket`].
#[derive(Debug)]
pub(super) struct Received {
    buf: [u8; MAX_LEN + 1],
    len: usize,
    pub(super) fds: Vec<UntrustedFd>,
    /// Credentials of its sender; known after [`MessageSocket::enable_credentials`].
    pub(super) sender: Option<PeerCred>,
}

impl Received {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

pub(super) fn socket() -> Result<PeerSocket, Error> {
    if untrusted::is_flooded() {
        return Err(Error::system("socket")(Errno::MFILE));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map(PeerSocket::with_fixed_number)
        .map_err(Error::system("socket"))
}

pub(super) fn name(text: &str) -> Result<SocketAddrUnix, Error> {
    SocketAddrUnix::new_abstract_name(text.as_bytes()).map_err(Error::system("bind"))
}

impl MessageSocket {
    /// Wraps a connected socket.
    pub(super) fn new(fd: PeerSocket) -> Self {
        Self { fd }
    }

    /// Credentials of the process at the other end, as of connect or listen.
    pub(super) fn peer(&self) -> Result<PeerCred, Error> {
        Ok(PeerCred::of(&self.fd)?)
    }

    /// From now on every message comes with the credentials of the process that sent it.
    pub(super) fn enable_credentials(&self) -> Result<(), Error> {
        sockopt::set_socket_passcred(&self.fd, true).map_err(Error::system("setsockopt"))
    }

    /// Sends one message. The handshake never has more than two messages on their way, so a full
    /// socket is the peer's fault.
    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::LocalState("too many descriptors in one message"));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(Error::PeerGone),
            Err(e) => Err(Error::System { call: "sendmsg", source: e.into() }),
        }
    }

    /// Takes the next message, if one is there.
    pub(super) fn receive(&self) -> Result<Option<Received>, Error> {
        let mut received =
            Received { buf: [0; MAX_LEN + 1], len: 0, fds: Vec::new(), sender: None };
        let message = loop {
            match untrusted::receive(self.fd.as_fd(), &mut received.buf) {
                Ok(message) => break message,
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::INTR) => {}
                    Some(Errno::AGAIN) => return Ok(None),
                    Some(Errno::CONNRESET) => return Err(Error::PeerGone),
                    _ => return Err(Error::System { call: "recvmsg", source: e }),
                },
            }
        };
        if message.len == 0 {
            return Err(Error::PeerGone);
        }
        if message.len > MAX_LEN {
            return Err(Violation::Length.into());
        }
        if message.is_cut || message.fds.len() > MAX_FDS {
            return Err(Violation::Descriptors.into());
        }
        received.len = message.len;
        received.fds = message.fds;
        received.sender = message.sender;
        Ok(Some(received))
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
