//! The end of a stream.

use crate::engine::QpStream;
use crate::engine::resources::CONTROL;
use crate::engine::shared::{FLAG_DISCONNECTED, FLAG_EOF, FLAG_SEND_CLOSED, RecvState};
use crate::interrupt::Section;
use rsock_proto::{Ctrl, LifecycleEvent};
#[cfg(test)]
use rsock_verbs::CompletionQueue;
use rsock_verbs::soft::Soft;
use rsock_verbs::{Backend, PostError, SendFlags};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::thread::{Timespec, nanosleep};
use std::io;
use std::net::Shutdown;
use std::sync::atomic::Ordering;

/// How often, a millisecond apart, an end is posted again to a peer in shared memory that takes
/// nothing: its thread may have lost the CPU while it kept this sender out. There are always
/// receives for an end.
const PAUSE_LOOKS: u32 = 100;

impl<B: Backend> QpStream<B> {
    /// Ends one or both directions, and tells the peer so. Bytes already sent still arrive.
    pub fn shutdown(&self, how: Shutdown) {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        self.advance(
            &mut recv,
            match how {
                Shutdown::Read => LifecycleEvent::LocalShutRd,
                Shutdown::Write => LifecycleEvent::LocalShutWr,
                Shutdown::Both => LifecycleEvent::LocalShutRdWr,
            },
        );
    }

    /// Ends the stream because the caller found that the peer's process or host is gone. Bytes that
    /// have arrived stay readable, then the stream ends; nothing more can be sent.
    pub fn peer_gone(&self) {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        drop(recv);
        let mail = &self.ring.shared.mail;
        mail.raise(FLAG_DISCONNECTED | FLAG_SEND_CLOSED | FLAG_EOF);
        self.announce();
    }

    /// The failure of the connection, if it has failed; as `SO_ERROR`.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        match self.ring.shared.mail.error.load(Ordering::Acquire) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno.cast_signed())),
        }
    }

    /// Sends a control message. A peer that takes none any more counts as disconnected.
    pub(super) fn send_ctrl(&self, recv: &mut RecvState, ctrl: Ctrl) {
        // Its completion says that everything before it has arrived: see `is_drained`.
        let flags = if B::SENDS_WAIT { SendFlags::SIGNALED } else { SendFlags::empty() };
        let word = rsock_proto::Msg::Ctrl(ctrl).encode();
        let post = || self.resources.post_flagged(CONTROL, None, &[], word, flags);
        let mut posted = post();
        for _ in 0..PAUSE_LOOKS {
            if B::SENDS_WAIT || posted != Err(PostError::QueueFull) {
                break;
            }
            let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = nanosleep(&pause);
            posted = post();
        }
        if posted.is_err() {
            // The peer takes no messages at all any more: it learns of the end by the hang-up.
            self.ring.shared.mail.raise(FLAG_DISCONNECTED);
        } else if self.limits_ctrl {
            let had_room = recv.ctrl.post();
            debug_assert!(had_room, "grants leave room for each end, and each end is sent once");
        }
    }
}

impl QpStream<Soft> {
    /// Runs `f` while the peer's messages wait, as they do when pages are given back.
    #[cfg(test)]
    pub(crate) fn while_peer_is_paused(&self, f: &mut dyn FnMut()) {
        assert!(self.resources.cq.exclusively(f), "the peer is sending");
    }

    /// The descriptor that hangs up when the peer's process is gone. The peer sees this process
    /// alive as long as any process holds the descriptor.
    pub(crate) fn link_fd(&self) -> BorrowedFd<'_> {
        self.resources.path.as_fd()
    }
}
