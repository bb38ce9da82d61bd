//! The sending direction.

mod break_off;
mod call_loop;
mod shortcut;
mod spill;
mod wait;
mod write;

pub(super) use call_loop::{Sends, WhenFull, send};
pub(super) use wait::park_for_room;

use crate::accelerate::ask::{Subject, error_of};
use crate::accelerate::call_stops::EndsCalls;
use crate::accelerate::counters::Waited;
use crate::accelerate::path::{ConnectionState, Path};
use crate::accelerate::state::{FLAG_PINNED, FLAG_TX_PLAIN, Sending};
use crate::accelerate::tcp_socket::is_nonblocking;
use crate::accelerate::time_limit::at_most;
use crate::accelerate::{AcceleratedStream, FallbackReason, PATIENCE};
use crate::closing::{Call, Descriptor};
use crate::engine::Interest;
use crate::interrupt::{Section, Watch};
use crate::iov::Rest;
use crate::metrics::Direction;
use call_loop::{Waits, send_on_proxy};
use rsock_proto::switch::{FlagConditions, Room, Sender, SettleStatus, Write};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::time::Duration;
use write::look_for_room;

/// Pieces given to the kernel, or to the ring, at once.
pub(super) const PIECES: usize = 16;

/// Why a try to send ended without a byte.
pub(super) enum Blocked {
    /// The kernel's send buffer is full.
    Tcp,
    /// The ring is full; the mark was taken before.
    Ring(u32),
    /// TCP must not be used before what is on the ring has arrived; the mark was taken before.
    Leaving(u32),
    /// The peer has closed and left bytes unread on the ring.
    Reset,
    /// A call that has sent something ends here, as on TCP: the kernel's socket has an error, which
    /// it reports once. The next call reports it.
    Stop,
    /// It failed.
    Error(io::Error),
}

impl From<io::Error> for Blocked {
    fn from(e: io::Error) -> Self {
        Self::Error(e)
    }
}

impl From<Errno> for Blocked {
    fn from(e: Errno) -> Self {
        if e == Errno::AGAIN { Self::Tcp } else { Self::Error(e.into()) }
    }
}

impl AcceleratedStream {
    /// As `sendmsg(2)` without control data, on a blocking or non-blocking descriptor; `flags` as
    /// given by the program. Never raises SIGPIPE itself: the caller does, on `EPIPE` without
    /// `MSG_NOSIGNAL`.
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...
    pub fn send(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        self.send_by(Descriptor::new(fd, self.closings.count()), bufs, flags)
    }

    /// As [`Self::send`], by a descriptor that other threads may close meanwhile: see
    /// [`StreamRef::keep_for_calls`](crate::accelerate::StreamRef::keep_for_calls).
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...; `EBADF` if it was closed and
    /// the call could not keep the socket.
    pub fn send_by(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let is_plain = self.is_served_by_kernel(FLAG_TX_PLAIN);
        let has_known_flags = flags.difference(KNOWN_FLAGS).is_empty();
        let rest = Rest::new(bufs);
        if !is_plain
            && has_known_flags
            && rest.len != 0
            && self.send_by_shortcut(descriptor, bufs, rest.len)
        {
            return Ok(rest.len);
        }
        if is_plain || rest.len == 0 {
            return Ok(self.send_on_tcp(descriptor.named(), bufs, flags)?);
        }
        if !has_known_flags {
            // Urgent data and the like: only the kernel's socket can do it.
            self.pin(descriptor.named(), FallbackReason::Option);
            return self.send_by_kernel(descriptor, bufs, flags);
        }
        let call = Call::begin(&self.closings, descriptor);
        send(self, &call, rest, flags)
    }

    /// Goes on with a sending call that has sent something: as [`Self::send_by`], but an error
    /// before which TCP would have ended the call is left for the next one. There must be a byte to
    /// send.
    ///
    /// # Errors
    /// As [`Self::send_by`].
    pub fn send_on(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let call = Call::begin(&self.closings, descriptor);
        send(self, &call, Rest::of_begun(bufs), flags)
    }

    /// Sends on the kernel's socket, which alone can honour `flags`, once everything that was sent
    /// on the ring has arrived. The stream has been pinned.
    fn send_by_kernel(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let call = Call::begin(&self.closings, descriptor);
        let mut waits = Waits::new();
        loop {
            let blocked = match self.try_leave_for_kernel(&call) {
                Ok(()) => return Ok(self.send_on_tcp(call.fd()?, bufs, flags)?),
                Err(Blocked::Error(e)) => return Err(e),
                Err(Blocked::Reset) => return Err(self.report_reset(call.fd()?, Direction::Send)),
                Err(blocked) => blocked,
            };
            let fd = call.fd()?;
            // The stream is pinned, so the program may watch the kernel's socket, which has room:
            // only a wait for that room may be left to the program.
            let is_watchable = matches!(blocked, Blocked::Tcp);
            if !waits.may_wait(flags, || is_nonblocking(fd)) && is_watchable {
                return Err(Errno::AGAIN.into());
            }
            if self.call_stops.is_asked() {
                if self.call_stops.stop() {
                    return send_on_proxy(&call, Rest::new(bufs), 0, flags);
                }
                continue;
            }
            waits.wait(fd, |left, watch| self.wait_for_room(fd, &blocked, left, watch))?;
        }
    }

    /// Leaves the ring for a call that needs the kernel's socket.
    fn try_leave_for_kernel(&self, call: &Call<'_>) -> Result<(), Blocked> {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        let fd = call.fd()?;
        let path = self.path();
        let mark = path.map_or(0, |path| path.mark());
        // A look at the ring in each try: one that has ended is found in no other way here.
        let call = FlagConditions::KERNEL_CALL.with(FlagConditions::SOCKET_CHECK_DUE);
        let mut subject = Subject::new(fd, path).with(call);
        let mut seen = self.begin(&*tx, &subject);
        loop {
            let next = self.ask(&mut *tx, &mut seen, &mut subject, Sender::write)?;
            self.note_answers(&tx);
            return match next {
                Write::Tcp => Ok(()),
                Write::Ring => {
                    let fact = look_for_room(&mut subject, &mut tx);
                    self.note(&*tx, &mut seen, &subject, fact);
                    continue;
                }
                Write::Wait(Room::Ring) => Err(Blocked::Ring(mark)),
                Write::Wait(Room::Tcp) => Err(Blocked::Tcp),
                Write::Wait(Room::Device) => Err(Blocked::Leaving(mark)),
                Write::Reset => Err(Blocked::Reset),
                Write::Fail => Err(Blocked::Error(subject.take_error())),
                Write::BreakOff => Err(Blocked::Error(self.break_off(fd, &mut tx))),
                Write::Fault(fault) => Err(Blocked::Error(error_of(fault))),
            };
        }
    }

    /// Pins the stream if its device is being removed, while the device still delivers something.
    pub(in crate::accelerate) fn pin_if_device_removed(&self, path: &Path) {
        if path.is_remote() && path.connection_state() == ConnectionState::DeviceRemoved {
            self.pin_for(FallbackReason::PathFailed);
        }
    }

    /// Does what is due for a direction that is pinned, or that the receiver has asked to leave.
    /// The caller holds the lock.
    pub(in crate::accelerate) fn settle_sending(
        &self,
        fd: BorrowedFd<'_>,
        tx: &mut Sending,
    ) -> SettleStatus {
        let mut subject = Subject::new(fd, self.path());
        let mut seen = self.begin(tx, &subject);
        let settled = self.ask(tx, &mut seen, &mut subject, Sender::settle);
        self.note_answers(tx);
        if matches!(settled, Ok(SettleStatus::BreakOff)) {
            let _ = self.break_off(fd, tx);
        }
        settled.unwrap_or(SettleStatus::NotYet)
    }

    /// Answers a receiver that has asked this end to leave the ring, if it has, and breaks the
    /// connection off if sent bytes are lost. A receiver that is about to hand off its stream waits
    /// for the answer, and a program that only reads makes no other call that would give it.
    pub(in crate::accelerate) fn answer_leave(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path() else { return };
        let answered = self.dirs.shared.0.leaves_answered.load(Ordering::Acquire);
        let leaves = path.poll_messages().counts.leaves();
        // In this order: polling for messages may find that the ring has failed.
        let has_news = self.has(FLAG_PINNED) || path.is_remote() && path.has_failed();
        if leaves != answered || has_news && !self.has(FLAG_TX_PLAIN) {
            let _section = Section::enter();
            let mut tx = self.dirs.tx.0.lock();
            let _ = self.settle_sending(fd, &mut tx);
        }
    }

    /// Publishes how many requests have been answered, to be read without the lock: see
    /// [`Self::answer_leave`].
    pub(in crate::accelerate) fn note_answers(&self, tx: &Sending) {
        let answered = &self.dirs.shared.0.leaves_answered;
        if answered.load(Ordering::Relaxed) != tx.switch.leaves_answered() {
            answered.store(tx.switch.leaves_answered(), Ordering::Release);
        }
    }

    /// The path on which the receiver may ask the sender to leave the ring. The request has to wake
    /// a thread that sleeps on TCP: the receiver waits for an answer even if both directions are on
    /// TCP.
    pub(in crate::accelerate) fn asking_path(&self) -> Option<&Path> {
        self.path().filter(|_| !self.has(FLAG_TX_PLAIN))
    }
}

impl Sends for AcceleratedStream {
    /// Sends on TCP or on the ring.
    fn try_send(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked> {
        if let Some(bufs) = rest.whole()
            && self.send_by_shortcut(call.descriptor(), bufs, rest.len)
        {
            return Ok(rest.len);
        }
        self.try_send_by_switch(call, rest, flags, false)
    }

    fn is_to_spill(&self, blocked: &Blocked) -> bool {
        self.is_to_spill(blocked)
    }

    fn try_spill(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked> {
        self.try_send_by_switch(call, rest, flags, true)
    }

    fn when_full(&self, fd: BorrowedFd<'_>, blocked: &Blocked, sent: usize) -> WhenFull {
        // A program whose stream has left the ring for good may watch the kernel's socket alone.
        // That has room all the time, so it never signals any: such a call waits.
        if matches!(blocked, Blocked::Leaving(_)) && self.has(FLAG_PINNED) && sent == 0 {
            return WhenFull::Wait;
        }
        self.note_told(fd, blocked, sent != 0);
        WhenFull::Return
    }

    #[inline]
    fn spin_at_first(&self, blocked: &Blocked) -> bool {
        matches!(blocked, Blocked::Ring(mark) if self.first_spin(Direction::Send, *mark))
    }

    fn is_nonblocking(&self, fd: BorrowedFd<'_>) -> bool {
        self.may_not_wait(fd, Direction::Send)
    }

    /// Waits until sending may go on. It waits for the ring for a bounded time only: then the
    /// caller's next try moves to TCP, where the kernel notices whatever happened to the peer.
    fn wait_for_room(
        &self,
        fd: BorrowedFd<'_>,
        blocked: &Blocked,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        match (blocked, self.path()) {
            (Blocked::Ring(mark) | Blocked::Leaving(mark), Some(path)) => {
                if path.spin(Interest::Write, *mark) {
                    self.count_wait(Direction::Send, Waited::Spinning);
                    return Ok(());
                }
                self.count_wait(Direction::Send, Waited::Sleeping);
                self.check_peer_before_waiting(fd, blocked);
                park_for_room(path, *mark, at_most(PATIENCE, left), watch)
            }
            _ => self.sleep_on_socket(fd, libc::POLLOUT, left, watch),
        }
    }
}

/// Flags that the ring can honour, or may ignore as TCP does.
const KNOWN_FLAGS: SendFlags = SendFlags::DONTWAIT
    .union(SendFlags::NOSIGNAL)
    .union(SendFlags::MORE)
    .union(SendFlags::EOR)
    .union(SendFlags::CONFIRM)
    .union(SendFlags::DONTROUTE);
