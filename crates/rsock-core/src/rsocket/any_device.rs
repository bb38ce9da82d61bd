//! The same types without a device parameter: an enum over shared memory and RDMA for each of the
//! generic types beside this file. Sockets are made of these, and choose the device here, once.
//!
//! A listener listens on both devices. A connect uses shared memory if the address has a listener
//! there, and otherwise an RDMA device that reaches the address. `RSOCK_DEVICE` restricts both to
//! one device.

use crate::config::environment::{self, Device};
use crate::engine::{Armed, CallerMemory, Interest, Ready, ThreadBell, poll_entries};
use crate::interrupt::Watch;
use crate::metrics::Transport;
use crate::rsocket::RemoteAccess;
use crate::rsocket::accept_queue::AcceptQueue;
use crate::rsocket::connection::{Connection, WaitPolicy};
use crate::rsocket::options::Options;
use crate::rsocket::pending_connect::PendingConnect;
use crate::rsocket::soft_device;
use crate::sys;
use rsock_cm::Port;
use rsock_cm::rdma::RdmaManager;
use rsock_cm::soft::SoftManager;
use rsock_proto::Keepalive;
use rsock_verbs::rdma::Rdma;
use rsock_verbs::soft::Soft;
use rsock_verbs::{Backend, Bell, MemoryRegion};
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Runs the same expression on the value of either device.
macro_rules! on {
    ($either:expr, $inner:ident => $do:expr) => {
        match $either {
            Self::Soft($inner) => $do,
            Self::Rdma($inner) => $do,
        }
    };
}

/// A connect under way, on either device.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is boxed")]
pub(super) enum AnyPendingConnect {
    Soft(PendingConnect<SoftManager>),
    Rdma(PendingConnect<RdmaManager>),
}

impl AnyPendingConnect {
    /// Starts to connect to `to`. `times` are now and the deadline.
    pub(super) fn start(
        port: &Arc<Port>,
        to: SocketAddr,
        config: crate::engine::Config,
        times: [Instant; 2],
    ) -> io::Result<Self> {
        let rdma = || {
            let pending =
                PendingConnect::start(&RdmaManager, Transport::Rdma, port, to, config, times);
            pending.map(Self::Rdma)
        };
        if environment::device() == Some(Device::Rdma) {
            return Ok(rdma()?);
        }
        let manager = SoftManager::new(soft_device::open()?);
        match PendingConnect::start(&manager, Transport::Soft, port, to, config, times) {
            Ok(pending) => Ok(Self::Soft(pending)),
            // The peer is on another host, or a program over C rsockets on this one.
            Err(e) if environment::device().is_none() && is_no_peer(&e) => match rdma() {
                Ok(pending) => Ok(pending),
                // No RDMA device reaches the address: report what shared memory answered.
                Err(_) => Err(e.into()),
            },
            Err(e) => Err(e.into()),
        }
    }

    pub(super) fn progress(&mut self, now: Instant) -> io::Result<Option<AnyConnection>> {
        Ok(match self {
            Self::Soft(pending) => pending.progress(now)?.map(AnyConnection::Soft),
            Self::Rdma(pending) => pending.progress(now)?.map(AnyConnection::Rdma),
        })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        on!(self, pending => pending.local_addr())
    }

    pub(super) fn poll_entry(&self) -> (libc::pollfd, Instant) {
        on!(self, pending => pending.poll_entry())
    }
}

/// Whether shared memory has no listener at the address.
fn is_no_peer(e: &rsock_cm::Error) -> bool {
    matches!(e, rsock_cm::Error::Unreachable(_) | rsock_cm::Error::Refused)
}

/// The listeners of this process. A thread that waits in a connect advances their handshakes,
/// because a program may connect to itself before it accepts. (Not after a fork: a child may own
/// the listener.)
static LISTENERS: Mutex<Vec<Weak<AnyAcceptQueue>>> = Mutex::new(Vec::new());

/// What a listening socket has on both devices.
#[derive(Debug)]
pub(super) struct AnyAcceptQueue {
    soft: Option<AcceptQueue<SoftManager>>,
    rdma: Option<AcceptQueue<RdmaManager>>,
}

/// Runs the same expression on each device that is in use.
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

impl AnyAcceptQueue {
    /// Listens on `port`.
    pub(super) fn listen(
        port: Arc<Port>,
        backlog: u32,
        options: Arc<Mutex<Options>>,
    ) -> io::Result<Arc<Self>> {
        let chosen = environment::device();
        let mut this = Self { soft: None, rdma: None };
        if chosen != Some(Device::Rdma) {
            let manager = SoftManager::new(soft_device::open()?);
            let (port, options) = (Arc::clone(&port), Arc::clone(&options));
            let soft = AcceptQueue::listen(&manager, Transport::Soft, port, backlog, options)?;
            this.soft = Some(soft);
        }
        if chosen != Some(Device::Soft) {
            match AcceptQueue::listen(&RdmaManager, Transport::Rdma, port, backlog, options) {
                Ok(rdma) => this.rdma = Some(rdma),
                // There is no RDMA device with this address.
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
        each!(self, queue => queue.set_backlog(backlog)?);
        Ok(())
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        let soft = self.soft.as_ref().map(AcceptQueue::local_addr);
        soft.or_else(|| self.rdma.as_ref().map(AcceptQueue::local_addr))
    }

    /// Takes the next finished connection; never waits.
    ///
    /// # Errors
    /// `EAGAIN`; `EINVAL` after a shutdown; what broke the listener.
    pub(super) fn try_accept(&self, now: Instant) -> io::Result<AnyConnection> {
        let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
        if let Some(soft) = &self.soft {
            result = soft.try_accept(now).map(AnyConnection::Soft);
        }
        match (&self.rdma, &result) {
            (Some(rdma), Err(_)) => match rdma.try_accept(now).map(AnyConnection::Rdma) {
                // An RDMA device that was removed does not stop the other device's listener.
                Err(e) if self.soft.is_some() && e.kind() != io::ErrorKind::WouldBlock => result,
                other => other,
            },
            _ => result,
        }
    }

    /// Whether `accept` would return at once. Advances handshakes first.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        let soft = self.soft.as_ref().is_some_and(|queue| queue.is_ready(now));
        self.rdma.as_ref().is_some_and(|queue| queue.is_ready(now)) || soft
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
        each!(self, queue => fds.extend(queue.poll_entries()));
        fds
    }

    /// What to poll for handshakes alone.
    pub(super) fn handshake_entries(&self) -> Vec<libc::pollfd> {
        let mut fds = Vec::with_capacity(2);
        each!(self, queue => fds.push(queue.handshake_entry()));
        fds
    }

    /// Adds what [`Self::handshake_entries`] names to the epoll set `set`.
    pub(super) fn add_handshakes_to(&self, set: BorrowedFd<'_>) -> io::Result<()> {
        each!(self, queue => queue.add_handshakes_to(set)?);
        Ok(())
    }

    /// Stops listening.
    pub(super) fn shutdown(&self) {
        each!(self, queue => queue.shutdown());
    }
}

/// Every listener of this process.
pub(super) fn listeners() -> Vec<Arc<AnyAcceptQueue>> {
    let all = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Advances the handshakes of all `listeners`.
pub(super) fn progress(listeners: &[Arc<AnyAcceptQueue>], now: Instant) {
    for listener in listeners {
        each!(listener, queue => queue.progress(now));
    }
}

/// A connected stream, on either device.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per socket, and it never moves")]
pub(super) enum AnyConnection {
    Soft(Connection<SoftManager>),
    Rdma(Connection<RdmaManager>),
}

impl AnyConnection {
    #[inline]
    pub(super) fn send_at_once(&self, bufs: &[IoSlice<'_>]) -> Option<usize> {
        on!(self, connection => connection.send_at_once(bufs))
    }

    #[inline]
    pub(super) fn send(&self, bufs: &[IoSlice<'_>], policy: WaitPolicy) -> io::Result<usize> {
        on!(self, connection => connection.send(bufs, policy))
    }

    #[inline]
    pub(super) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        policy: WaitPolicy,
    ) -> io::Result<usize> {
        on!(self, connection => connection.recv(bufs, flags, policy))
    }

    pub(super) fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        access: RemoteAccess,
    ) -> io::Result<u64> {
        on!(self, connection => connection.iomap(memory, offset, access))
    }

    pub(super) fn iounmap(&self, addr: *const u8, len: usize) -> bool {
        on!(self, connection => connection.stream.iounmap(addr, len))
    }

    /// Memory of the device, exposed to the peer under `offset`.
    pub(super) fn open_region(&self, len: usize, offset: u64) -> io::Result<Arc<dyn MemoryRegion>> {
        on!(self, connection => Ok(connection.open_region(len, Some(offset))?.0))
    }

    /// Takes back a region of [`Self::open_region`].
    pub(super) fn close_region(&self, region: &dyn MemoryRegion) {
        on!(self, connection => connection.stream.unexpose(region));
    }

    pub(super) fn write_remote(
        &self,
        bytes: &[u8],
        offset: u64,
        policy: WaitPolicy,
    ) -> io::Result<usize> {
        on!(self, connection => connection.write_remote(bytes, offset, policy))
    }

    pub(super) fn mark(&self) -> u32 {
        on!(self, connection => connection.stream.mark())
    }

    pub(super) fn spin(&self, interest: Interest, mark: u32) -> bool {
        on!(self, connection => connection.stream.spin(interest, mark))
    }

    pub(super) fn hang_up_entry(&self) -> libc::pollfd {
        on!(self, connection => connection.hang_up_entry())
    }

    pub(super) fn note_hang_up(&self, revents: i16) {
        on!(self, connection => connection.note_hang_up(revents));
    }

    pub(super) fn is_check_due(&self) -> bool {
        on!(self, connection => connection.is_check_due())
    }

    pub(super) fn readiness(&self) -> Ready {
        on!(self, connection => connection.readiness())
    }

    pub(super) fn take_error(&self) -> Option<i32> {
        on!(self, connection => connection.take_error())
    }

    pub(super) fn set_keepalive(&self, settings: Option<Keepalive>) {
        on!(self, connection => connection.set_keepalive(settings));
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        on!(self, connection => connection.shutdown(how));
    }

    pub(super) fn close(&self, linger: Duration) {
        on!(self, connection => connection.close(linger));
    }

    pub(super) fn abandon(&self) {
        on!(self, connection => connection.abandon());
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        on!(self, connection => connection.local_addr())
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        on!(self, connection => connection.peer_addr())
    }
}

impl AsFd for AnyConnection {
    /// The descriptor that shows the end of the connection.
    fn as_fd(&self) -> BorrowedFd<'_> {
        on!(self, connection => connection.as_fd())
    }
}

/// The calling thread's doorbells, one for each device that a wait is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadBells<'a> {
    soft: Option<&'a <Soft as Backend>::Bell>,
    rdma: Option<&'a <Rdma as Backend>::Bell>,
}

/// A stream that rings the caller's doorbell.
#[derive(Debug)]
pub(super) enum AnyArmed<'a> {
    Soft(Armed<'a, Soft>),
    Rdma(Armed<'a, Rdma>),
}

impl AnyArmed<'_> {
    /// Longest time that it is safe to sleep; `None` is without limit.
    pub(super) fn bound(&self) -> Option<Duration> {
        on!(self, armed => armed.bound())
    }
}

impl<'a> ThreadBells<'a> {
    /// Runs `f` with the doorbells that are needed to wait for `streams`.
    pub(super) fn with<'s, R>(
        streams: impl Iterator<Item = &'s AnyConnection> + Clone,
        f: impl FnOnce(ThreadBells<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let soft = streams.clone().find_map(|connection| match connection {
            AnyConnection::Soft(connection) => Some(connection.context()),
            AnyConnection::Rdma(_) => None,
        });
        let rdma = streams.clone().find_map(|connection| match connection {
            AnyConnection::Rdma(connection) => Some(connection.context()),
            AnyConnection::Soft(_) => None,
        });
        with_bell::<Soft, _>(soft, |soft| {
            with_bell::<Rdma, _>(rdma, |rdma| f(ThreadBells { soft, rdma }))
        })
    }

    /// Arms a doorbell for changes of `connection` after `mark`; `None` if it has changed already.
    pub(super) fn arm<'b>(self, connection: &'b AnyConnection, mark: u32) -> Option<AnyArmed<'b>>
    where
        'a: 'b,
    {
        match (connection, self) {
            (AnyConnection::Soft(connection), ThreadBells { soft: Some(bell), .. }) => {
                connection.stream.arm(bell, mark).map(AnyArmed::Soft)
            }
            (AnyConnection::Rdma(connection), ThreadBells { rdma: Some(bell), .. }) => {
                connection.stream.arm(bell, mark).map(AnyArmed::Rdma)
            }
            // The stream was connected after the bells were made: check it again first.
            _ => None,
        }
    }

    /// What to poll.
    pub(super) fn poll_entries(self) -> impl Iterator<Item = libc::pollfd> {
        [self.soft.map(poll_entries), self.rdma.map(poll_entries)].into_iter().flatten().flatten()
    }

    /// Drains the bells that rang.
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
