//! Established connections on the soft device, and their anchor: the Unix socket of the handshake.

use super::SoftManager;
use super::message_socket::{MessageSocket, Received};
use super::peer_link::Path;
use super::wire::{self, Bare, Kind};
use crate::error::Error;
use crate::manager::{Connected, Status};
use crate::port::Port;
use rustix::event::PollFlags;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use zerocopy::IntoBytes;

/// An established connection: two addresses, a path, and the anchor.
///
/// The anchor's descriptor hangs up (`POLLHUP`) when the peer disconnects or dies; [`Self::status`]
/// says which. Dropping a connection disconnects without a message.
#[derive(Debug)]
pub struct SoftConnection {
    message_socket: MessageSocket,
    path: Path,
    local: SocketAddr,
    peer: SocketAddr,
    /// Keeps a connector's port.
    _port: Option<Arc<Port>>,
    ended: AtomicU8,
}

impl SoftConnection {
    pub(super) fn new(
        message_socket: MessageSocket,
        path: Path,
        local: SocketAddr,
        peer: SocketAddr,
        port: Option<Arc<Port>>,
    ) -> Self {
        let ended = AtomicU8::new(Status::Connected as u8);
        Self { message_socket, path, local, peer, _port: port, ended }
    }

    fn end(&self, kind: Kind) {
        // A peer that is gone, or whose socket is full, learns it from the hang-up.
        let _ = self.message_socket.send(Bare::new(kind).as_bytes(), &[]);
        let _ = rustix::net::shutdown(&self.message_socket, rustix::net::Shutdown::Both);
    }
}

impl Connected<SoftManager> for SoftConnection {
    fn path(&self) -> &Path {
        &self.path
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Both anchors hang up.
    fn disconnect(&self) {
        self.end(Kind::Disconnect);
    }

    fn reset(&self) {
        self.end(Kind::Reset);
    }

    fn status(&self) -> Status {
        let known = Status::from_byte(self.ended.load(Ordering::Relaxed));
        if known != Status::Connected {
            return known;
        }
        let status = match self.message_socket.receive() {
            Ok(None) | Err(Error::System { .. }) => return Status::Connected,
            Ok(Some(m)) if is(&m, Kind::Disconnect) => Status::Disconnected,
            Ok(Some(m)) if is(&m, Kind::Reset) => Status::Reset,
            Ok(Some(_)) | Err(_) => Status::Gone,
        };
        // The first result stays: another thread may have taken the message meanwhile.
        match self.ended.compare_exchange(
            Status::Connected as u8,
            status as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => status,
            Err(first) => Status::from_byte(first),
        }
    }

    fn peer_pid(&self) -> u32 {
        self.path.peer_cred().pid
    }

    /// Only its hang-up.
    fn interest(&self) -> PollFlags {
        PollFlags::empty()
    }
}

fn is(message: &Received, kind: Kind) -> bool {
    message.fds.is_empty() && wire::parse::<Bare>(message.bytes(), kind).is_ok()
}

impl AsFd for SoftConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.message_socket.as_fd()
    }
}
