//! Waiting: asleep on the bell that peers in shared memory ring, the UDP socket, and the descriptors of
//! handshakes; and what polls of several sockets need to know.

use super::local::Local;
use super::socket::{Datagram, raw};
use crate::engine::{ThreadBell, spin_on};
use crate::interrupt::Watch;
use crate::sys;
use rsock_verbs::soft::{Soft, SoftBell, SoftContext};
use rsock_verbs::{Bell, DatagramQueue};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Datagram {
    /// Sleeps until there may be something, or `deadline`.
    pub(super) fn sleep(
        &self,
        local: Option<&Local>,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        let Some(local) = local else { return self.doze(None, deadline, watch) };
        local.sweep();
        Soft::with_bell(&local.ctx, |bell| {
            if local.ud.arm(bell) {
                // SYNC(closed): pairs with `close`.
                let is_closed = self.is_closed.load(Ordering::Acquire);
                let result =
                    if is_closed { Ok(()) } else { self.doze(Some(bell), deadline, watch) };
                local.ud.disarm(bell);
                bell.drain();
                return result;
            }
            if local.ud.is_ready() {
                return Ok(());
            }
            // No place for another bell: look again soon.
            let soon = sys::now() + CROWDED;
            self.doze(None, Some(deadline.map_or(soon, |d| d.min(soon))), watch)
        })?
    }

    fn doze(
        &self,
        bell: Option<&SoftBell>,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        let mut fds = Vec::with_capacity(4);
        let until = self.poll_entries(&mut fds);
        if let Some(bell) = bell {
            fds.push(raw(bell.as_fd(), libc::POLLIN));
        }
        let until = [deadline, until].into_iter().flatten().min();
        match sys::sleep(&mut fds, sys::time_left(until), None, watch) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) && !watch.must_end() => Ok(()),
            result => result.map(drop),
        }
    }

    /// What a thread that waits to receive polls besides its armed bell, and when it looks again at
    /// the latest. Whatever it finds, [`Self::look_at_udp`] follows.
    pub(crate) fn poll_entries(&self, out: &mut Vec<libc::pollfd>) -> Option<Instant> {
        out.push(raw(self.port.as_fd(), libc::POLLIN));
        let Some(Some(local)) = self.local.get() else { return None };
        local.poll_entries(out)
    }

    /// Which of `events` hold; looks at UDP with a system call if `look`.
    pub(crate) fn readiness(&self, events: PollFlags, look: bool) -> PollFlags {
        let readable = PollFlags::IN | PollFlags::RDNORM;
        let mut ready = events & (PollFlags::OUT | PollFlags::WRNORM);
        if events.intersects(readable) {
            let has_any = || {
                self.n_waiting.load(Ordering::Acquire) != 0
                    || matches!(self.local.get(), Some(Some(local)) if local.ud.is_ready())
            };
            if look && !has_any() {
                self.look_at_udp();
            }
            if has_any() {
                ready |= events & readable;
            }
        }
        ready
    }

    /// Arms `bell` for what comes through shared memory; false if something has come, or nothing was armed.
    pub(crate) fn arm(&self, bell: &SoftBell) -> Option<bool> {
        let local = self.local().ok()??;
        local.sweep();
        Some(local.ud.arm(bell))
    }

    /// Takes back an [`Self::arm`].
    pub(crate) fn disarm(&self, bell: &SoftBell) {
        if let Some(Some(local)) = self.local.get() {
            local.ud.disarm(bell);
        }
    }

    /// The device of the part for peers on this host.
    pub(crate) fn context(&self) -> Option<&SoftContext> {
        Some(&self.local().ok()??.ctx)
    }

    pub(super) fn receive_timeout(&self) -> Option<Duration> {
        use rustix::net::sockopt::{Timeout, socket_timeout};
        socket_timeout(&*self.port, Timeout::Recv).ok().flatten()
    }

    /// For a thread that waits for this socket alone: spins where that is likely to pay.
    pub(crate) fn spin(&self) -> bool {
        match self.local.get() {
            Some(Some(local)) if local.is_active() => spin_on(|| local.ud.is_ready()),
            _ => false,
        }
    }
}

/// How long a thread sleeps for which there is no place for a bell.
pub(crate) const CROWDED: Duration = Duration::from_millis(1);
