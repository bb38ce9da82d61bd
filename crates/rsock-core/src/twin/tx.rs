//! The sending direction.

use super::path::{Fate, Path};
use super::rx::sleep_with_bell;
use super::state::{
    FLAG_BROKEN, FLAG_PAIRED, FLAG_PINNED, FLAG_STANDIN, FLAG_TX_PLAIN, FLAG_TX_SHUT, Tx, TxMode,
};
use super::{PATIENCE, PinReason, Twin, Waited, offset};
use crate::engine::{ExtSeen, Interest, SendError, Wake};
use crate::interrupt::{Section, Watch};
use crate::iov::Rest;
use crate::proto::{Ext, UP_MASK};
use crate::stat::{self, Direction};
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg, sockopt};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

/// Every how many-th send on the ring looks for messages from the peer.
const LISTEN_EVERY: u32 = 16;
/// How long a device may be silent about what it was given. It repeats a request a few times, for less
/// than that, and then says that it failed; but the kernel's soft RoCE (seen in Linux 6.1) may forget
/// to, when its interface goes down with requests under way.
const STUCK: Duration = Duration::from_secs(30);
/// How often a writer without TCP to move to looks whether its peer has gone.
const SOLE_PATIENCE: Duration = Duration::from_millis(50);
/// Pieces handed to the kernel, or to the ring, at once.
const PIECES: usize = 16;

/// Why a try to send ended without a byte.
enum Blocked {
    /// The kernel's send buffer is full.
    Tcp,
    /// The ring is full; the mark was taken before.
    Ring(u32),
    /// TCP must not be used before what is on the ring has arrived; the mark was taken before.
    Leaving(u32),
    /// It failed.
    Error(io::Error),
}

impl From<Errno> for Blocked {
    fn from(e: Errno) -> Self {
        if e == Errno::AGAIN { Self::Tcp } else { Self::Error(e.into()) }
    }
}

impl Twin {
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
        let mut rest = Rest::new(bufs);
        if self.has(FLAG_TX_PLAIN) || rest.len == 0 {
            return Ok(kernel_send(fd, bufs, flags)?);
        }
        if self.is_sole() {
            // Others mean nothing to a stream, as to TCP.
            if flags.intersects(KERNEL_FLAGS) {
                return Err(Errno::OPNOTSUPP.into());
            }
        } else if !flags.difference(KNOWN_FLAGS).is_empty() {
            // Urgent data and the like: only the kernel's socket can do it.
            self.pin(fd, PinReason::Option);
            return Ok(kernel_send(fd, bufs, flags)?);
        }
        let mut watch = Watch::begin();
        let mut deadline = None;
        let mut sent = 0;
        let error = loop {
            match self.try_send(fd, &rest, flags) {
                Ok(n) => {
                    sent += n;
                    rest.advance(n);
                    if rest.len == 0 {
                        return Ok(sent);
                    }
                }
                Err(Blocked::Error(e)) => break e,
                Err(blocked) => {
                    // Who has left for good may watch the kernel's socket alone, which has room all
                    // the time, and tells of none: such a call waits.
                    let is_watched = matches!(blocked, Blocked::Leaving(_))
                        && self.has(FLAG_PINNED)
                        && sent == 0;
                    if !is_watched && (flags.contains(SendFlags::DONTWAIT) || is_nonblocking(fd)) {
                        if self.has(FLAG_STANDIN) && self.show_full(fd) {
                            continue;
                        }
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

    fn try_send(
        &self,
        fd: BorrowedFd<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked> {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let pieces = &pieces[..n];
        if let Some(path) = self.path() {
            let mark = path.mark();
            self.steer_tx(fd, &mut tx, path);
            match tx.mode {
                // As TCP after a reset that a read has told of.
                TxMode::Ring if self.is_sole() && self.has(FLAG_BROKEN) => {
                    return Err(Blocked::Error(Errno::PIPE.into()));
                }
                TxMode::Ring => match self.ring_send(fd, &mut tx, path, pieces) {
                    // Moved to TCP: below.
                    Err(Blocked::Ring(_)) if tx.mode == TxMode::Tcp => {}
                    Err(Blocked::Ring(mark)) if tx.mode == TxMode::Leaving => {
                        return Err(Blocked::Leaving(mark));
                    }
                    done => return done,
                },
                TxMode::Leaving if is_stuck(&tx, path) => {
                    return Err(Blocked::Error(self.break_off(fd, &mut tx)));
                }
                TxMode::Leaving => return Err(Blocked::Leaving(mark)),
                TxMode::Tcp => {}
            }
        } else if tx.mode != TxMode::Tcp {
            // The parent's stream: only the parent can go on with it.
            return Err(Blocked::Error(Errno::CONNRESET.into()));
        } else {
            let mut calls = tx.calls;
            self.count(fd, &mut calls);
            tx.calls = calls;
        }
        let n = kernel_send(fd, pieces, flags | SendFlags::DONTWAIT)?;
        tx.tcp_bytes += n as u64;
        self.count_bytes(Direction::Send, stat::Path::Tcp, n);
        Ok(n)
    }

    /// Moves this direction up or down if it is time. The caller holds the lock.
    fn steer_tx(&self, fd: BorrowedFd<'_>, tx: &mut Tx, path: &Path) {
        if tx.mode != TxMode::Ring || self.has(FLAG_PINNED) {
            self.settle_tx(tx);
            let may_move = tx.mode == TxMode::Tcp && self.has(FLAG_PAIRED);
            if may_move && !self.has(FLAG_PINNED | FLAG_TX_SHUT) {
                self.move_up(fd, tx, path);
            }
            return;
        }
        // A sender with credit has no other reason to look at what the peer says.
        tx.calls = tx.calls.wrapping_add(1);
        let now = sys::tick();
        let due = now != tx.looked_at;
        let seen = if due || tx.calls.is_multiple_of(LISTEN_EVERY) {
            path.ext_seen()
        } else {
            path.ext_arrived()
        };
        if due {
            tx.looked_at = now;
            self.mind_fate(path);
        }
        if self.is_sole() {
            return;
        }
        if seen.contains(ExtSeen::LEAVE) || due && is_deserted(fd, path) {
            self.move_down(tx, path);
        }
    }

    /// Moves to the ring if the reader has invited us.
    fn move_up(&self, fd: BorrowedFd<'_>, tx: &mut Tx, path: &Path) {
        if !path.ext_seen().contains(ExtSeen::READY) || path.is_cut() {
            return;
        }
        if path.has_failed() {
            self.pin_for(PinReason::PathFailed);
            self.settle_tx(tx);
            return;
        }
        match offset::written(fd) {
            Ok(n) if n == tx.tcp_bytes => {}
            // Somebody else writes to the descriptor, past us.
            _ => {
                self.pin_for(PinReason::ForeignWriter);
                self.settle_tx(tx);
                return;
            }
        }
        let offset26 = u32::try_from(tx.tcp_bytes & u64::from(UP_MASK)).unwrap_or(0);
        if path.try_send_ext(Ext::Up { offset26 }) {
            path.take_ext(ExtSeen::READY);
            tx.mode = TxMode::Ring;
            tx.full_since = None;
            self.note_path(Direction::Send, path.kind());
        }
    }

    fn ring_send(
        &self,
        fd: BorrowedFd<'_>,
        tx: &mut Tx,
        path: &Path,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Blocked> {
        let mark = path.mark();
        match path.try_send(pieces) {
            Ok(n) => {
                tx.full_since = None;
                tx.ring_bytes += n as u64;
                self.count_bytes(Direction::Send, path.kind(), n);
                Ok(n)
            }
            Err(SendError::WouldBlock) if self.is_sole() => {
                if path.is_cut() {
                    return Err(Blocked::Error(self.break_off(fd, tx)));
                }
                Err(Blocked::Ring(mark))
            }
            Err(SendError::Closed) if self.is_sole() => Err(Blocked::Error(Errno::PIPE.into())),
            Err(SendError::WouldBlock) => {
                self.ring_is_full(tx, path);
                if is_stuck(tx, path) {
                    return Err(Blocked::Error(self.break_off(fd, tx)));
                }
                Err(Blocked::Ring(mark))
            }
            // What has been sent may not have arrived, and TCP cannot know.
            Err(SendError::Failed(_)) if path.is_far() => {
                Err(Blocked::Error(self.break_off(fd, tx)))
            }
            // The end of the connection, seen from the ring: TCP knows what to answer.
            Err(SendError::Closed | SendError::Failed(libc::ECONNRESET)) => {
                tx.mode = TxMode::Tcp;
                self.note_path(Direction::Send, stat::Path::Tcp);
                Err(Blocked::Ring(mark))
            }
            Err(SendError::Failed(errno)) => {
                Err(Blocked::Error(io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// Notes that the ring is full; moves down once the reader has been idle for long enough.
    pub(super) fn ring_is_full(&self, tx: &mut Tx, path: &Path) {
        let now = sys::now();
        match tx.full_since {
            None => tx.full_since = Some(now),
            Some(since) if now.duration_since(since) >= path.patience() => {
                self.move_down(tx, path);
            }
            Some(_) => {}
        }
    }

    /// Does what a pinned direction, or one whose reader asked to be left alone, has to do.
    pub(super) fn settle_tx(&self, tx: &mut Tx) {
        let Some(path) = self.path() else {
            if self.has(FLAG_PINNED) && tx.mode == TxMode::Tcp {
                self.dirs.raise(FLAG_TX_PLAIN);
            }
            return;
        };
        if tx.mode == TxMode::Leaving {
            // Not on a failure, which also ends all waiting: see `try_send`.
            if path.is_drained() && !path.has_failed() {
                tx.mode = TxMode::Tcp;
                if self.has(FLAG_PINNED) {
                    self.dirs.raise(FLAG_TX_PLAIN);
                }
            }
            return;
        }
        let asked = path.ext_arrived().contains(ExtSeen::LEAVE);
        if !self.has(FLAG_PINNED) && !asked {
            return;
        }
        // On TCP already it is an answer: do not expect us on the ring.
        if self.move_down(tx, path) && self.has(FLAG_PINNED) && tx.mode == TxMode::Tcp {
            self.dirs.raise(FLAG_TX_PLAIN);
        }
    }

    /// Leaves the ring if the reader has asked for it: one that is about to hand its stream over waits
    /// for that, and who only reads would not come by here otherwise.
    pub(super) fn answer_leave(&self) {
        if self.path().is_some_and(|path| path.ext_seen().contains(ExtSeen::LEAVE)) {
            let _section = Section::enter();
            let mut tx = self.dirs.tx.0.lock();
            self.settle_tx(&mut tx);
        }
    }

    /// The path on which the reader may ask us to leave the ring. Who sleeps on TCP has to be woken
    /// by that: even if we are on TCP too, an answer is waited for.
    pub(super) fn asking_path(&self) -> Option<&Path> {
        self.path().filter(|_| !self.has(FLAG_TX_PLAIN))
    }

    /// Sleeps until the socket has one of `events` or the reader asks us to leave the ring, which is
    /// answered.
    pub(super) fn sleep_on_socket(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        events: i16,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        // In this order: what comes after the look changes what the mark is compared with.
        let mark = path.mark();
        self.answer_leave();
        sleep_with_bell(fd, events, path, mark, left, watch).map(drop)
    }

    /// Moves to TCP, or says that we stay there. False if the ring takes no message now.
    pub(super) fn move_down(&self, tx: &mut Tx, path: &Path) -> bool {
        if !path.try_send_ext(Ext::Down) {
            return false;
        }
        path.take_ext(ExtSeen::READY | ExtSeen::LEAVE);
        let overtakes = path.is_far() && tx.mode == TxMode::Ring && !path.is_drained();
        tx.mode = if overtakes { TxMode::Leaving } else { TxMode::Tcp };
        tx.leaving_since = overtakes.then(sys::now);
        tx.full_since = None;
        self.note_path(Direction::Send, stat::Path::Tcp);
        true
    }

    /// Leaves a device that is being taken away, as long as it still carries something.
    pub(super) fn mind_fate(&self, path: &Path) {
        if path.is_far() && path.fate() == Fate::Removed {
            self.pin_for(PinReason::PathFailed);
        }
    }

    /// The path between hosts failed, and nobody knows what of the bytes sent has arrived. So the connection
    /// ends, whatever TCP still could do. The caller holds the lock.
    fn break_off(&self, fd: BorrowedFd<'_>, tx: &mut Tx) -> io::Error {
        tx.mode = TxMode::Tcp;
        self.note_path(Direction::Send, stat::Path::Tcp);
        self.dirs.raise(FLAG_TX_PLAIN);
        self.break_connection(fd)
    }

    /// Waits until sending may go on. The ring is waited for a bounded time only: then the caller's
    /// next try moves to TCP, where the kernel notices whatever happened to the peer.
    fn wait_for_room(
        &self,
        fd: BorrowedFd<'_>,
        blocked: &Blocked,
        deadline: Option<Instant>,
        watch: &mut Watch,
        partial: bool,
    ) -> io::Result<()> {
        let left = sys::time_left(deadline);
        if left == Some(Duration::ZERO) {
            return Err(Errno::AGAIN.into());
        }
        match (blocked, self.path()) {
            (Blocked::Ring(mark) | Blocked::Leaving(mark), Some(path)) => {
                if path.spin(Interest::Write, *mark) {
                    self.count_wait(Direction::Send, Waited::Spinning);
                    return Ok(());
                }
                self.count_wait(Direction::Send, Waited::Sleeping);
                let most = if self.is_sole() { SOLE_PATIENCE } else { PATIENCE };
                let woken = path.park(*mark, left.map_or(most, |l| l.min(most)));
                // A handler may have run before the thread slept: the kernel did not see it then.
                let interrupted = woken == Wake::Interrupted || watch.has_fired();
                if interrupted && (partial || watch.must_end()) {
                    return Err(Errno::INTR.into());
                }
                watch.restart();
                Ok(())
            }
            _ => {
                let slept = match self.asking_path() {
                    Some(path) => self.sleep_on_socket(fd, path, libc::POLLOUT, left, *watch),
                    None => {
                        let fd = fd.as_raw_fd();
                        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                        sys::sleep(&mut fds, left, None, *watch).map(drop)
                    }
                };
                match slept {
                    // A time-out makes the call end with EINTR whatever the handler asked for.
                    Err(e)
                        if e.raw_os_error() == Some(libc::EINTR)
                            && !watch.must_end()
                            && !partial
                            && deadline.is_none() =>
                    {
                        watch.restart();
                        Ok(())
                    }
                    other => other,
                }
            }
        }
    }
}

/// Whether what was sent to another host will never be known to have arrived.
pub(super) fn is_stuck(tx: &Tx, path: &Path) -> bool {
    let is_long = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= STUCK);
    match tx.mode {
        TxMode::Tcp => false,
        TxMode::Leaving => path.has_failed() || is_long(tx.leaving_since),
        // Not even the word that we leave could be posted.
        TxMode::Ring => path.is_far() && is_long(tx.full_since),
    }
}

/// Whether the socket says that nobody reads what we write any more: then TCP has the right answer.
/// A half-close is none: it stands in the ring before the socket knows of it. Where in doubt, TCP
/// is slower, never wrong.
#[cold]
fn is_deserted(fd: BorrowedFd<'_>, path: &Path) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    if !sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|n| n != 0) {
        return false;
    }
    fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0 || !path.has_eof()
}

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

fn kernel_send(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
    let flags = flags | SendFlags::NOSIGNAL;
    // The kernel has less to do for one buffer than for a list.
    if let [one] = bufs {
        return send(fd, one, flags);
    }
    sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), flags)
}

/// Whether the program set `O_NONBLOCK`. Asked only when a call would block.
pub(super) fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK))
}

fn send_deadline(fd: BorrowedFd<'_>) -> Option<Instant> {
    let timeout = sockopt::socket_timeout(fd, sockopt::Timeout::Send).ok().flatten()?;
    sys::now().checked_add(timeout)
}
