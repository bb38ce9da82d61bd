//! The edge between sockets, which do not know their device, and what lies below, which is generic
//! over it. The choice is made here, once per socket.
//!
//! A listener is on both devices; a connect goes to shared memory if it finds a peer there, and
//! to an RDMA device otherwise, if one reaches the address. `RSOCK_DEVICE` leaves one of them.

use crate::config::environment::{self, Device};
use crate::engine::{Armed, CallerMemory, Interest, Ready, ThreadBell};
use crate::interrupt::Watch;
use crate::metrics::Transport;
use crate::rsocket::accepting::Accepting as AcceptingOn;
use crate::rsocket::connection::{Established as EstablishedOn, Patience};
use crate::rsocket::device;
use crate::rsocket::opening::Opening as OpeningOn;
use crate::rsocket::options::Options;
use crate::sys;
use rsock_cm::Port;
use rsock_cm::rdma::RdmaManager;
use rsock_cm::soft::SoftManager;
use rsock_proto::Keepalive;
use rsock_verbs::rdma::Rdma;
use rsock_verbs::soft::Soft;
use rsock_verbs::{Backend, Bell, MemoryRegion};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Runs the same expression on whichever device's value it is.
macro_rules! on {
    ($either:expr, $inner:ident => $do:expr) => {
        match $either {
            Self::Soft($inner) => $do,
            Self::Rdma($inner) => $do,
        }
    };
}

/// A connect under way.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is boxed")]
pub(super) enum Opening {
    Soft(OpeningOn<SoftManager>),
    Rdma(OpeningOn<RdmaManager>),
}

impl Opening {
    /// Starts to connect to `to`: it is now the first of `times`, and the second is the deadline.
    pub(super) fn start(
        port: &Arc<Port>,
        to: SocketAddr,
        config: crate::engine::Config,
        times: [Instant; 2],
    ) -> io::Result<Self> {
        let rdma = || {
            let opening = OpeningOn::start(&RdmaManager, Transport::Rdma, port, to, config, times);
            opening.map(Self::Rdma)
        };
        if environment::device() == Some(Device::Rdma) {
            return Ok(rdma()?);
        }
        let manager = SoftManager::new(device::open()?);
        match OpeningOn::start(&manager, Transport::Soft, port, to, config, times) {
            Ok(opening) => Ok(Self::Soft(opening)),
            // Another host; or this one, where a program over C rsockets may be the peer.
            Err(e) if environment::device().is_none() && is_no_peer(&e) => match rdma() {
                Ok(opening) => Ok(opening),
                // Without a device there, what the system says of the address counts.
                Err(_) => Err(e.into()),
            },
            Err(e) => Err(e.into()),
        }
    }

    /// As on the device.
    pub(super) fn progress(&mut self, now: Instant) -> io::Result<Option<Established>> {
        Ok(match self {
            Self::Soft(opening) => opening.progress(now)?.map(Established::Soft),
            Self::Rdma(opening) => opening.progress(now)?.map(Established::Rdma),
        })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        on!(self, opening => opening.local_addr())
    }

    pub(super) fn poll_entry(&self) -> (libc::pollfd, Instant) {
        on!(self, opening => opening.poll_entry())
    }
}

/// Whether shared memory leads to nobody there.
fn is_no_peer(e: &rsock_cm::Error) -> bool {
    matches!(e, rsock_cm::Error::Unreachable(_) | rsock_cm::Error::Refused)
}

/// Listeners of this process, for those who wait in a connect: a program may connect to itself before
/// it accepts. (Not once it has forked: the listener may be a child's by then.)
static LISTENERS: Mutex<Vec<Weak<Accepting>>> = Mutex::new(Vec::new());

/// A listening socket's inner side.
#[derive(Debug)]
pub(super) struct Accepting {
    soft: Option<AcceptingOn<SoftManager>>,
    rdma: Option<AcceptingOn<RdmaManager>>,
}

/// Runs the same expression on each device that there is.
macro_rules! each {
    ($both:expr, $inner:ident => $do:expr) => {{
        if let Some($inner) = &$both.soft {
            $do;
        }
        if let Some($inner) = &$both.rdma {
            $do;
        }
    }};
}

impl Accepting {
    /// Listens on `port`.
    pub(super) fn listen(
        port: Arc<Port>,
        backlog: u32,
        options: Arc<Mutex<Options>>,
    ) -> io::Result<Arc<Self>> {
        let chosen = environment::device();
        let mut this = Self { soft: None, rdma: None };
        if chosen != Some(Device::Rdma) {
            let manager = SoftManager::new(device::open()?);
            let (port, options) = (Arc::clone(&port), Arc::clone(&options));
            let soft = AcceptingOn::listen(&manager, Transport::Soft, port, backlog, options)?;
            this.soft = Some(soft);
        }
        if chosen != Some(Device::Soft) {
            match AcceptingOn::listen(&RdmaManager, Transport::Rdma, port, backlog, options) {
                Ok(rdma) => this.rdma = Some(rdma),
                // No device, or none that this address leads to.
                Err(_) if this.soft.is_some() => {}
                Err(e) => return Err(e),
            }
        }
        let this = Arc::new(this);
        let mut all = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listener| listener.strong_count() > 0);
        all.push(Arc::downgrade(&this));
        Ok(this)
    }

    /// Changes the backlog.
    pub(super) fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        each!(self, accepting => accepting.set_backlog(backlog)?);
        Ok(())
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        let soft = self.soft.as_ref().map(AcceptingOn::local_addr);
        soft.or_else(|| self.rdma.as_ref().map(AcceptingOn::local_addr))
    }

    /// Takes the next finished connection; never waits.
    ///
    /// # Errors
    /// `EAGAIN`; `EINVAL` after a shutdown; what keeps the listener from working.
    pub(super) fn try_accept(&self, now: Instant) -> io::Result<Established> {
        let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
        if let Some(soft) = &self.soft {
            result = soft.try_accept(now).map(Established::Soft);
        }
        match (&self.rdma, &result) {
            (Some(rdma), Err(_)) => match rdma.try_accept(now).map(Established::Rdma) {
                // A device that went away is no reason to stop serving the other one.
                Err(e) if self.soft.is_some() && e.kind() != io::ErrorKind::WouldBlock => result,
                other => other,
            },
            _ => result,
        }
    }

    /// Whether `accept` would return at once. Makes progress first.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        let soft = self.soft.as_ref().is_some_and(|accepting| accepting.is_ready(now));
        self.rdma.as_ref().is_some_and(|accepting| accepting.is_ready(now)) || soft
    }

    /// Waits until `accept` may have something.
    pub(super) fn wait(&self, deadline: Option<Instant>, watch: Watch) -> io::Result<()> {
        let mut fds = self.poll_entries();
        let left = sys::time_left(deadline);
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        match sys::sleep(&mut fds, left, None, watch) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) && !watch.must_end() => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Ok(()),
        }
    }

    /// What to poll.
    pub(super) fn poll_entries(&self) -> Vec<libc::pollfd> {
        let mut fds = Vec::with_capacity(4);
        each!(self, accepting => fds.extend(accepting.poll_entries()));
        fds
    }

    /// What to poll for handshakes alone.
    pub(super) fn handshake_entries(&self) -> Vec<libc::pollfd> {
        let mut fds = Vec::with_capacity(2);
        each!(self, accepting => fds.push(accepting.poll_entries()[0]));
        fds
    }

    /// Stops listening.
    pub(super) fn shutdown(&self) {
        each!(self, accepting => accepting.shutdown());
    }
}

/// Every listener of this process, for a thread that waits in a connect.
pub(super) fn listeners() -> Vec<Arc<Accepting>> {
    let all = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Makes progress on all of `listeners`.
pub(super) fn progress(listeners: &[Arc<Accepting>], now: Instant) {
    for listener in listeners {
        each!(listener, accepting => accepting.progress(now));
    }
}

/// A connected stream.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per socket, and it never moves")]
pub(super) enum Established {
    Soft(EstablishedOn<SoftManager>),
    Rdma(EstablishedOn<RdmaManager>),
}

impl Established {
    #[inline]
    pub(super) fn send(&self, bufs: &[IoSlice<'_>], patience: Patience) -> io::Result<usize> {
        on!(self, established => established.send(bufs, patience))
    }

    #[inline]
    pub(super) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
        all: bool,
        patience: Patience,
    ) -> io::Result<usize> {
        on!(self, established => established.recv(bufs, peek, all, patience))
    }

    pub(super) fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        open: bool,
    ) -> io::Result<u64> {
        on!(self, established => established.iomap(memory, offset, open))
    }

    pub(super) fn iounmap(&self, addr: *const u8, len: usize) -> bool {
        on!(self, established => established.stream.iounmap(addr, len))
    }

    /// Memory of the device's own, opened to the peer under `offset`.
    pub(super) fn open_region(&self, len: usize, offset: u64) -> io::Result<Arc<dyn MemoryRegion>> {
        on!(self, established => Ok(established.open_region(len, Some(offset))?.0))
    }

    /// Takes back what [`Self::open_region`] gave.
    pub(super) fn close_region(&self, region: &dyn MemoryRegion) {
        let addr = std::ptr::with_exposed_provenance(usize::try_from(region.addr().0).unwrap_or(0));
        self.iounmap(addr, region.len());
    }

    pub(super) fn put(&self, bytes: &[u8], offset: u64, patience: Patience) -> io::Result<usize> {
        on!(self, established => established.put(bytes, offset, patience))
    }

    pub(super) fn mark(&self) -> u32 {
        on!(self, established => established.stream.mark())
    }

    pub(super) fn spin(&self, interest: Interest, mark: u32) -> bool {
        on!(self, established => established.stream.spin(interest, mark))
    }

    pub(super) fn anchor_entry(&self) -> libc::pollfd {
        on!(self, established => established.anchor_entry())
    }

    pub(super) fn note_anchor(&self, revents: i16) {
        on!(self, established => established.note_anchor(revents));
    }

    pub(super) fn is_look_due(&self) -> bool {
        on!(self, established => established.is_look_due())
    }

    pub(super) fn readiness(&self) -> Ready {
        on!(self, established => established.readiness())
    }

    pub(super) fn take_error(&self) -> Option<i32> {
        on!(self, established => established.take_error())
    }

    pub(super) fn set_keepalive(&self, settings: Option<Keepalive>) {
        on!(self, established => established.set_keepalive(settings));
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        on!(self, established => established.shutdown(how));
    }

    pub(super) fn close(&self, reset: bool, linger: Duration) {
        on!(self, established => established.close(reset, linger));
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        on!(self, established => established.local_addr())
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        on!(self, established => established.peer_addr())
    }
}

impl AsFd for Established {
    /// The anchor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        on!(self, established => established.as_fd())
    }
}

/// The calling thread's doorbells, of the devices that a wait is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bells<'a> {
    soft: Option<&'a <Soft as Backend>::Bell>,
    rdma: Option<&'a <Rdma as Backend>::Bell>,
}

/// A stream that rings for the caller.
#[derive(Debug)]
pub(super) enum ArmedOn<'a> {
    Soft(Armed<'a, Soft>),
    Rdma(Armed<'a, Rdma>),
}

impl ArmedOn<'_> {
    /// Longest time that it is safe to sleep, `None` for any.
    pub(super) fn bound(&self) -> Option<Duration> {
        on!(self, armed => armed.bound())
    }
}

impl<'a> Bells<'a> {
    /// Runs `f` with the bells that waiting for `streams` takes.
    pub(super) fn with<'s, R>(
        streams: impl Iterator<Item = &'s Established> + Clone,
        f: impl FnOnce(Bells<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let soft = streams.clone().find_map(|established| match established {
            Established::Soft(established) => Some(established.context()),
            Established::Rdma(_) => None,
        });
        let rdma = streams.clone().find_map(|established| match established {
            Established::Rdma(established) => Some(established.context()),
            Established::Soft(_) => None,
        });
        with_bell::<Soft, _>(soft, |soft| {
            with_bell::<Rdma, _>(rdma, |rdma| f(Bells { soft, rdma }))
        })
    }

    /// Arms a bell for anything that happens to `established` after `mark`; `None` if something has.
    pub(super) fn arm<'b>(self, established: &'b Established, mark: u32) -> Option<ArmedOn<'b>>
    where
        'a: 'b,
    {
        match (established, self) {
            (Established::Soft(established), Bells { soft: Some(bell), .. }) => {
                established.stream.arm(bell, mark).map(ArmedOn::Soft)
            }
            (Established::Rdma(established), Bells { rdma: Some(bell), .. }) => {
                established.stream.arm(bell, mark).map(ArmedOn::Rdma)
            }
            // Made for other streams: look again.
            _ => None,
        }
    }

    /// What to poll.
    pub(super) fn poll_entries(self) -> impl Iterator<Item = libc::pollfd> {
        let soft = self.soft.map(|bell| bell.as_fd().as_raw_fd());
        let rdma = self.rdma.map(|bell| bell.as_fd().as_raw_fd());
        let fds = [soft, rdma].into_iter().flatten();
        fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// Empties them.
    pub(super) fn drain(self) {
        if let Some(bell) = self.soft {
            bell.drain();
        }
        if let Some(bell) = self.rdma {
            bell.drain();
        }
    }
}

fn with_bell<B: ThreadBell, R>(
    ctx: Option<&B::Context>,
    f: impl FnOnce(Option<&B::Bell>) -> io::Result<R>,
) -> io::Result<R> {
    match ctx {
        Some(ctx) => B::with_bell(ctx, |bell| f(Some(bell)))?,
        None => f(None),
    }
}
