//! The receiving direction.

use super::path::{Arming, Bells, Fate, Path};
use super::state::{
    FLAG_BROKEN, FLAG_PAIRED, FLAG_PINNED, FLAG_RX_PLAIN, FLAG_RX_SHUT, FLAG_RX_SLEEPY,
    FLAG_STANDIN, Flags, Rx, RxMode,
};
use super::tx::is_nonblocking;
use super::{FIRST_LOOK, PARK, PinReason, Twin, Waited, offset};
use crate::engine::{ExtSeen, Interest, RecvError, Wake};
use crate::interrupt::{Section, Watch};
use crate::iov::with_tail;
use crate::proto::{Ext, UP_MASK};
use crate::stat::{self, Direction};
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg, sockopt};
use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Why a try to receive ended without a byte, and what to wait for.
pub(super) enum Blocked<'a> {
    /// Nothing on TCP, and the ring is not in use: the wait is deaf to it.
    Tcp(#[expect(dead_code, reason = "held while the thread sleeps")] Deaf<'a>),
    /// Nothing on TCP, but a message may come on the ring; the mark was taken before.
    Both(u32),
    /// Nothing on the ring; the mark was taken before.
    Ring(u32),
    /// Fewer bytes to look at than asked for. No descriptor tells of more: look again soon.
    Short,
    /// It failed.
    Error(io::Error),
}

/// A thread that is about to sleep where the ring cannot wake it. Made under the lock of the
/// direction, so that an invitation either comes before and is seen, or waits.
pub(super) struct Deaf<'a>(&'a Flags);

impl<'a> Deaf<'a> {
    pub(super) fn new(flags: &'a Flags) -> Self {
        flags.deaf_waiters.fetch_add(1, Ordering::AcqRel);
        Self(flags)
    }
}

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        self.0.deaf_waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Every how many-th empty-handed read of the ring looks whether the peer is still there.
pub(super) const LOOK_EVERY: u32 = 8;
/// How long the end of a stream on the ring may take after the socket's. The writer saw its bytes
/// arrive before it closed the socket.
const GRACE: Duration = Duration::from_secs(3);
/// How long `MSG_PEEK | MSG_WAITALL` waits before it looks for more bytes again.
const AGAIN: Duration = Duration::from_millis(1);

impl Twin {
    /// As `recvmsg(2)` without control data; `MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT` and
    /// `MSG_TRUNC` as on TCP.
    ///
    /// # Errors
    /// As `recvmsg(2)`: `EAGAIN`, `EINTR`, `ECONNRESET`...
    pub fn recv(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let kernel_only = RecvFlags::OOB | RecvFlags::ERRQUEUE;
        let is_paired = self.path().is_some();
        if self.has(FLAG_RX_PLAIN) || flags.intersects(kernel_only) || total == 0 && !is_paired {
            return Ok(kernel_recv(fd, bufs, flags)?);
        }
        if total == 0 {
            // Waits for a byte or the end, as on TCP, and takes nothing.
            let mut byte = [0];
            let look = RecvFlags::PEEK | (flags & RecvFlags::DONTWAIT);
            return self.recv(fd, &mut [IoSliceMut::new(&mut byte)], look).map(|_| 0);
        }
        if let Some(done) = self.early_recv(fd, bufs, flags) {
            return done;
        }
        let mut watch = Watch::begin();
        let mut deadline = None;
        let mut got = 0;
        let peek = flags.contains(RecvFlags::PEEK);
        let wait_all = flags.contains(RecvFlags::WAITALL);
        let error = loop {
            // Looked up before the bytes: what was written before the end is among them.
            let is_last = peek && wait_all && has_ended(fd);
            let skip = if peek { 0 } else { got };
            let tried = with_tail(bufs, skip, usize::MAX, |tail| self.try_recv(fd, tail, flags));
            let blocked = match tried {
                Ok(0) => return Ok(got),
                Ok(n) => {
                    if got == 0 && !watch.must_end() {
                        // A handler that ran before the first byte made the call start again.
                        watch.restart();
                    }
                    got = if peek { n } else { got + n };
                    if got == total || !wait_all || is_last {
                        return Ok(got);
                    }
                    if !peek {
                        continue;
                    }
                    Blocked::Short
                }
                Err(Blocked::Error(e)) => break e,
                Err(blocked) => blocked,
            };
            self.answer_leave();
            if flags.contains(RecvFlags::DONTWAIT) || is_nonblocking(fd) {
                break Errno::AGAIN.into();
            }
            let limit = *deadline.get_or_insert_with(|| recv_deadline(fd));
            if let Err(e) = self.wait_for_data(fd, blocked, limit, &mut watch, got != 0) {
                break e;
            }
        };
        if got != 0 { Ok(got) } else { Err(error) }
    }

    /// The first calls of a connection, before it looks for its peer: the kernel alone, as without us, and
    /// at the same price. Deaf meanwhile, so nobody is invited.
    fn early_recv(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Option<io::Result<usize>> {
        let _deaf = {
            let _section = Section::enter();
            let mut rx = self.dirs.rx.0.lock();
            if rx.calls + 1 >= FIRST_LOOK || self.path.get().is_some() {
                return None;
            }
            rx.calls += 1;
            Deaf::new(&self.dirs.shared.0)
        };
        let n = match kernel_recv(fd, bufs, flags) {
            Ok(n) => n,
            Err(e) => return Some(Err(e.into())),
        };
        if !flags.contains(RecvFlags::PEEK) {
            let _section = Section::enter();
            self.dirs.rx.0.lock().tcp_bytes += n as u64;
        }
        Some(Ok(n))
    }

    fn try_recv(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Blocked<'_>> {
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        let Some(path) = self.path() else {
            if rx.mode != RxMode::Tcp {
                // The parent's stream: only the parent can go on with it.
                return Err(Blocked::Error(Errno::CONNRESET.into()));
            }
            let mut calls = rx.calls;
            self.count(fd, &mut calls);
            rx.calls = calls;
            return self.tcp_recv(fd, &mut rx, bufs, usize::MAX, flags);
        };
        loop {
            let mark = path.mark();
            self.steer_rx(fd, &mut rx, path)?;
            match rx.mode {
                // Broken: what the placeholder has is nobody's.
                RxMode::Tcp if self.is_sole() => {
                    return Err(Blocked::Error(Errno::CONNRESET.into()));
                }
                RxMode::Tcp => {
                    self.quiet_stand_in(&rx, path);
                    return self.tcp_recv(fd, &mut rx, bufs, usize::MAX, flags);
                }
                RxMode::Invited => {
                    // Bytes queued before we look for `Up` were written before it.
                    let queued = queued(fd)?;
                    if queued != 0 {
                        // Another thread may be taking it from the device just now.
                        path.bytes_readable();
                    }
                    if path.ext_seen().intersects(ExtSeen::UP | ExtSeen::DOWN) {
                        continue;
                    }
                    if queued != 0 {
                        return self.tcp_recv(fd, &mut rx, bufs, queued, flags);
                    }
                    return match peek_one(fd) {
                        Ok(0) if path.is_far() => self.far_end(fd, &mut rx, path),
                        Ok(0) => Ok(0),
                        Ok(_)
                            if self::queued(fd)? == 0 && !path.ext_seen().contains(ExtSeen::UP) =>
                        {
                            // The kernel counts only up to an urgent byte. Who sends one stays on
                            // TCP from before it, so there is no `Up` among what follows.
                            self.pin_for(PinReason::Option);
                            self.tcp_recv(fd, &mut rx, bufs, usize::MAX, flags)
                        }
                        Ok(_) => continue,
                        Err(Errno::AGAIN) => {
                            self.quiet_stand_in(&rx, path);
                            Err(Blocked::Both(mark))
                        }
                        Err(e) => Err(Blocked::Error(e.into())),
                    };
                }
                RxMode::Clamped => {
                    let left = usize::try_from(rx.limit.wrapping_sub(rx.tcp_bytes));
                    let left = left.unwrap_or(usize::MAX);
                    return match self.tcp_recv(fd, &mut rx, bufs, left, flags) {
                        Err(Blocked::Tcp(_)) => Err(Blocked::Both(mark)),
                        // The end of TCP before the agreed byte: what should follow is lost.
                        Ok(0) => Err(Blocked::Error(Errno::CONNRESET.into())),
                        Ok(n) if n == left => {
                            Ok(n + self.ring_after(&mut rx, path, bufs, n, flags))
                        }
                        other => other,
                    };
                }
                RxMode::Ring => match path.try_recv(bufs, flags.contains(RecvFlags::PEEK)) {
                    Ok(0) if self.is_sole() => return Ok(0),
                    Ok(0) => return self.at_end(fd, path).unwrap_or(Ok(0)),
                    Ok(n) => {
                        self.took_from_ring(&mut rx, path, n, flags);
                        rx.idle_reads = 0;
                        return Ok(n + self.tcp_after(fd, &mut rx, path, bufs, n, flags));
                    }
                    Err(RecvError::WouldBlock) => {
                        rx.idle_reads = rx.idle_reads.wrapping_add(1);
                        if path.ext_seen().contains(ExtSeen::DOWN) {
                            continue;
                        }
                        let look = rx.idle_reads.is_multiple_of(LOOK_EVERY);
                        if self.is_sole() {
                            let look = look || path.is_cut() || self.has(FLAG_STANDIN);
                            if (look || self.has(FLAG_RX_SHUT))
                                && let Some(end) = self.sole_end(fd, &mut rx, path)
                            {
                                return end;
                            }
                            self.quiet_stand_in(&rx, path);
                            return Err(Blocked::Ring(mark));
                        }
                        if (look || self.has(FLAG_RX_SHUT)) && has_ended(fd) {
                            if path.is_far() {
                                return self.far_end(fd, &mut rx, path);
                            }
                            if let Some(end) = self.at_end(fd, path) {
                                return end;
                            }
                        }
                        self.quiet_stand_in(&rx, path);
                        return Err(Blocked::Ring(mark));
                    }
                    // The peer had left before that: TCP goes on.
                    Err(RecvError::Failed(_)) if path.ext_seen().contains(ExtSeen::DOWN) => {}
                    Err(RecvError::Failed(_)) if path.is_far() => {
                        return Err(Blocked::Error(self.break_off_rx(fd, &mut rx)));
                    }
                    Err(RecvError::Failed(errno)) => {
                        // The device noticed the peer's death; TCP knows how it ended.
                        if errno == libc::ECONNRESET
                            && let Some(end) = self.at_end(fd, path)
                        {
                            return end;
                        }
                        return Err(Blocked::Error(io::Error::from_raw_os_error(errno)));
                    }
                },
            }
        }
    }

    /// After the last byte of TCP: what the ring has for the rest of `bufs`, since one call on TCP
    /// would have returned both.
    fn ring_after(
        &self,
        rx: &mut Rx,
        path: &Path,
        bufs: &mut [IoSliceMut<'_>],
        got: usize,
        flags: RecvFlags,
    ) -> usize {
        let peek = flags.contains(RecvFlags::PEEK);
        let more = with_tail(bufs, got, usize::MAX, |tail| path.try_recv(tail, peek)).unwrap_or(0);
        self.took_from_ring(rx, path, more, flags);
        more
    }

    /// After the last byte of the ring: what TCP has for the rest of `bufs`.
    fn tcp_after(
        &self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        path: &Path,
        bufs: &mut [IoSliceMut<'_>],
        got: usize,
        flags: RecvFlags,
    ) -> usize {
        let is_last = |path: &Path| {
            let left = if flags.contains(RecvFlags::PEEK) { got } else { 0 };
            // In this order: with `Down` seen, all that came before it is counted.
            path.ext_arrived().contains(ExtSeen::DOWN) && path.bytes_readable() == left
        };
        if got == bufs.iter().map(|b| b.len()).sum() || !is_last(path) {
            return 0;
        }
        with_tail(bufs, got, usize::MAX, |tail| self.tcp_recv(fd, rx, tail, usize::MAX, flags))
            .unwrap_or(0)
    }

    fn took_from_ring(&self, rx: &mut Rx, path: &Path, n: usize, flags: RecvFlags) {
        if !flags.contains(RecvFlags::PEEK) {
            rx.ring_bytes += n as u64;
            self.count_bytes(Direction::Recv, path.kind(), n);
        }
    }

    /// Moves this direction as far as it can go now. The caller holds the lock.
    pub(super) fn steer_rx(
        &self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        path: &Path,
    ) -> Result<(), io::Error> {
        if self.is_sole() {
            return Ok(());
        }
        loop {
            match rx.mode {
                RxMode::Tcp => {
                    if !self.invite(fd, rx, path) {
                        return Ok(());
                    }
                }
                RxMode::Invited => {
                    let seen = path.ext_seen();
                    if seen.contains(ExtSeen::UP) {
                        path.take_ext(ExtSeen::UP);
                        rx.limit = resolve(path.ext_up_offset(), rx.tcp_bytes)
                            .ok_or_else(|| io::Error::from(Errno::PROTO))?;
                        rx.mode = RxMode::Clamped;
                    } else if seen.contains(ExtSeen::DOWN) {
                        // The peer will not come: it is pinned.
                        path.take_ext(ExtSeen::DOWN);
                        rx.is_declined = true;
                        rx.mode = RxMode::Tcp;
                    } else {
                        self.settle_rx(rx);
                        return Ok(());
                    }
                }
                RxMode::Clamped => {
                    if rx.tcp_bytes != rx.limit {
                        // What has come on the ring is taken note of, or a wait that watches the
                        // ring as well would find it changed for ever.
                        path.progress();
                        return Ok(());
                    }
                    rx.mode = RxMode::Ring;
                    self.note_path(Direction::Recv, path.kind());
                }
                RxMode::Ring => {
                    self.settle_rx(rx);
                    // In this order: with `Down` seen, all that came before it is counted.
                    let down = path.ext_seen().contains(ExtSeen::DOWN);
                    if !down || path.bytes_readable() != 0 {
                        return Ok(());
                    }
                    path.take_ext(ExtSeen::DOWN);
                    rx.mode = RxMode::Tcp;
                    self.note_path(Direction::Recv, stat::Path::Tcp);
                    self.settle_rx(rx);
                }
            }
        }
    }

    /// Invites the peer to write to the ring, if nothing forbids it.
    fn invite(&self, fd: BorrowedFd<'_>, rx: &mut Rx, path: &Path) -> bool {
        if self.has(FLAG_PINNED) {
            self.settle_rx(rx);
            return false;
        }
        let deaf = self.dirs.shared.0.deaf_waiters.load(Ordering::Acquire) != 0;
        let forbidden = deaf || rx.is_declined || path.is_cut();
        if !self.has(FLAG_PAIRED) || forbidden || has_ended(fd) {
            return false;
        }
        match offset::read(fd) {
            Ok(Some(n)) if n == rx.tcp_bytes => {}
            Ok(Some(n)) if n < rx.tcp_bytes => return false,
            Ok(None) => return false,
            // Somebody else reads from the descriptor, past us.
            _ => {
                self.pin_for(PinReason::ForeignWriter);
                self.settle_rx(rx);
                return false;
            }
        }
        let sent = path.try_send_ext(Ext::Ready);
        if sent {
            rx.mode = RxMode::Invited;
        }
        sent
    }

    /// Does what a pinned direction has to do: ask the peer to leave the ring, or be plain.
    pub(super) fn settle_rx(&self, rx: &mut Rx) {
        if !self.has(FLAG_PINNED) || self.has(FLAG_BROKEN) {
            return;
        }
        if rx.mode == RxMode::Tcp {
            self.dirs.raise(FLAG_RX_PLAIN);
            if let Some(path) = self.path() {
                // No read comes by here any more that could.
                self.quiet_stand_in(rx, path);
            }
        } else if !rx.has_asked
            && let Some(path) = self.path()
        {
            rx.has_asked = path.try_send_ext(Ext::Leave);
        }
    }

    fn tcp_recv(
        &self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        bufs: &mut [IoSliceMut<'_>],
        limit: usize,
        flags: RecvFlags,
    ) -> Result<usize, Blocked<'_>> {
        let flags = flags.difference(RecvFlags::WAITALL) | RecvFlags::DONTWAIT;
        match with_tail(bufs, 0, limit, |bufs| kernel_recv(fd, bufs, flags)) {
            // We ended it, not the peer.
            Ok(0) if self.has(FLAG_BROKEN) => Err(Blocked::Error(Errno::CONNRESET.into())),
            Ok(n) => {
                if !flags.contains(RecvFlags::PEEK) {
                    rx.tcp_bytes += n as u64;
                    self.count_bytes(Direction::Recv, stat::Path::Tcp, n);
                }
                Ok(n)
            }
            Err(Errno::AGAIN) => Err(Blocked::Tcp(Deaf::new(&self.dirs.shared.0))),
            Err(e) => Err(Blocked::Error(e.into())),
        }
    }

    /// The socket has ended, and the ring was empty: what a read answers, or `None` if the ring has
    /// something after all.
    fn at_end<'a>(&'a self, fd: BorrowedFd<'_>, path: &Path) -> Option<Result<usize, Blocked<'a>>> {
        let socket = peek_one(fd);
        // Whatever the peer did before it ended the socket is visible in the ring by now.
        if path.ext_seen().contains(ExtSeen::DOWN) || path.bytes_readable() != 0 {
            return None;
        }
        Some(match socket {
            // The end of the stream stands in the ring; the FIN is on its way.
            Ok(0) | Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(Blocked::Error(e.into())),
            Ok(_) => {
                // Bytes on TCP that no `Down` announced: somebody else wrote them, at a place in
                // the stream that nobody knows.
                self.pin_for(PinReason::ForeignWriter);
                Err(Blocked::Error(Errno::PROTO.into()))
            }
        })
    }

    /// The socket of a connection between hosts has ended, and nothing is on the ring: what a read
    /// answers. Without an end on the ring too something may be lost, or on its way still.
    fn far_end<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        path: &Path,
    ) -> Result<usize, Blocked<'a>> {
        match peek_one(fd) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(e) => return Err(Blocked::Error(e.into())),
        }
        if self.has(FLAG_RX_SHUT) {
            return Ok(0);
        }
        // In this order: what came before the cut is seen after it.
        let fate = path.fate();
        let has_end = path.has_eof();
        let news = ExtSeen::UP | ExtSeen::DOWN;
        if path.bytes_readable() != 0 || path.ext_seen().intersects(news) {
            return Err(Blocked::Short);
        }
        if path.has_failed() {
            return Err(Blocked::Error(self.break_off_rx(fd, rx)));
        }
        if has_end {
            return Ok(0);
        }
        if fate == Fate::Removed && !has_ended(fd) {
            return Err(Blocked::Both(path.mark()));
        }
        let since = *rx.ended_since.get_or_insert_with(sys::now);
        // Even of a cut connection: a device that is being taken away is cut off first, and still carries
        // what its process gives it.
        if since.elapsed() >= GRACE {
            return Err(Blocked::Error(self.break_off_rx(fd, rx)));
        }
        Err(Blocked::Short)
    }

    /// As `break_off`, met while receiving.
    pub(super) fn break_off_rx(&self, fd: BorrowedFd<'_>, rx: &mut Rx) -> io::Error {
        rx.mode = RxMode::Tcp;
        self.note_path(Direction::Recv, stat::Path::Tcp);
        self.break_connection(fd)
    }

    fn wait_for_data(
        &self,
        fd: BorrowedFd<'_>,
        blocked: Blocked<'_>,
        deadline: Option<Instant>,
        watch: &mut Watch,
        partial: bool,
    ) -> io::Result<()> {
        let left = sys::time_left(deadline);
        if left == Some(Duration::ZERO) {
            return Err(Errno::AGAIN.into());
        }
        let result = match (&blocked, self.path()) {
            (Blocked::Ring(mark), Some(path)) => self.wait_for_ring(fd, path, *mark, left, *watch),
            (Blocked::Both(mark), Some(path)) => {
                let slept = sleep_with_bell(fd, libc::POLLIN, path, *mark, left, *watch);
                if matches!(slept, Ok(true)) {
                    self.mind_fate(path);
                }
                slept.map(drop)
            }
            (Blocked::Short, _) => {
                let moment = left.map_or(AGAIN, |left| left.min(AGAIN));
                sys::sleep(&mut [], Some(moment), None, *watch).map(drop)
            }
            _ => match self.asking_path() {
                Some(path) => self.sleep_on_socket(fd, path, libc::POLLIN, left, *watch),
                None => self.wait_for_tcp(fd, left, *watch),
            },
        };
        match result {
            // A time-out, or bytes in hand, make the call end whatever the handler asked for
            // (signal(7)).
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

    fn wait_for_tcp(
        &self,
        fd: BorrowedFd<'_>,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let search = self.search_fd().unwrap_or(-1);
        let mut fds = [
            libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            libc::pollfd { fd: search, events: libc::POLLIN, revents: 0 },
        ];
        sys::sleep(&mut fds, left, None, watch)?;
        if fds[1].revents != 0 {
            self.on_search_ready(fd);
        }
        Ok(())
    }

    /// Spins, parks, then sleeps on descriptors. Parking is cheap but does not see the peer die, so
    /// it is bounded, and skipped where the last wait was long.
    fn wait_for_ring(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        mark: u32,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        if path.spin(Interest::Read, mark) {
            self.count_wait(Direction::Recv, Waited::Spinning);
            return Ok(());
        }
        self.count_wait(Direction::Recv, Waited::Sleeping);
        if !self.has(FLAG_RX_SLEEPY) {
            match path.park(mark, left.map_or(PARK, |l| l.min(PARK))) {
                Wake::Changed => return Ok(()),
                Wake::Interrupted => return Err(Errno::INTR.into()),
                Wake::TimedOut => self.dirs.raise(FLAG_RX_SLEEPY),
            }
            if left.is_some_and(|l| l <= PARK) {
                return Ok(());
            }
        }
        let began = sys::now();
        let socket = sleep_with_bell(fd, libc::POLLRDHUP, path, mark, left, watch)?;
        if socket {
            self.mind_fate(path);
            self.dirs.rx.0.lock().idle_reads = LOOK_EVERY - 1;
        } else if began.elapsed() < PARK {
            self.dirs.lower(FLAG_RX_SLEEPY);
        }
        Ok(())
    }
}

/// Sleeps on the socket and the thread's doorbell. Returns whether the socket has something. Without
/// a descriptor for a doorbell it sleeps for moments.
pub(super) fn sleep_with_bell(
    fd: BorrowedFd<'_>,
    events: i16,
    path: &Path,
    mark: u32,
    left: Option<Duration>,
    watch: Watch,
) -> io::Result<bool> {
    Bells::with(std::iter::once(path), false, |bells| {
        let armed = bells.arm(path, mark);
        if matches!(armed, Arming::Changed) {
            return Ok(false);
        }
        let left = [left, armed.bound()].into_iter().flatten().min();
        let socket = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let [first, second] = bells.entries();
        let fate = path.fate_fd().unwrap_or(-1);
        let fate = libc::pollfd { fd: fate, events: libc::POLLIN, revents: 0 };
        let mut fds = [socket, first, second, fate];
        let slept = sys::sleep(&mut fds, left, None, watch);
        drop(armed);
        bells.drain(&fds[1..]);
        let has_news = fds[3].revents != 0 && path.fate() != Fate::Goes;
        slept.map(|_| fds[0].revents != 0 || has_news)
    })
}

/// The absolute offset that `low` names, if it lies a plausible way ahead of `at`.
fn resolve(low: u32, at: u64) -> Option<u64> {
    let mask = u64::from(UP_MASK);
    let ahead = u64::from(low).wrapping_sub(at) & mask;
    // Never behind us; more ahead than the kernels' buffers hold is nonsense.
    (ahead <= mask / 4 * 3).then(|| at.wrapping_add(ahead))
}

/// Whether the peer has ended its direction, or the connection is broken.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|n| n != 0)
}

/// Bytes in the kernel's receive queue, up to an urgent byte.
pub(super) fn queued(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(usize::MAX))
}

fn peek_one(fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut byte = [0u8; 1];
    kernel_recv(fd, &mut [IoSliceMut::new(&mut byte)], RecvFlags::PEEK | RecvFlags::DONTWAIT)
}

fn kernel_recv(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    flags: RecvFlags,
) -> Result<usize, Errno> {
    // The kernel has less to do for one buffer than for a list.
    if let [one] = bufs {
        return recv(fd, &mut **one, flags).map(|(n, _)| n);
    }
    recvmsg(fd, bufs, &mut RecvAncillaryBuffer::default(), flags).map(|m| m.bytes)
}

impl From<io::Error> for Blocked<'_> {
    fn from(e: io::Error) -> Self {
        Self::Error(e)
    }
}

fn recv_deadline(fd: BorrowedFd<'_>) -> Option<Instant> {
    let timeout = sockopt::socket_timeout(fd, sockopt::Timeout::Recv).ok().flatten()?;
    sys::now().checked_add(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_resolve_ahead_and_never_behind() {
        assert_eq!(resolve(5, 5), Some(5));
        assert_eq!(resolve(0, u64::from(UP_MASK)), Some(u64::from(UP_MASK) + 1));
        assert_eq!(resolve(4, 5), None);
    }
}
