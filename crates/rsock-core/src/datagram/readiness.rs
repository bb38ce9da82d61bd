//! Readiness of a datagram socket for an event loop, where tasks wait rather than threads.
//!
//! The loop watches the UDP socket, edge-triggered, and a [`Doorbell`] for each kind of queue
//! beside it: in shared memory, and on RDMA devices as soon as the socket has a queue there. The
//! order is: take a mark, try, and if that would block, [`Datagram::arm_doorbell`], check whether
//! anything [has changed](Datagram::has_changed) since the mark, then wait. If arming returns
//! `false`, a datagram came meanwhile. A task that waits while another call creates a [new
//! queue](Datagram::n_remote_queues) must arm again. Handshakes need no watching: a peer that asks
//! for a lane sends by UDP until it has the lane, and each packet makes the task try again.
//!
//! A send may find no room in the UDP socket, or on a device: [`Datagram::room_retry_after`] tells
//! which, and [`Datagram::events`] whether there is room in both.
//!
//! A try looks at some thousand packets at most, of which none may be for the program. A task that
//! finds nothing asks for [`Datagram::has_unannounced_packets`] before it waits.

use crate::Doorbell;
use crate::datagram::flags::MessageFlags;
use crate::datagram::remote::Remote;
use crate::datagram::waiting::PollUdp;
use crate::datagram::{Datagram, Received};
use crate::doorbell::Kind;
use crate::interrupt::Section;
use crate::sys;
use rsock_verbs::{Context, DatagramQueue};
use rustix::event::PollFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most receives in one try. Each takes a batch of packets, of which none may be for the program.
const MAX_TRIES: u32 = 64;

impl Datagram {
    /// As [`Self::recv_from`], and never waits. `WouldBlock` means that the UDP socket was empty,
    /// so that the next packet is an edge, or has [packets that no edge
    /// announces](Self::has_unannounced_packets).
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn try_recv_from(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: MessageFlags,
    ) -> io::Result<Received> {
        let flags = flags | MessageFlags::DONT_WAIT;
        self.until_udp_is_empty(|| self.recv_from(bufs, flags))
    }

    /// As [`Self::recv_batch`], and never waits. `WouldBlock` means the same as
    /// [`Self::try_recv_from`]'s.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn try_recv_batch(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        out: &mut [Option<Received>],
    ) -> io::Result<usize> {
        self.until_udp_is_empty(|| self.recv_up_to(bufs, out, MessageFlags::DONT_WAIT))
    }

    fn until_udp_is_empty<R>(&self, mut receive: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        for _ in 0..MAX_TRIES {
            match receive() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.has_packets() => {}
                done => return done,
            }
        }
        self.has_given_up.store(true, Ordering::Relaxed);
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Whether the UDP socket has packets that a try may have left there, so that no edge announces
    /// them. For a task that waits already: a later packet is an edge.
    #[must_use]
    pub fn has_unannounced_packets(&self) -> bool {
        // A system call once there have been so many packets.
        self.has_given_up.load(Ordering::Relaxed) && self.has_packets()
    }

    /// As [`Self::send_to`] of one piece, and never waits.
    ///
    /// # Errors
    /// As [`Self::send_to`].
    pub fn try_send_to(&self, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        self.send_to(&[IoSlice::new(bytes)], to, MessageFlags::DONT_WAIT)
    }

    fn has_packets(&self) -> bool {
        sys::poll_now(self.port.as_fd(), libc::POLLIN) != 0
    }

    /// The mark to take before a try: how often full RDMA devices have had room again.
    #[must_use]
    pub fn mark(&self) -> u32 {
        let remote = self.remote.get().and_then(Option::as_ref);
        remote.map_or(0, |remote| {
            remote.queues().fold(0, |sum, queue| sum.wrapping_add(queue.n_moves()))
        })
    }

    /// Whether a datagram has come that a receive would find without polling UDP, or there has been
    /// room since `mark` where there had been none. A few loads, for spinning.
    #[must_use]
    pub fn has_changed(&self, mark: u32) -> bool {
        if self.has_input() {
            return true;
        }
        // This call notices room on a device.
        let _ = self.room_retry_after();
        self.mark() != mark
    }

    /// Whether a datagram has come that a receive would find without polling UDP.
    #[must_use]
    pub fn has_input(&self) -> bool {
        self.n_pending.load(Ordering::Acquire) != 0 || self.is_ready_past_udp()
    }

    /// Whether peers have sent past UDP so far.
    #[must_use]
    pub fn has_peers_past_udp(&self) -> bool {
        matches!(self.local.get(), Some(Some(local)) if local.is_active())
            || matches!(self.remote.get(), Some(Some(remote)) if remote.is_active())
    }

    /// Number of queues on RDMA devices. A datagram for a new queue does not ring a doorbell that
    /// was armed before.
    #[must_use]
    pub fn n_remote_queues(&self) -> usize {
        self.remote.get().and_then(Option::as_ref).map_or(0, Remote::n_queues)
    }

    /// After a send that would have blocked: how long to wait for a doorbell of an RDMA device, at
    /// most, before the next try. `None` if the UDP socket has no room, or if the
    /// [mark](Self::mark) has changed.
    #[must_use]
    pub fn room_retry_after(&self) -> Option<Duration> {
        let remote = self.remote.get().and_then(Option::as_ref)?;
        remote.queues().filter_map(|queue| queue.room_retry_after()).min()
    }

    /// Which of `events` hold now, as `poll(2)` reports them; polls UDP. Without input the UDP
    /// socket was empty, or has [packets that no edge announces](Self::has_unannounced_packets).
    #[must_use]
    pub fn events(&self, events: PollFlags) -> PollFlags {
        for _ in 1..MAX_TRIES {
            let found = self.readiness(events, PollUdp::IfNeeded);
            let looks_on = events.contains(PollFlags::IN) && !found.contains(PollFlags::IN);
            if !looks_on || !self.has_packets() {
                return found;
            }
        }
        self.has_given_up.store(true, Ordering::Relaxed);
        self.readiness(events, PollUdp::IfNeeded)
    }

    /// A doorbell for datagrams in shared memory; `None` where there is no such queue. Binds the
    /// socket.
    ///
    /// # Errors
    /// When descriptors or memory run out (`EMFILE`, `ENFILE`, `ENOMEM`).
    pub fn local_doorbell(&self) -> io::Result<Option<Doorbell>> {
        let Some(local) = self.local()? else { return Ok(None) };
        Ok(Some(local.ctx.create_bell()?.into()))
    }

    /// A doorbell for datagrams over RDMA devices; `None` while the socket uses no device.
    ///
    /// # Errors
    /// As [`Self::local_doorbell`].
    pub fn remote_doorbell(&self) -> io::Result<Option<Doorbell>> {
        let Some(queue) = self.queues().next() else { return Ok(None) };
        Ok(Some(queue.context().create_bell()?.into()))
    }

    /// Arms `bell` for the queues of its device, until [`Self::disarm_doorbell`]. False, and
    /// nothing is armed, if a datagram is there already, or too many tasks wait.
    #[must_use]
    pub fn arm_doorbell(&self, bell: &Doorbell) -> bool {
        let _section = Section::enter();
        let is_armed = match bell.kind() {
            Kind::Soft(bell) => self.arm(bell) == Some(true),
            Kind::Rdma(bell) => self.queues().all(|queue| queue.ud().arm(bell)),
        };
        if !is_armed {
            self.disarm_doorbell(bell);
        }
        is_armed
    }

    /// Undoes an [`Self::arm_doorbell`] that returned true.
    pub fn disarm_doorbell(&self, bell: &Doorbell) {
        let _section = Section::enter();
        match bell.kind() {
            Kind::Soft(bell) => self.disarm(bell),
            Kind::Rdma(bell) => self.queues().for_each(|queue| queue.ud().disarm(bell)),
        }
    }

    /// A duplicate of the UDP socket's descriptor, for an event loop.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn watchable_fd(&self) -> io::Result<OwnedFd> {
        self.port.as_fd().try_clone_to_owned()
    }
}
