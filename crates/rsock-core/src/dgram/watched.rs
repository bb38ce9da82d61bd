//! Waiting for a datagram socket in an event loop that is not ours: tasks, not threads, wait.
//!
//! The loop watches the UDP socket, edge-triggered, and a [`Doorbell`] for what comes through shared
//! memory. The order is: try, and if that would block, [`Datagram::arm_doorbell`], then wait; a `false`
//! of it means that something came meanwhile. Handshakes need no watching: who asks for a lane goes
//! on sending by UDP until it is there, and each packet makes a try.

use super::socket::{Datagram, Received};
use crate::Doorbell;
use crate::doorbell::Kind;
use crate::interrupt::Section;
use rsock_verbs::{Context, DatagramQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Looks at UDP in one try. Each takes a batch of packets, of which none may be for the program.
const LOOKS: u32 = 64;

impl Datagram {
    /// As [`Self::recv_from`], and never waits. `WouldBlock` means that the UDP socket was empty, so
    /// that the next packet shows as an event.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn try_recv_from(&self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<Received> {
        for _ in 1..LOOKS {
            match self.recv_from(bufs, peek, true) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.has_packets() => {}
                done => return done,
            }
        }
        self.recv_from(bufs, peek, true)
    }

    /// As [`Self::send_to`] of one piece, and never waits.
    ///
    /// # Errors
    /// As [`Self::send_to`].
    pub fn try_send_to(&self, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        self.send_to(&[IoSlice::new(bytes)], to, true)
    }

    fn has_packets(&self) -> bool {
        let mut fds = [PollFd::new(&*self.port, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n == 1)
    }

    /// Whether anything has come that a receive would find without looking at UDP. A few loads, for
    /// spinning.
    #[must_use]
    pub fn has_input(&self) -> bool {
        self.n_waiting.load(Ordering::Acquire) != 0
            || matches!(self.local.get(), Some(Some(local)) if local.ud.is_ready())
    }

    /// Whether peers have sent through shared memory so far.
    #[must_use]
    pub fn has_local_peers(&self) -> bool {
        matches!(self.local.get(), Some(Some(local)) if local.is_active())
    }

    /// Which of `events` hold now, as `poll(2)` tells them; looks at UDP.
    #[must_use]
    pub fn events(&self, events: PollFlags) -> PollFlags {
        self.readiness(events, true)
    }

    /// A doorbell for this socket; `None` where nothing comes but by UDP. Binds the socket.
    ///
    /// # Errors
    /// When descriptors or memory run out (`EMFILE`, `ENFILE`, `ENOMEM`).
    pub fn doorbell(&self) -> io::Result<Option<Doorbell>> {
        let Some(local) = self.local()? else { return Ok(None) };
        Ok(Some(local.ctx.create_bell()?.into()))
    }

    /// Arms `bell` for what comes through shared memory, until [`Self::disarm_doorbell`]. False, and
    /// nothing is armed, if there is something already, or too many wait.
    #[must_use]
    pub fn arm_doorbell(&self, bell: &Doorbell) -> bool {
        let _section = Section::enter();
        let (Some(Some(local)), Kind::Soft(bell)) = (self.local.get(), bell.kind()) else {
            return false;
        };
        local.sweep();
        local.ud.arm(bell)
    }

    /// Takes back an [`Self::arm_doorbell`] that returned true.
    pub fn disarm_doorbell(&self, bell: &Doorbell) {
        let _section = Section::enter();
        if let Kind::Soft(bell) = bell.kind() {
            self.disarm(bell);
        }
    }

    /// Another descriptor of the UDP socket, to watch it by. From here on the socket talks over no RDMA
    /// device: no doorbell rings for what comes there.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn watched(&self) -> io::Result<OwnedFd> {
        self.is_watched.store(true, Ordering::Relaxed);
        self.port.as_fd().try_clone_to_owned()
    }
}
