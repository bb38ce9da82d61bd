//! The doorbells of a thread that waits on paths and on queues of datagrams.

use crate::accelerate::path::Path;
use crate::datagram::kernel_udp::{AcceleratedUdp, ArmedQueue};
use crate::engine::{Armed, ThreadBell, WITHOUT_BELL, poll_entries};
use rsock_verbs::Bell;
use rsock_verbs::rdma::{Rdma, RdmaBell};
use rsock_verbs::soft::{Soft, SoftBell, SoftContext};
use std::time::Duration;

/// The calling thread's doorbells, of the devices that a wait concerns, as far as they could be
/// made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bells<'a> {
    soft: Option<&'a SoftBell>,
    rdma: Option<&'a RdmaBell>,
}

/// The outcome of arming a doorbell.
#[derive(Debug)]
pub(super) enum Arming<'a> {
    /// Something has happened already.
    Changed,
    Soft(Armed<'a, Soft>),
    Rdma(Armed<'a, Rdma>),
    Udp(ArmedQueue<'a>),
    /// There is no doorbell.
    Without,
}

impl Arming<'_> {
    /// Longest time that it is safe to sleep, `None` for any.
    pub(super) fn bound(&self) -> Option<Duration> {
        match self {
            Self::Soft(armed) => armed.bound(),
            Self::Rdma(armed) => armed.bound(),
            Self::Udp(armed) => armed.bound(),
            Self::Changed | Self::Without => Some(WITHOUT_BELL),
        }
    }
}

impl Bells<'_> {
    /// Descriptors of doorbells at most: the number of [`Self::entries`].
    pub(super) const MOST: usize = 3;

    /// Runs `f` with the doorbells that waiting for `paths` takes, and with one of the soft device
    /// if `needs_soft`.
    pub(super) fn with<'p, R>(
        paths: impl Iterator<Item = &'p Path> + Clone,
        needs_soft: bool,
        mut f: impl FnMut(Bells<'_>) -> R,
    ) -> R {
        let needs_soft = needs_soft || paths.clone().any(|path| !path.is_remote());
        let ctx = paths.clone().find_map(|path| match path {
            Path::Soft(_) => None,
            Path::Rdma(rdma) => Some(&rdma.ctx),
        });
        let mut with_soft = |soft: Option<&SoftBell>| {
            if let Some(ctx) = ctx
                && let Ok(done) = Rdma::with_bell(ctx, |bell| f(Bells { soft, rdma: Some(bell) }))
            {
                return done;
            }
            f(Bells { soft, rdma: None })
        };
        if needs_soft
            && let Ok(ctx) = SoftContext::open()
            && let Ok(done) = Soft::with_bell(&ctx, |bell| with_soft(Some(bell)))
        {
            return done;
        }
        with_soft(None)
    }
}

impl<'a> Bells<'a> {
    /// Arms the bell of `path`'s device for anything that happens after `mark`.
    pub(super) fn arm<'b>(self, path: &'b Path, mark: u32) -> Arming<'b>
    where
        'a: 'b,
    {
        match (path, self) {
            (Path::Soft(soft), Self { soft: Some(bell), .. }) => {
                soft.stream.arm(bell, mark).map_or(Arming::Changed, Arming::Soft)
            }
            (Path::Rdma(rdma), Self { rdma: Some(bell), .. }) => {
                rdma.stream.arm(bell, mark).map_or(Arming::Changed, Arming::Rdma)
            }
            _ => Arming::Without,
        }
    }

    /// Arms the bell of the soft device for the queue of `udp`.
    pub(super) fn arm_udp<'b>(self, udp: &'b AcceleratedUdp) -> Arming<'b>
    where
        'a: 'b,
    {
        match self.soft {
            Some(bell) => udp.arm(bell).map_or(Arming::Changed, Arming::Udp),
            None => Arming::Without,
        }
    }

    /// The entries for `ppoll`.
    pub(super) fn entries(self) -> [libc::pollfd; Bells::MOST] {
        let none = [libc::pollfd { fd: -1, events: 0, revents: 0 }; 2];
        let [socket, pipe] = self.soft.map_or(none, poll_entries);
        let [rdma, _] = self.rdma.map_or(none, poll_entries);
        [socket, pipe, rdma]
    }

    /// Empties the doorbells that rang, by what polling [`Self::entries`] found.
    pub(super) fn drain(self, polled: &[libc::pollfd]) {
        let has_rung = |i: usize| polled[i].revents != 0;
        if let (Some(bell), true) = (self.soft, has_rung(0) || has_rung(1)) {
            bell.drain();
        }
        if let (Some(bell), true) = (self.rdma, has_rung(2)) {
            bell.drain();
        }
    }
}
