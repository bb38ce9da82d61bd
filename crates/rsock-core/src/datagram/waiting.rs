//! Waiting: a thread sleeps on the bells of the queues in shared memory and on RDMA devices, the
//! UDP socket, and the descriptors of handshakes. Also what a poll of several sockets needs.

use crate::datagram::remote::{Queue, Remote};
use crate::datagram::{Datagram, raw};
use crate::engine::{ThreadBell, poll_entries, spin_on};
use crate::interrupt::{Section, Watch};
use crate::sys::{self, INPUT, OUTPUT};
use rsock_verbs::rdma::Rdma;
use rsock_verbs::soft::{Soft, SoftBell};
use rsock_verbs::{Bell, DatagramQueue};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Whether a check of readiness may poll UDP, with a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollUdp {
    /// It does, unless a datagram has come past UDP.
    IfNeeded,
    /// It does not.
    Never,
}

impl Datagram {
    /// Sleeps until there may be a datagram, or until `deadline`.
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

    /// The descriptors that a waiting receiver polls besides its armed bell. Returns the latest
    /// time at which it polls again. [`Self::poll_udp`] follows in any case.
    pub(crate) fn poll_entries(&self, out: &mut Vec<libc::pollfd>) -> Option<Instant> {
        out.push(raw(self.port.as_fd(), libc::POLLIN));
        let Some(Some(local)) = self.local.get() else { return None };
        local.poll_entries(out)
    }

    /// Which of `events` hold; room for output is known of a poll of UDP alone.
    pub(crate) fn readiness(&self, events: PollFlags, udp: PollUdp) -> PollFlags {
        let mut ready = PollFlags::empty();
        if events.intersects(OUTPUT) && udp == PollUdp::IfNeeded && self.has_room() {
            ready |= events & OUTPUT;
        }
        if events.intersects(INPUT) {
            let has_any =
                || self.n_pending.load(Ordering::Acquire) != 0 || self.is_ready_past_udp();
            if udp == PollUdp::IfNeeded && !has_any() {
                self.poll_udp();
            }
            if has_any() {
                ready |= events & INPUT;
            }
        }
        ready
    }

    /// Whether a send would take a datagram or fail at once, wherever it goes. Takes a system call.
    fn has_room(&self) -> bool {
        if self.room_retry_after().is_some_and(|after| !after.is_zero()) {
            return false;
        }
        // An error of the socket ends the next send, too.
        sys::poll_now(self.port.as_fd(), libc::POLLOUT) != 0
    }

    /// The descriptor that a thread polls which waits for room. Returns the latest time at which it
    /// checks again.
    pub(crate) fn room_poll_entry(&self, out: &mut Vec<libc::pollfd>) -> Option<Instant> {
        match self.room_retry_after() {
            // The UDP socket may have room all the while.
            Some(after) if !after.is_zero() => Some(sys::now() + after),
            _ => {
                out.push(raw(self.port.as_fd(), libc::POLLOUT));
                None
            }
        }
    }

    /// Arms `bell` for datagrams in shared memory. False if one has come, or there is no room for
    /// the bell. `None` where there is no queue in shared memory.
    pub(super) fn arm(&self, bell: &SoftBell) -> Option<bool> {
        let _section = Section::enter();
        let local = self.local().ok()??;
        local.sweep();
        Some(local.ud.arm(bell))
    }

    /// Undoes [`Self::arm`].
    pub(super) fn disarm(&self, bell: &SoftBell) {
        if let Some(Some(local)) = self.local.get() {
            let _section = Section::enter();
            local.ud.disarm(bell);
        }
    }

    /// The usable queues on RDMA devices.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let remote = self.remote.get().and_then(Option::as_ref);
        let queues = remote.into_iter().flat_map(Remote::queues);
        queues.filter(|queue| queue.is_usable())
    }

    /// Whether a datagram has come past UDP.
    pub(super) fn is_ready_past_udp(&self) -> bool {
        // As in `AcceleratedUdp::is_ready`.
        let _section = Section::enter();
        matches!(self.local.get(), Some(Some(local)) if local.ud.is_ready())
            || matches!(self.remote.get(), Some(Some(remote)) if remote.is_ready())
    }

    pub(super) fn receive_timeout(&self) -> Option<Duration> {
        use rustix::net::sockopt::{Timeout, socket_timeout};
        socket_timeout(&*self.port, Timeout::Recv).ok().flatten()
    }

    /// For a thread that waits for this socket alone: spins if spinning is likely to succeed.
    pub(crate) fn spin(&self) -> bool {
        let is_active = matches!(self.local.get(), Some(Some(local)) if local.is_active())
            || matches!(self.remote.get(), Some(Some(remote)) if remote.is_active());
        is_active && spin_on(|| self.is_ready_past_udp())
    }
}

/// Runs `f` with the calling thread's bells armed for datagrams past UDP to any of `sockets`. `f`
/// gets the descriptors to poll and the longest sleep. It does not run if a datagram has come.
///
/// # Errors
/// Those of `f`; when no bell can be created.
pub(crate) fn armed(
    sockets: &[&Datagram],
    f: impl FnOnce(&[libc::pollfd], Option<Duration>) -> io::Result<()>,
) -> io::Result<()> {
    with_local_bell(sockets, |local| {
        with_remote_bell(sockets, |remote| {
            if sockets.iter().any(|socket| socket.is_ready_past_udp()) {
                return Ok(());
            }
            let bells: Vec<_> =
                [local, remote].iter().filter_map(|bell| bell.entries).flatten().collect();
            let is_short = local.is_short || remote.is_short;
            f(&bells, is_short.then_some(WITHOUT_BELL))
        })
    })
}

/// An armed bell.
#[derive(Clone, Copy, Default)]
struct ArmedBell {
    /// The descriptors to poll.
    entries: Option<[libc::pollfd; 2]>,
    /// Not armed everywhere: for lack of room, or because a datagram has come.
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
        let result = f(ArmedBell { entries: Some(poll_entries(bell)), is_short });
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
        let result = f(ArmedBell { entries: Some(poll_entries(bell)), is_short });
        queues.iter().for_each(|queue| queue.ud().disarm(bell));
        bell.drain();
        result
    })?
}

/// Longest sleep of a thread for whose bell there was no room.
pub(crate) const WITHOUT_BELL: Duration = Duration::from_millis(1);
