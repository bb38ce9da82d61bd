//! PendingDatagrams: asleep on the bells that peers in shared memory and RDMA devices ring, the UDP socket, and the
//! descriptors of handshakes; and what polls of several sockets need to know.

use crate::datagram::remote::{Queue, Remote};
use crate::datagram::socket::{Datagram, raw};
use crate::engine::{ThreadBell, spin_on};
use crate::interrupt::Watch;
use crate::sys;
use rsock_verbs::rdma::Rdma;
use rsock_verbs::soft::{Soft, SoftBell};
use rsock_verbs::{Bell, DatagramQueue};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Datagram {
    /// Sleeps until there may be something, or `deadline`.
    pub(super) fn sleep(&self, deadline: Option<Instant>, watch: Watch) -> io::Result<()> {
        armed(&[self], |bells, limit| {
            // SYNC(closed): pairs with `close`.
            if self.is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            let soon = limit.map(|limit| sys::now() + limit);
            self.sleep_on(bells, [deadline, soon].into_iter().flatten().min(), watch)
        })
    }

    fn sleep_on(
        &self,
        bells: &[libc::pollfd],
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        let mut fds = Vec::with_capacity(5);
        let until = self.poll_entries(&mut fds);
        fds.extend_from_slice(bells);
        let until = [deadline, until].into_iter().flatten().min();
        match sys::sleep(&mut fds, sys::time_left(until), None, watch) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) && !watch.must_end() => Ok(()),
            result => result.map(drop),
        }
    }

    /// What a thread that waits to receive polls besides its armed bell, and when it looks again at
    /// the latest. Whatever it finds, [`Self::poll_udp`] follows.
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
            let has_any =
                || self.n_pending.load(Ordering::Acquire) != 0 || self.is_ready_past_udp();
            if look && !has_any() {
                self.poll_udp();
            }
            if has_any() {
                ready |= events & readable;
            }
        }
        ready
    }

    /// Arms `bell` for what comes through shared memory; false if something has come, or there is no
    /// place for the bell. Nothing where nothing comes that route.
    pub(super) fn arm(&self, bell: &SoftBell) -> Option<bool> {
        let local = self.local().ok()??;
        local.sweep();
        Some(local.ud.arm(bell))
    }

    /// Takes back an [`Self::arm`].
    pub(super) fn disarm(&self, bell: &SoftBell) {
        if let Some(Some(local)) = self.local.get() {
            local.ud.disarm(bell);
        }
    }

    /// The queues on RDMA devices that may get something.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let remote = self.remote.get().and_then(Option::as_ref);
        let queues = remote.into_iter().flat_map(Remote::queues);
        queues.filter(|queue| queue.is_usable())
    }

    /// Whether something has come past UDP.
    pub(super) fn is_ready_past_udp(&self) -> bool {
        matches!(self.local.get(), Some(Some(local)) if local.ud.is_ready())
            || matches!(self.remote.get(), Some(Some(remote)) if remote.is_ready())
    }

    pub(super) fn receive_timeout(&self) -> Option<Duration> {
        use rustix::net::sockopt::{Timeout, socket_timeout};
        socket_timeout(&*self.port, Timeout::Recv).ok().flatten()
    }

    /// For a thread that waits for this socket alone: spins where that is likely to pay.
    pub(crate) fn spin(&self) -> bool {
        let is_active = matches!(self.local.get(), Some(Some(local)) if local.is_active())
            || matches!(self.remote.get(), Some(Some(remote)) if remote.is_active());
        is_active && spin_on(|| self.is_ready_past_udp())
    }
}

/// Runs `f` with the calling thread's bells armed for what comes past UDP to any of `sockets`: with what to
/// poll, and how long it sleeps at most. Does not run it if something has come.
///
/// # Errors
/// Those of `f`; when no bell can be made.
pub(crate) fn armed(
    sockets: &[&Datagram],
    f: impl FnOnce(&[libc::pollfd], Option<Duration>) -> io::Result<()>,
) -> io::Result<()> {
    with_local_bell(sockets, |local| {
        with_remote_bell(sockets, |remote| {
            if sockets.iter().any(|socket| socket.is_ready_past_udp()) {
                return Ok(());
            }
            let bells: Vec<_> = [local, remote].iter().filter_map(|bell| bell.entry).collect();
            let is_short = local.is_short || remote.is_short;
            f(&bells, is_short.then_some(WITHOUT_BELL))
        })
    })
}

/// A bell that is armed.
#[derive(Clone, Copy, Default)]
struct ArmedBell {
    /// To be polled.
    entry: Option<libc::pollfd>,
    /// Not armed everywhere: for lack of room, or because something has come.
    is_short: bool,
}

fn with_local_bell(
    sockets: &[&Datagram],
    f: impl FnOnce(ArmedBell) -> io::Result<()>,
) -> io::Result<()> {
    let mut locals = sockets.iter().filter_map(|socket| socket.local().ok().flatten());
    let Some(local) = locals.next() else { return f(ArmedBell::default()) };
    Soft::with_bell(&local.ctx, |bell| {
        let armed: Vec<_> = sockets.iter().map(|socket| socket.arm(bell)).collect();
        let is_short = armed.contains(&Some(false));
        let result = f(ArmedBell { entry: Some(raw(bell.as_fd(), libc::POLLIN)), is_short });
        sockets.iter().for_each(|socket| socket.disarm(bell));
        bell.drain();
        result
    })?
}

fn with_remote_bell(
    sockets: &[&Datagram],
    f: impl FnOnce(ArmedBell) -> io::Result<()>,
) -> io::Result<()> {
    let queues: Vec<_> = sockets.iter().flat_map(|socket| socket.queues()).collect();
    let Some(queue) = queues.first() else { return f(ArmedBell::default()) };
    Rdma::with_bell(queue.context(), |bell| {
        let n_armed = queues.iter().filter(|queue| queue.ud().arm(bell)).count();
        let is_short = n_armed < queues.len();
        let result = f(ArmedBell { entry: Some(raw(bell.as_fd(), libc::POLLIN)), is_short });
        queues.iter().for_each(|queue| queue.ud().disarm(bell));
        bell.drain();
        result
    })?
}

/// How long a thread sleeps for which there is no place for a bell.
pub(crate) const WITHOUT_BELL: Duration = Duration::from_millis(1);
