//! The faster path of a twin: a stream on the soft device or on an RDMA device, and the doorbells that
//! waiting for it takes.
//!
//! Two things differ between hosts, and [`Path::is_far`] tells: what was sent may still be lost with
//! the device or the process, so the end of TCP means nothing without the end in the stream; and a
//! child of a fork cannot use what its parent has ([`Path::is_inherited`]). Invariant: a child never
//! touches an RDMA stream of its parent, not even to drop it.

#![forbid(unsafe_code)]

use crate::accelerate::verify::SocketId;
use crate::accelerate::{FAR_PATIENCE, PATIENCE};
use crate::datagram::kernel_udp::AcceleratedUdp;
use crate::doorbell::{Doorbell, Kind};
use crate::engine::{
    Armed, Interest, QpStream, ReadMode, RecvError, SendError, ThreadBell, WITHOUT_BELL, Wake,
};
use crate::interrupt::Watch;
use crate::metrics;
use rsock_cm::manager::{Connected, Status};
use rsock_cm::rdma::RdmaConnection as Connection;
use rsock_proto::switch::{Heard, Message};
use rsock_proto::{Ext, Keepalive};
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::rdma::{Rdma, RdmaBell, RdmaContext};
use rsock_verbs::soft::{Soft, SoftBell, SoftContext};
use rsock_verbs::{Bell, Context};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Runs the same expression on whichever device's stream it is.
macro_rules! on {
    ($path:expr, $stream:ident => $do:expr) => {
        match $path {
            Self::Soft(near) => {
                let $stream = &near.stream;
                $do
            }
            Self::Rdma(far) => {
                let $stream = &far.stream;
                $do
            }
        }
    };
}

/// A stream beside the TCP connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is boxed")]
pub(super) enum Path {
    Soft(Near),
    Rdma(Far),
}

/// A stream in memory that is shared with a process of this host.
#[derive(Debug)]
pub(super) struct Near {
    pub(super) stream: QpStream<Soft>,
    /// The peer's TCP socket.
    pub(super) peer: SocketId,
}

/// A stream on an RDMA device. Declared in the order in which the parts must go.
#[derive(Debug)]
pub(super) struct Far {
    stream: QpStream<Rdma>,
    connection: Connection,
    ctx: RdmaContext,
    owner: ProcessId,
    /// The peer has let go of it.
    is_cut: AtomicBool,
}

/// What has become of a connection between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes on.
    Goes,
    /// The peer let go of it: closed, gave up, died, or its device is being taken away. TCP tells which.
    Cut,
    /// Our device is being taken away, and works still, perhaps.
    Removed,
}

impl Far {
    pub(super) fn new(stream: QpStream<Rdma>, connection: Connection, ctx: RdmaContext) -> Self {
        Self { stream, connection, ctx, owner: process(), is_cut: AtomicBool::new(false) }
    }
}

/// The place of a twin's path.
///
/// In a child of a fork it goes without a word: what the parent has on a device is the parent's.
#[derive(Debug, Default)]
pub(super) struct Place(OnceLock<Box<Path>>);

impl Deref for Place {
    type Target = OnceLock<Box<Path>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.get().is_some_and(|path| path.is_inherited()) {
            std::mem::forget(self.0.take());
        }
    }
}

impl Path {
    /// Whether the peer is reached over an RDMA device.
    #[inline]
    pub(super) fn is_far(&self) -> bool {
        matches!(self, Self::Rdma(_))
    }

    /// Whether it is the parent's, and of no use here.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        match self {
            Self::Soft(_) => false,
            Self::Rdma(far) => far.owner != process(),
        }
    }

    /// How long it may be full without progress before a writer moves to TCP.
    pub(super) fn patience(&self) -> Duration {
        if self.is_far() { FAR_PATIENCE } else { PATIENCE }
    }

    /// What `rsock stat` calls it.
    #[inline]
    pub(super) fn kind(&self) -> metrics::Transport {
        if self.is_far() { metrics::Transport::Rdma } else { metrics::Transport::Soft }
    }

    /// The stream on the soft device, if it is one.
    pub(super) fn soft(&self) -> Option<&QpStream<Soft>> {
        match self {
            Self::Soft(near) => Some(&near.stream),
            Self::Rdma(_) => None,
        }
    }

    /// The peer's TCP socket, if it is on this host.
    pub(super) fn peer(&self) -> Option<SocketId> {
        match self {
            Self::Soft(near) => Some(near.peer),
            Self::Rdma(_) => None,
        }
    }

    /// Whether the stream failed, so that what was sent may never arrive.
    pub(super) fn has_failed(&self) -> bool {
        on!(self, stream => stream.take_error().is_some())
    }

    /// Whether it failed because the peer's host answers nothing any more.
    pub(super) fn is_unanswered(&self) -> bool {
        let errno = on!(self, stream => stream.take_error()).and_then(|e| e.raw_os_error());
        errno == Some(libc::ETIMEDOUT)
    }

    /// `SO_KEEPALIVE` and its times; probes are added to `count`.
    pub(super) fn set_keepalive(
        &self,
        settings: Option<Keepalive>,
        count: Option<&'static AtomicU64>,
    ) {
        on!(self, stream => stream.set_keepalive(settings, count));
    }

    /// What has become of the connection between hosts. Looks, at the price of a system call.
    pub(super) fn fate(&self) -> Fate {
        let Self::Rdma(far) = self else { return Fate::Goes };
        match far.connection.status() {
            Status::Connected => Fate::Goes,
            Status::Gone => Fate::Removed,
            Status::Disconnected | Status::Reset => {
                far.is_cut.store(true, Ordering::Release);
                Fate::Cut
            }
        }
    }

    /// Whether [`Self::fate`] has found it cut.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Soft(_) => false,
            Self::Rdma(far) => far.is_cut.load(Ordering::Acquire),
        }
    }

    /// The descriptor that is readable when [`Self::fate`] has news.
    pub(super) fn fate_fd(&self) -> Option<RawFd> {
        match self {
            Self::Rdma(far) if !self.is_cut() => Some(far.connection.as_fd().as_raw_fd()),
            _ => None,
        }
    }

    /// Tells the peer's host that this is the end, whether or not TCP gets through.
    pub(super) fn cut(&self) {
        if let Self::Rdma(far) = self {
            far.connection.disconnect();
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        on!(self, stream => stream.is_drained())
    }

    #[inline]
    pub(super) fn mark(&self) -> u32 {
        on!(self, stream => stream.mark())
    }

    #[inline]
    pub(super) fn has_changed(&self, mark: u32) -> bool {
        on!(self, stream => stream.has_changed(mark))
    }

    pub(super) fn spin(&self, interest: Interest, mark: u32) -> bool {
        on!(self, stream => stream.spin(interest, mark))
    }

    pub(super) fn nap(&self, mark: u32, left: Option<Duration>, watch: Watch) -> Option<Wake> {
        on!(self, stream => stream.nap(mark, left, watch))
    }

    pub(super) fn park(&self, mark: u32, timeout: Duration) -> Wake {
        on!(self, stream => stream.park(mark, timeout))
    }

    #[inline]
    pub(super) fn try_send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        on!(self, stream => stream.try_send(bufs))
    }

    #[inline]
    pub(super) fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<usize, RecvError> {
        on!(self, stream => stream.try_recv(bufs, ReadMode::of(peek)))
    }

    pub(super) fn has_input(&self) -> bool {
        on!(self, stream => stream.has_input())
    }

    pub(super) fn has_room(&self) -> bool {
        on!(self, stream => stream.has_room())
    }

    pub(super) fn has_eof(&self) -> bool {
        on!(self, stream => stream.has_eof())
    }

    pub(super) fn was_ended(&self) -> bool {
        on!(self, stream => stream.peer_has_ended())
    }

    pub(super) fn is_unread(&self, sent: Option<u64>) -> bool {
        on!(self, stream => stream.is_unread(sent))
    }

    /// Whether the peer's process has ended, as far as the device can tell.
    pub(super) fn is_peer_dead(&self) -> bool {
        on!(self, stream => stream.is_peer_dead())
    }

    pub(super) fn renounce(&self) {
        on!(self, stream => stream.ignore_unread());
    }

    pub(super) fn bytes_readable(&self) -> usize {
        on!(self, stream => stream.bytes_readable())
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        on!(self, stream => stream.shutdown(how));
    }

    pub(super) fn has_extensions(&self) -> bool {
        on!(self, stream => stream.has_extensions())
    }

    /// Sends a message of the switch; false if there is no room for it now.
    pub(super) fn say(&self, message: Message) -> bool {
        match message {
            Message::Ready => on!(self, stream => stream.try_send_ext(Ext::Ready)),
            Message::Up { offset } => on!(self, stream => stream.try_send_up(offset)),
            Message::Down => on!(self, stream => stream.try_send_ext(Ext::Down)),
            Message::Leave => on!(self, stream => stream.try_send_ext(Ext::Leave)),
        }
    }

    /// Ends the sleeps of this process family's threads on the ring, as news from the peer would.
    pub(super) fn wake_waiters(&self) {
        on!(self, stream => stream.wake_waiters());
    }

    /// Messages of the switch that have arrived: see [`QpStream::heard_now`].
    #[inline]
    pub(super) fn heard_now(&self) -> Heard {
        on!(self, stream => stream.heard_now())
    }

    /// Messages of the switch that have been taken from the device.
    #[inline]
    pub(super) fn heard(&self) -> Heard {
        on!(self, stream => stream.heard())
    }

    /// A doorbell of its own.
    pub(super) fn create_doorbell(&self) -> io::Result<Doorbell> {
        Ok(match self {
            Self::Soft(_) => SoftContext::open()?.create_bell()?.into(),
            Self::Rdma(far) => far.ctx.create_bell()?.into(),
        })
    }

    /// Arms `bell`, one of this path's device, until [`Self::disarm`].
    pub(super) fn arm_standing(&self, bell: &Doorbell) -> bool {
        match (self, bell.kind()) {
            (Self::Soft(near), Kind::Soft(bell)) => near.stream.arm_persistent(bell),
            (Self::Rdma(far), Kind::Rdma(bell)) => far.stream.arm_persistent(bell),
            _ => false,
        }
    }

    /// Takes [`Self::arm_standing`] back.
    pub(super) fn disarm(&self, bell: &Doorbell) {
        match (self, bell.kind()) {
            (Self::Soft(near), Kind::Soft(bell)) => near.stream.disarm(bell),
            (Self::Rdma(far), Kind::Rdma(bell)) => far.stream.disarm(bell),
            _ => {}
        }
    }
}

/// The calling thread's doorbells, of the devices that a wait is about, as far as they can be had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bells<'a> {
    soft: Option<&'a SoftBell>,
    rdma: Option<&'a RdmaBell>,
}

/// What came of arming.
#[derive(Debug)]
pub(super) enum Arming<'a> {
    /// Something has happened already.
    Changed,
    Soft(Armed<'a, Soft>),
    Rdma(Armed<'a, Rdma>),
    Udp(crate::datagram::kernel_udp::ArmedQueue<'a>),
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
    /// Doorbells at most: places that [`Self::entries`] takes.
    pub(super) const MOST: usize = 2;

    /// Runs `f` with the bells that waiting for `paths` takes, and for something else on the soft device if
    /// `needs_soft`.
    pub(super) fn with<'p, R>(
        paths: impl Iterator<Item = &'p Path> + Clone,
        needs_soft: bool,
        mut f: impl FnMut(Bells<'_>) -> R,
    ) -> R {
        let needs_soft = needs_soft || paths.clone().any(|path| !path.is_far());
        let ctx = paths.clone().find_map(|path| match path {
            Path::Soft(_) => None,
            Path::Rdma(far) => Some(&far.ctx),
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
            (Path::Soft(near), Self { soft: Some(bell), .. }) => {
                near.stream.arm(bell, mark).map_or(Arming::Changed, Arming::Soft)
            }
            (Path::Rdma(far), Self { rdma: Some(bell), .. }) => {
                far.stream.arm(bell, mark).map_or(Arming::Changed, Arming::Rdma)
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

    /// What to poll.
    pub(super) fn entries(self) -> [libc::pollfd; Bells::MOST] {
        let soft = self.soft.map(|bell| bell.as_fd().as_raw_fd());
        let rdma = self.rdma.map(|bell| bell.as_fd().as_raw_fd());
        let entry = |fd: Option<RawFd>| libc::pollfd {
            fd: fd.unwrap_or(-1),
            events: libc::POLLIN,
            revents: 0,
        };
        [entry(soft), entry(rdma)]
    }

    /// Empties those of them that rang, by what polling [`Self::entries`] found.
    pub(super) fn drain(self, polled: &[libc::pollfd]) {
        if let (Some(bell), true) = (self.soft, polled[0].revents != 0) {
            bell.drain();
        }
        if let (Some(bell), true) = (self.rdma, polled[1].revents != 0) {
            bell.drain();
        }
    }
}
