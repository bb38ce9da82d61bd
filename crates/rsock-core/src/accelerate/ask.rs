//! Asks the switch ([`rsock_proto::switch`]) where the next byte is, and makes the observations
//! that it asks for. No other code of this module tree looks at the socket, the ring and the
//! messages of the switch to decide that.

use crate::accelerate::halt::is_halted;
use crate::accelerate::kernel_only_waiter;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::{is_device_silent, is_peer_gone};
use crate::accelerate::state::{
    FLAG_HELD_ON_TCP, FLAG_RX_PLAIN, FLAG_TX_PLAIN, Receiving, Sending,
};
use crate::accelerate::tcp_socket::{has_ended, must_stop, peek_one, push, queued, tcp_goes_on};
use crate::accelerate::{AcceleratedStream, FallbackReason, offsets};
use crate::metrics::{self, Direction};
use crate::sys;
use rsock_proto::switch::{
    Cause, Conditions, DirectionSwitch, Fact, Fault, FlagConditions, Message, Observation, Peeked,
    Seen, Step, Wire,
};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// How long the end of a stream may take to arrive on the ring after the socket's end. The sender
/// saw its bytes arrive before it closed the socket.
const RING_END_LIMIT: Duration = Duration::from_secs(3);

/// What one try of a call observes: its socket and its ring.
pub(super) struct Subject<'a> {
    pub(super) fd: BorrowedFd<'a>,
    /// The ring, if this process can use it.
    pub(super) path: Option<&'a Path>,
    /// Conditions of this call, beside those of the stream.
    pub(super) call: FlagConditions,
    /// Whether this call leaves a full ring at once.
    pub(super) spills: bool,
    /// What the socket or the ring failed with: the kernel reports it once.
    pub(super) error: Option<Errno>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(fd: BorrowedFd<'a>, path: Option<&'a Path>) -> Self {
        Self { fd, path, call: FlagConditions::NONE, spills: false, error: None }
    }

    /// What the socket or the ring failed with.
    pub(super) fn take_error(&mut self) -> io::Error {
        self.error.take().unwrap_or(Errno::IO).into()
    }

    /// The same, for a call with further `flags`.
    pub(super) fn with(self, flags: FlagConditions) -> Self {
        Self { call: self.call.with(flags), ..self }
    }
}

/// One direction of a stream, as [`AcceleratedStream::ask`] needs it.
pub(super) trait Switched {
    /// The direction that the counters name.
    const DIRECTION: Direction;
    /// The flag that is set once the kernel alone serves this direction, for good.
    const PLAIN: u32;

    type Switch: DirectionSwitch;

    fn switch(&self) -> &Self::Switch;

    fn switch_mut(&mut self) -> &mut Self::Switch;

    /// The conditions that the clocks and counters of this direction give.
    fn conditions(&self, path: &Path) -> Conditions;

    /// A message of the switch was sent.
    fn note_sent(&mut self, _message: Message) {}

    /// For [`Observation::KernelRead`] and [`Observation::KernelWritten`].
    fn kernel_count(fd: BorrowedFd<'_>) -> io::Result<Option<u64>>;

    /// For [`Observation::LeftUnread`].
    fn is_left_unread(&self, stream: &AcceleratedStream, fd: BorrowedFd<'_>, path: &Path) -> bool;

    /// For [`Observation::PeerGone`].
    fn is_peer_gone(&mut self, fd: BorrowedFd<'_>, path: &Path) -> bool;

    /// From now on the kernel alone serves this direction: calls no longer come by here.
    fn settled(&self, stream: &AcceleratedStream, path: Option<&Path>);
}

impl Switched for Receiving {
    const DIRECTION: Direction = Direction::Recv;
    const PLAIN: u32 = FLAG_RX_PLAIN;

    type Switch = rsock_proto::switch::Receiver;

    fn switch(&self) -> &Self::Switch {
        &self.switch
    }

    fn switch_mut(&mut self) -> &mut Self::Switch {
        &mut self.switch
    }

    fn conditions(&self, path: &Path) -> Conditions {
        let is_check_due = self.is_socket_check_due();
        let is_over =
            path.is_remote() && self.ended_since.is_some_and(|s| s.elapsed() >= RING_END_LIMIT);
        Conditions::NONE
            .with_if(Conditions::SOCKET_CHECK_DUE, is_check_due)
            .with_if(Conditions::END_OVERDUE, is_over)
    }

    fn kernel_count(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        offsets::read(fd)
    }

    fn is_left_unread(&self, stream: &AcceleratedStream, fd: BorrowedFd<'_>, path: &Path) -> bool {
        stream.is_reset_for_reader(fd, path, self.switch.tcp_bytes())
    }

    fn is_peer_gone(&mut self, _fd: BorrowedFd<'_>, _path: &Path) -> bool {
        false
    }

    fn settled(&self, stream: &AcceleratedStream, path: Option<&Path>) {
        // Otherwise the descriptor would stay readable in an epoll set for ever: no later receive
        // empties it.
        if let Some(path) = path {
            stream.quiet_epoll_proxy(self, path);
        }
    }
}

impl Switched for Sending {
    const DIRECTION: Direction = Direction::Send;
    const PLAIN: u32 = FLAG_TX_PLAIN;

    type Switch = rsock_proto::switch::Sender;

    fn switch(&self) -> &Self::Switch {
        &self.switch
    }

    fn switch_mut(&mut self) -> &mut Self::Switch {
        &mut self.switch
    }

    fn conditions(&self, path: &Path) -> Conditions {
        let is_over = self.full_since.is_some_and(|since| since.elapsed() >= path.patience());
        Conditions::NONE
            .with_if(Conditions::SPILL_DUE, is_over)
            .with_if(Conditions::DEVICE_SILENT, path.is_remote() && is_device_silent(self))
    }

    fn note_sent(&mut self, message: Message) {
        if matches!(message, Message::Up { .. } | Message::Down) {
            let is_leaving = !self.switch.is_on_ring() && !self.switch.is_on_tcp();
            self.full_since = None;
            self.leaving_since = is_leaving.then(sys::now);
        }
    }

    fn kernel_count(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        let written = offsets::written(fd)?;
        if written.is_some_and(|written| written.unsent != 0) {
            // The receiver takes no byte of the ring before those of the socket. If the kernel
            // refuses, they are late.
            let _ = push(fd);
        }
        Ok(written.map(|written| written.total))
    }

    fn is_left_unread(&self, stream: &AcceleratedStream, fd: BorrowedFd<'_>, path: &Path) -> bool {
        stream.is_reset_for_writer(fd, path, self)
    }

    fn is_peer_gone(&mut self, fd: BorrowedFd<'_>, path: &Path) -> bool {
        is_peer_gone(fd, self, path)
    }

    fn settled(&self, _stream: &AcceleratedStream, _path: Option<&Path>) {}
}

impl AcceleratedStream {
    /// The conditions before a try in this direction.
    #[inline]
    pub(super) fn conditions<T: Switched>(&self, at: &T, subject: &Subject<'_>) -> Conditions {
        let Some(path) = subject.path else {
            // A child of a fork cannot use what its parent has found.
            let flags = self.dirs.conditions().with(subject.call);
            return Conditions::from(flags).without(Conditions::PAIRED);
        };
        let flags = self.dirs.conditions().with(subject.call);
        let may_move = at.switch().is_on_tcp() && !flags.has(FlagConditions::PINNED);
        let waiters = &self.dirs.shared.0.kernel_only_waiters;
        Conditions::from(flags)
            .with(at.conditions(path))
            .with_if(Conditions::SPILL_DUE, subject.spills)
            .with_if(Conditions::BETWEEN_HOSTS, path.is_remote())
            .with_if(Conditions::RING_FAILED, path.has_failed())
            .with_if(Conditions::RING_DISCONNECTED, path.is_disconnected())
            .with_if(Conditions::KERNEL_ONLY_WAITER, kernel_only_waiter::is_any(waiters, at))
            .with_if(Conditions::HALTED, may_move && (is_halted() || self.has(FLAG_HELD_ON_TCP)))
    }

    /// Begins a try.
    #[inline]
    pub(super) fn begin<T: Switched>(&self, at: &T, subject: &Subject<'_>) -> Seen {
        Seen::new(self.conditions(at, subject))
    }

    /// Notes a fact. The switch says when the conditions have to be observed again.
    #[inline]
    pub(super) fn note<T: Switched>(
        &self,
        at: &T,
        seen: &mut Seen,
        subject: &Subject<'_>,
        fact: Fact,
    ) {
        seen.note::<Wire>(fact, || self.conditions(at, subject));
    }

    /// Asks the switch of a direction until it has its answer. The caller holds the lock of that
    /// direction.
    ///
    /// # Errors
    /// When an observation fails, which means that the descriptor is no longer a socket.
    #[inline]
    pub(super) fn ask<T: Switched, D>(
        &self,
        at: &mut T,
        seen: &mut Seen,
        subject: &mut Subject<'_>,
        mut query: impl FnMut(&mut T::Switch, &mut Seen) -> Step<D>,
    ) -> io::Result<D> {
        let was_on_ring = at.switch().is_on_ring();
        let answer = loop {
            match query(at.switch_mut(), seen) {
                Step::Done(answer) => break answer,
                Step::Observe(observation) => {
                    let fact = self.observe(observation, at, subject)?;
                    self.note(at, seen, subject, fact);
                }
                Step::Send(message) => {
                    let is_sent = subject.path.is_some_and(|path| path.send_message(message));
                    at.switch_mut().note_send(message, is_sent, seen);
                    if is_sent {
                        at.note_sent(message);
                    }
                }
                Step::Pin(cause) => {
                    self.pin_for(reason_of(cause));
                    seen.pinned();
                }
            }
        };
        if at.switch().is_on_ring() != was_on_ring {
            let kind =
                subject.path.filter(|_| !was_on_ring).map_or(metrics::Transport::Tcp, Path::kind);
            self.note_transport(T::DIRECTION, kind);
        }
        if at.switch().is_settled(seen.now()) && !self.has(T::PLAIN) {
            self.dirs.raise_plain(T::PLAIN);
            at.settled(self, subject.path);
        }
        Ok(answer)
    }

    #[inline]
    fn observe<T: Switched>(
        &self,
        observation: Observation,
        at: &mut T,
        subject: &mut Subject<'_>,
    ) -> io::Result<Fact> {
        let fd = subject.fd;
        let path = subject.path;
        let ring = |f: fn(&Path) -> u64| path.map_or(0, f);
        Ok(match observation {
            Observation::Messages => Fact::Messages(path.map(Path::messages).unwrap_or_default()),
            Observation::PolledMessages => {
                Fact::Messages(path.map(Path::poll_messages).unwrap_or_default())
            }
            Observation::AllMessages => {
                // Counting takes the receive lock, so it waits for a thread that polls the device
                // at the moment.
                let _ = path.map(Path::bytes_readable);
                Fact::AllMessages(path.map(Path::messages).unwrap_or_default())
            }
            Observation::RingBytes => Fact::RingBytes(ring(|path| path.bytes_readable() as u64)),
            Observation::RingEnd => {
                // In this order: what came before the disconnection is seen after it.
                let _ = path.map(Path::connection_state);
                Fact::RingEnd(path.is_some_and(Path::has_eof))
            }
            Observation::Drained => Fact::Drained(path.is_none_or(Path::is_drained)),
            Observation::Queued => Fact::Queued(queued(fd)? as u64),
            Observation::KernelRead | Observation::KernelWritten => {
                Fact::KernelCount(T::kernel_count(fd)?)
            }
            Observation::TcpEnded => Fact::TcpEnded(has_ended(fd)),
            Observation::TcpHasMore => Fact::TcpHasMore(tcp_goes_on(fd)),
            Observation::TcpEndsCall => Fact::TcpEndsCall(must_stop(fd)),
            Observation::Peek => Fact::Peeked(match peek_one(fd) {
                Ok(0) => Peeked::End,
                Ok(_) => Peeked::Bytes,
                // A read passes the urgent byte, a peek does not.
                Err(Errno::AGAIN) if sys::is_at_mark(fd) => Peeked::UrgentMark,
                Err(Errno::AGAIN) => Peeked::Nothing,
                Err(e) => {
                    subject.error = Some(e);
                    Peeked::Error
                }
            }),
            Observation::LeftUnread => {
                Fact::LeftUnread(path.is_some_and(|path| at.is_left_unread(self, fd, path)))
            }
            Observation::PeerGone => {
                Fact::PeerGone(path.is_some_and(|path| at.is_peer_gone(fd, path)))
            }
        })
    }
}

fn reason_of(cause: Cause) -> FallbackReason {
    match cause {
        Cause::ForeignUse => FallbackReason::ForeignWriter,
        Cause::Urgent => FallbackReason::Option,
        Cause::RingFailed => FallbackReason::PathFailed,
    }
}

/// The error of a stream that cannot go on.
pub(super) fn error_of(fault: Fault) -> io::Error {
    match fault {
        Fault::Violation | Fault::ForeignBytes => Errno::PROTO.into(),
        Fault::Lost => Errno::CONNRESET.into(),
    }
}
