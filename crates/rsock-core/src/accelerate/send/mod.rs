//! The sending direction.

mod end;
mod kernel;
mod wait;

pub(super) use end::{is_deserted, is_silent, meet};
pub(super) use kernel::is_nonblocking;

use crate::accelerate::ask::{Subject, error_of};
use crate::accelerate::path::{Fate, Path};
use crate::accelerate::state::{FLAG_PINNED, FLAG_STANDIN, FLAG_TX_PLAIN, Sending};
use crate::accelerate::{AcceleratedStream, FallbackReason};
use crate::closing::{Call, Descriptor};
use crate::engine::SendError;
use crate::interrupt::{Section, Watch};
use crate::iov::Rest;
use crate::metrics::{self, Direction};
use crate::sys;
use kernel::kernel_send;
use rsock_proto::switch::{Conditions, Fact, Room, Sender, Settled, Write};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use wait::send_deadline;

/// Pieces handed to the kernel, or to the ring, at once.
const PIECES: usize = 16;

/// Why a try to send ended without a byte.
pub(super) enum Blocked {
    /// The kernel's send buffer is full.
    Tcp,
    /// The ring is full; the mark was taken before.
    Ring(u32),
    /// TCP must not be used before what is on the ring has arrived; the mark was taken before.
    Leaving(u32),
    /// The peer has gone and left bytes unread on the ring.
    Reset,
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
    /// [`Self::keep_for_calls`].
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...; `EBADF` if it was closed and the
    /// call could not keep the socket.
    pub fn send_by(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let mut rest = Rest::new(bufs);
        if self.has(FLAG_TX_PLAIN) || rest.len == 0 {
            return Ok(kernel_send(descriptor.named(), bufs, flags)?);
        }
        if self.is_sole() {
            // Others mean nothing to a stream, as to TCP.
            if flags.intersects(KERNEL_FLAGS) {
                return Err(Errno::OPNOTSUPP.into());
            }
        } else if !flags.difference(KNOWN_FLAGS).is_empty() {
            // Urgent data and the like: only the kernel's socket can do it.
            self.pin(descriptor.named(), FallbackReason::Option);
            return self.send_by_kernel(descriptor, bufs, flags);
        }
        let call = Call::begin(&self.closings, descriptor);
        let mut watch = Watch::begin();
        let mut deadline = None;
        let mut sent = 0;
        let error = loop {
            match self.try_send(&call, &rest, flags) {
                Ok(n) => {
                    sent += n;
                    rest.advance(n);
                    if rest.len == 0 {
                        return Ok(sent);
                    }
                }
                Err(Blocked::Error(e)) => break e,
                // Told by the next call, as on TCP, if something has been sent.
                Err(Blocked::Reset) if sent != 0 => return Ok(sent),
                Err(Blocked::Reset) => break self.tell_reset(call.fd()?),
                Err(blocked) => {
                    let fd = match call.fd() {
                        Ok(fd) => fd,
                        Err(e) => break e,
                    };
                    // Who has left for good may watch the kernel's socket alone, which has room all
                    // the time, and tells of none: such a call waits.
                    let is_watched = matches!(blocked, Blocked::Leaving(_))
                        && self.has(FLAG_PINNED)
                        && sent == 0;
                    if !is_watched && (flags.contains(SendFlags::DONTWAIT) || is_nonblocking(fd)) {
                        if self.has(FLAG_STANDIN) && self.show_full(fd) {
                            continue;
                        }
                        self.meet_before_waiting(fd, &blocked);
                        break Errno::AGAIN.into();
                    }
                    let limit = *deadline.get_or_insert_with(|| send_deadline(fd));
                    if let Err(e) = self.wait_for_room(fd, &blocked, limit, &mut watch, sent != 0) {
                        break e;
                    }
                }
            }
        };
        if sent != 0 { Ok(sent) } else { Err(error) }
    }

    /// Sends on the kernel's socket, which alone can do what `flags` ask for, once everything that was sent on the
    /// ring is there. The stream has been pinned.
    fn send_by_kernel(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let call = Call::begin(&self.closings, descriptor);
        let mut watch = Watch::begin();
        let mut deadline = None;
        loop {
            let blocked = match self.try_leave_for_kernel(&call) {
                Ok(()) => return Ok(kernel_send(call.fd()?, bufs, flags)?),
                Err(Blocked::Error(e)) => return Err(e),
                Err(Blocked::Reset) => return Err(self.tell_reset(call.fd()?)),
                Err(blocked) => blocked,
            };
            let fd = call.fd()?;
            // The stream is pinned, so the program may watch the kernel's socket, which has room:
            // only a wait for that room may be left to the program.
            let is_watchable = matches!(blocked, Blocked::Tcp);
            if is_watchable && (flags.contains(SendFlags::DONTWAIT) || is_nonblocking(fd)) {
                return Err(Errno::AGAIN.into());
            }
            let limit = *deadline.get_or_insert_with(|| send_deadline(fd));
            self.wait_for_room(fd, &blocked, limit, &mut watch, false)?;
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
        let call = Conditions::KERNEL_CALL.with(Conditions::LOOK_DUE);
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

    /// Sends what there is room for now, on TCP or on the ring.
    fn try_send(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked> {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        let path = self.path();
        match path {
            Some(path) => self.look_in_turn(&mut tx, path),
            None => {
                let mut calls = tx.calls;
                self.count(fd, &mut calls);
                tx.calls = calls;
            }
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let pieces = &pieces[..n];
        if self.is_sole() {
            // A child of a fork cannot use its parent's stream, and there is no TCP.
            let Some(path) = path else { return Err(Blocked::Error(Errno::CONNRESET.into())) };
            return self.send_native(fd, path, &mut tx, pieces);
        }
        let mark = path.map_or(0, |path| path.mark());
        let is_due = path.is_some() && self.is_look_due(&mut tx);
        let mut subject = Subject::new(fd, path);
        subject.call = subject.call.with_if(Conditions::LOOK_DUE, is_due);
        let mut seen = self.begin(&*tx, &subject);
        loop {
            let next = self.ask(&mut *tx, &mut seen, &mut subject, Sender::write)?;
            self.note_answers(&tx);
            let fact = match next {
                Write::Tcp => match kernel_send(
                    fd,
                    rest.whole().unwrap_or(pieces),
                    flags | SendFlags::DONTWAIT,
                ) {
                    Ok(n) => {
                        tx.switch.took_tcp(n as u64);
                        self.count_bytes(Direction::Send, metrics::Transport::Tcp, n);
                        return Ok(n);
                    }
                    Err(Errno::AGAIN) => Fact::TcpFull,
                    Err(e) => return Err(Blocked::Error(e.into())),
                },
                Write::Ring => match self.send_on_ring(&mut subject, &mut tx, pieces)? {
                    Sent::Bytes(n) => return Ok(n),
                    Sent::Nothing(fact) => fact,
                },
                Write::Wait(Room::Tcp) => return Err(Blocked::Tcp),
                Write::Wait(Room::Ring) => return Err(Blocked::Ring(mark)),
                Write::Wait(Room::Device) => return Err(Blocked::Leaving(mark)),
                Write::Reset => return Err(Blocked::Reset),
                Write::Fail => return Err(Blocked::Error(subject.take_error())),
                Write::BreakOff => return Err(Blocked::Error(self.break_off(fd, &mut tx))),
                Write::Fault(fault) => return Err(Blocked::Error(error_of(fault))),
            };
            self.note(&*tx, &mut seen, &subject, fact);
        }
    }

    fn send_on_ring(
        &self,
        subject: &mut Subject<'_>,
        tx: &mut Sending,
        pieces: &[IoSlice<'_>],
    ) -> Result<Sent, Blocked> {
        let Some(path) = subject.path else { return Ok(Sent::Nothing(Fact::RingClosed)) };
        match path.try_send(pieces) {
            Ok(n) => {
                tx.full_since = None;
                tx.sent_at = tx.looked_at;
                tx.switch.took_ring(n as u64);
                self.count_bytes(Direction::Send, path.kind(), n);
                Ok(Sent::Bytes(n))
            }
            Err(SendError::Fault) => Err(Blocked::Error(Errno::FAULT.into())),
            Err(e) => Ok(Sent::Nothing(fact_of(e, subject, tx, path))),
        }
    }

    /// A sender with credit has no other reason to look at what the peer says on the ring.
    fn look_in_turn(&self, tx: &mut Sending, path: &Path) {
        tx.calls = tx.calls.wrapping_add(1);
        if tx.calls.is_multiple_of(LISTEN_EVERY) && tx.switch.is_on_ring() {
            path.heard_now();
        }
    }

    /// Whether it is time to look at the socket: the first call of each tick does.
    fn is_look_due(&self, tx: &mut Sending) -> bool {
        let now = sys::tick();
        let is_due = now != tx.looked_at;
        tx.looked_at = now;
        if let Some(path) = self.path().filter(|_| is_due) {
            self.mind_fate(path);
        }
        is_due
    }

    /// Leaves a device that is being taken away, as long as it still carries something.
    pub(in crate::accelerate) fn mind_fate(&self, path: &Path) {
        if path.is_far() && path.fate() == Fate::Removed {
            self.pin_for(FallbackReason::PathFailed);
        }
    }

    /// Does what a pinned direction, or one whose receiver has asked something, has to do. The caller holds the
    /// lock.
    pub(in crate::accelerate) fn settle_sending(
        &self,
        fd: BorrowedFd<'_>,
        tx: &mut Sending,
    ) -> Settled {
        let mut subject = Subject::new(fd, self.path());
        let mut seen = self.begin(tx, &subject);
        let settled = self.ask(tx, &mut seen, &mut subject, Sender::settle);
        self.note_answers(tx);
        if matches!(settled, Ok(Settled::BreakOff)) {
            let _ = self.break_off(fd, tx);
        }
        settled.unwrap_or(Settled::NotYet)
    }

    /// Answers what the receiver has asked, if it has, and breaks the connection off if bytes that were sent are
    /// lost. A receiver that is about to hand its stream over waits for that, and a
    /// program that only reads makes no other call that would.
    pub(in crate::accelerate) fn answer_leave(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path() else { return };
        let answered = self.dirs.shared.0.leaves_answered.load(Ordering::Acquire);
        let leaves = path.heard_now().counts.leaves();
        // In this order: what was heard last may be that the ring has failed.
        let has_news = self.has(FLAG_PINNED) || path.is_far() && path.has_failed();
        if leaves != answered || has_news && !self.has(FLAG_TX_PLAIN) {
            let _section = Section::enter();
            let mut tx = self.dirs.tx.0.lock();
            let _ = self.settle_sending(fd, &mut tx);
        }
    }

    /// Says without the lock what has been answered: see [`Self::answer_leave`].
    pub(in crate::accelerate) fn note_answers(&self, tx: &Sending) {
        let answered = &self.dirs.shared.0.leaves_answered;
        if answered.load(Ordering::Relaxed) != tx.switch.leaves_answered() {
            answered.store(tx.switch.leaves_answered(), Ordering::Release);
        }
    }

    /// The path on which the receiver may ask the sender to leave the ring. A thread that sleeps on TCP has to be
    /// woken by that: an answer is waited for even if both are on TCP.
    pub(in crate::accelerate) fn asking_path(&self) -> Option<&Path> {
        self.path().filter(|_| !self.has(FLAG_TX_PLAIN))
    }
}

/// What a write to the ring that took nothing says of it.
fn fact_of(error: SendError, subject: &mut Subject<'_>, tx: &mut Sending, path: &Path) -> Fact {
    match error {
        SendError::WouldBlock | SendError::Fault => {
            tx.full_since.get_or_insert_with(sys::now);
            Fact::RingFull
        }
        SendError::Closed => Fact::RingClosed,
        SendError::Failed(libc::ECONNRESET) if !path.is_far() => Fact::RingClosed,
        SendError::Failed(errno) => {
            subject.error = Some(Errno::from_raw_os_error(errno));
            Fact::RingFailed
        }
    }
}

/// For a call that needs the kernel's socket, when the message that it leaves the ring finds no room: whether there
/// can still be some.
fn look_for_room(subject: &mut Subject<'_>, tx: &mut Sending) -> Fact {
    let Some(path) = subject.path else { return Fact::RingClosed };
    // Takes what waits on the device: it may be that the ring has failed.
    path.heard_now();
    let is_over = path.try_send(&[]).err();
    fact_of(is_over.unwrap_or(SendError::WouldBlock), subject, tx, path)
}

/// What one try on the ring came to.
enum Sent {
    Bytes(usize),
    Nothing(Fact),
}

/// Every how many-th send on the ring looks for messages from the peer.
const LISTEN_EVERY: u32 = 16;

/// Flags that the ring can honour, or may ignore as TCP does.
const KNOWN_FLAGS: SendFlags = SendFlags::DONTWAIT
    .union(SendFlags::NOSIGNAL)
    .union(SendFlags::MORE)
    .union(SendFlags::EOR)
    .union(SendFlags::CONFIRM)
    .union(SendFlags::DONTROUTE);

/// Flags that only the kernel's TCP can honour.
const KERNEL_FLAGS: SendFlags = SendFlags::OOB.union(SendFlags::from_bits_retain(
    libc::MSG_ZEROCOPY.cast_unsigned() | libc::MSG_FASTOPEN.cast_unsigned(),
));
