//! Established connections over rdma_cm.
#![forbid(unsafe_code)]

use super::RdmaManager;
use super::channel::EventChannel;
use super::id::Id;
use crate::manager::{Connected, Status};
use crate::port::Port;
use rsock_rdma_sys::cm::rdma_cm_event_type as Kind;
use rsock_verbs::rdma::RdmaPath;
use rustix::event::PollFlags;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// An established connection.
///
/// Its descriptor is readable when the kernel has an event. The event is the same, `DREQ`, whether
/// the peer disconnected, reset the connection or died.
#[derive(Debug)]
pub struct RdmaConnection {
    id: Arc<Id>,
    channel: Arc<EventChannel>,
    path: RdmaPath,
    local: SocketAddr,
    peer: SocketAddr,
    _port: Option<Arc<Port>>,
    ended: AtomicU8,
}

impl RdmaConnection {
    /// A connection of an identifier that is alone on its channel.
    pub(super) fn new(
        id: Arc<Id>,
        channel: Arc<EventChannel>,
        path: RdmaPath,
        (local, peer): (SocketAddr, SocketAddr),
        port: Option<Arc<Port>>,
    ) -> Self {
        let ended = AtomicU8::new(Status::Connected as u8);
        Self { id, channel, path, local, peer, _port: port, ended }
    }
}

impl Connected<RdmaManager> for RdmaConnection {
    fn path(&self) -> &RdmaPath {
        &self.path
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn disconnect(&self) {
        self.id.disconnect();
    }

    /// The device has no message for a reset.
    fn reset(&self) {
        self.id.disconnect();
    }

    fn status(&self) -> Status {
        while let Ok(Some(event)) = self.channel.next() {
            let status = match event.kind {
                Kind::RDMA_CM_EVENT_DISCONNECTED => Status::Disconnected,
                Kind::RDMA_CM_EVENT_DEVICE_REMOVAL => Status::Gone,
                // Its TIME_WAIT state is over, or its address has changed.
                _ => continue,
            };
            if status == Status::Disconnected {
                // The peer waits for the answer.
                self.id.disconnect();
            }
            // The first event stays.
            let (old, new) = (Status::Connected as u8, status as u8);
            let _ = self.ended.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        Status::from_byte(self.ended.load(Ordering::Relaxed))
    }

    fn interest(&self) -> PollFlags {
        PollFlags::IN
    }
}

impl Drop for RdmaConnection {
    fn drop(&mut self) {
        self.id.disconnect();
    }
}

impl AsFd for RdmaConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
