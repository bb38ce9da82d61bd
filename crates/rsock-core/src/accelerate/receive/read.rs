//! One try to receive, by where the next byte comes from. `None`: that has just changed, so look again.

use crate::accelerate::path::Path;
use crate::accelerate::receive::kernel::{has_ended, kernel_recv, peek_one, queued, tcp_goes_on};
use crate::accelerate::receive::{Blocked, KernelOnlyWaiter, LOOK_EVERY};
use crate::accelerate::state::{FLAG_BROKEN, FLAG_RX_SHUT, FLAG_STANDIN, Rx, RxMode};
use crate::accelerate::{AcceleratedStream, FallbackReason};
use crate::engine::{ExtSeen, RecvError};
use crate::iov::{MAX_KERNEL_PIECES, with_gap, with_tail};
use crate::metrics::{self, Direction};
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};

/// What every try to receive has to do with, beside the direction's state and the room for its bytes.
#[derive(Clone, Copy)]
pub(super) struct Try<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) path: &'a Path,
    /// Taken before the try: for the wait, if there is nothing.
    pub(super) mark: u32,
    pub(super) flags: RecvFlags,
}

impl AcceleratedStream {
    /// The peer may write to the ring, and has not said that it does.
    pub(super) fn take_invited(
        &self,
        call: Try<'_>,
        rx: &mut Rx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, Blocked<'_>> {
        let Try { fd, path, mark, flags } = call;
        // Bytes queued before we look for `Up` were written before it.
        let waiting = queued(fd)?;
        if waiting != 0 {
            // Another thread may be taking it from the device just now.
            path.bytes_readable();
        }
        if path.ext_seen().intersects(ExtSeen::UP | ExtSeen::DOWN) {
            return Ok(None);
        }
        if waiting != 0 {
            return self.tcp_recv(fd, rx, bufs, waiting, flags).map(Some);
        }
        match peek_one(fd) {
            Ok(0) if path.is_far() => self.far_end(fd, rx, path).map(Some),
            Ok(0) => self.end_of_tcp(fd, rx, path).map(Some),
            Ok(_) if queued(fd)? == 0 && !path.ext_seen().contains(ExtSeen::UP) => {
                // The kernel counts only up to an urgent byte. Who sends one stays on
                // TCP from before it, so there is no `Up` among what follows.
                self.pin_for(FallbackReason::Option);
                self.tcp_recv(fd, rx, bufs, usize::MAX, flags).map(Some)
            }
            Ok(_) => Ok(None),
            Err(Errno::AGAIN) if sys::is_at_mark(fd) => {
                // A read passes the urgent byte, looking ahead does not. The sender stays on TCP, as above.
                self.pin_for(FallbackReason::Option);
                self.tcp_recv(fd, rx, bufs, usize::MAX, flags).map(Some)
            }
            Err(Errno::AGAIN) => {
                self.quiet_stand_in(rx, path);
                Err(Blocked::Both(mark))
            }
            Err(e) => Err(Blocked::Error(e.into())),
        }
    }

    /// The peer writes to the ring; up to the agreed byte everything comes on TCP.
    pub(super) fn take_clamped(
        &self,
        call: Try<'_>,
        rx: &mut Rx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, Blocked<'_>> {
        let Try { fd, path, mark, flags } = call;
        let left = usize::try_from(rx.limit.wrapping_sub(rx.tcp_bytes)).unwrap_or(usize::MAX);
        match self.tcp_recv(fd, rx, bufs, left, flags) {
            Err(Blocked::Tcp(_)) => Err(Blocked::Both(mark)),
            // Our own shutdown ended it: what has not arrived yet can still be read once it has.
            Ok(0) if self.has(FLAG_RX_SHUT) => Ok(Some(0)),
            // The end of TCP before the agreed byte: what should follow is lost.
            Ok(0) => Err(Blocked::Error(Errno::CONNRESET.into())),
            Ok(n) if n == left && flags.contains(RecvFlags::PEEK) => {
                let more = with_tail(bufs, n, usize::MAX, |tail| path.try_recv(tail, true));
                Ok(Some(self.peek_on(fd, path, bufs, n, n + more.unwrap_or(0))))
            }
            other => other.map(Some),
        }
    }

    /// Everything comes on the ring.
    pub(super) fn take_from_ring(
        &self,
        call: Try<'_>,
        rx: &mut Rx,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, Blocked<'_>> {
        let Try { fd, path, mark, flags } = call;
        match path.try_recv(bufs, flags.contains(RecvFlags::PEEK)) {
            Ok(0) if self.is_sole() => Ok(Some(0)),
            Ok(0) => self.at_end(fd, rx, path).transpose(),
            Ok(n) => {
                rx.idle_reads = 0;
                if flags.contains(RecvFlags::PEEK) {
                    return Ok(Some(self.peek_on(fd, path, bufs, 0, n)));
                }
                rx.ring_bytes += n as u64;
                self.count_bytes(Direction::Recv, path.kind(), n);
                Ok(Some(n))
            }
            Err(RecvError::WouldBlock) => {
                rx.idle_reads = rx.idle_reads.wrapping_add(1);
                if path.ext_seen().contains(ExtSeen::DOWN) {
                    return Ok(None);
                }
                if let Some(end) = self.end_behind_ring(fd, rx, path) {
                    return end.map(Some);
                }
                self.quiet_stand_in(rx, path);
                Err(Blocked::Ring(mark))
            }
            Err(RecvError::Fault) => Err(Blocked::Error(Errno::FAULT.into())),
            // The peer had left before that: TCP goes on.
            Err(RecvError::Failed(_)) if path.ext_seen().contains(ExtSeen::DOWN) => Ok(None),
            Err(RecvError::Failed(_)) if path.is_far() => {
                Err(Blocked::Error(self.break_off_rx(fd, rx)))
            }
            Err(RecvError::Failed(errno)) => {
                // The device noticed the peer's death; TCP knows how it ended.
                if errno == libc::ECONNRESET
                    && let Some(end) = self.at_end(fd, rx, path)
                {
                    return end.map(Some);
                }
                Err(Blocked::Error(io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// What an empty ring does not tell, looked for now and then: whether the peer is still there.
    fn end_behind_ring<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        path: &Path,
    ) -> Option<Result<usize, Blocked<'a>>> {
        let mut look = rx.idle_reads.is_multiple_of(LOOK_EVERY) || self.has(FLAG_RX_SHUT);
        if self.is_sole() {
            look |= path.is_cut() || self.has(FLAG_STANDIN);
            return if look { self.sole_end(fd, rx, path) } else { None };
        }
        if !look || !has_ended(fd) {
            return None;
        }
        if path.is_far() { Some(self.far_end(fd, rx, path)) } else { self.at_end(fd, rx, path) }
    }

    /// Whether more is there behind what has just been taken, where the stream changes between TCP and the
    /// ring: one read on TCP would return both. Asks for bytes only, as an error would be lost.
    pub(super) fn goes_on(
        &self,
        fd: BorrowedFd<'_>,
        rx: &Rx,
        path: &Path,
        has_crossed: bool,
    ) -> bool {
        let has_tcp = || tcp_goes_on(fd);
        match rx.mode {
            RxMode::Clamped if rx.tcp_bytes == rx.limit => {
                path.bytes_readable() != 0
                    || path.ext_arrived().contains(ExtSeen::DOWN) && has_tcp()
            }
            // In this order: with `Down` seen, all that came before it is counted.
            RxMode::Ring if path.ext_arrived().contains(ExtSeen::DOWN) => {
                path.bytes_readable() != 0 || has_tcp()
            }
            // Past a change, more pieces than are handed on at once.
            RxMode::Ring => has_crossed && path.bytes_readable() != 0,
            RxMode::Tcp | RxMode::Invited => has_crossed && has_tcp(),
            RxMode::Clamped => false,
        }
    }

    /// After `got` bytes have been looked at, of which TCP had the first `head` and the ring the others: also
    /// looks at what TCP has after the ring.
    fn peek_on(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        bufs: &mut [IoSliceMut<'_>],
        head: usize,
        got: usize,
    ) -> usize {
        // In this order: with `Down` seen, all that came before it is counted.
        let is_last = path.ext_arrived().contains(ExtSeen::DOWN);
        if !is_last
            || got == bufs.iter().map(|b| b.len()).sum()
            || path.bytes_readable() != got - head
            || queued(fd).is_ok_and(|n| n <= head)
            || head == 0 && sys::is_at_mark(fd)
        {
            return got;
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // The kernel begins with what came before the ring, which is there already.
        let seen = with_gap(bufs, head, got, |bufs| kernel_recv(fd, bufs, flags)).unwrap_or(head);
        got + seen.saturating_sub(head)
    }

    pub(super) fn tcp_recv(
        &self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        bufs: &mut [IoSliceMut<'_>],
        limit: usize,
        flags: RecvFlags,
    ) -> Result<usize, Blocked<'_>> {
        let flags = flags.difference(RecvFlags::WAITALL) | RecvFlags::DONTWAIT;
        let room: usize = bufs.iter().map(|b| b.len()).sum();
        let received = if limit >= room && bufs.len() <= MAX_KERNEL_PIECES {
            kernel_recv(fd, bufs, flags)
        } else {
            recv_up_to(fd, bufs, limit.min(room), flags)
        };
        match received {
            // We ended it, not the peer.
            Ok(0) if self.has(FLAG_BROKEN) => Err(Blocked::Error(Errno::CONNRESET.into())),
            Ok(0) => match self.path() {
                Some(path) => self.end_of_tcp(fd, rx, path),
                None => Ok(0),
            },
            Ok(n) => {
                if !flags.contains(RecvFlags::PEEK) {
                    rx.tcp_bytes += n as u64;
                    self.count_bytes(Direction::Recv, metrics::Transport::Tcp, n);
                }
                Ok(n)
            }
            Err(Errno::AGAIN) => {
                Err(Blocked::Tcp(KernelOnlyWaiter::new(&self.dirs.shared.0.deaf_waiters, rx)))
            }
            Err(e) => Err(Blocked::Error(e.into())),
        }
    }
}

/// Receives at most `limit` bytes, which `bufs` have room for.
fn recv_up_to(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    limit: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    let mut got = 0;
    loop {
        let tried = with_tail(bufs, got, limit - got, |bufs| {
            let room: usize = bufs.iter().map(|b| b.len()).sum();
            kernel_recv(fd, bufs, flags).map(|n| (n, n == room))
        });
        let (n, is_full) = match tried {
            Err(e) if got == 0 => return Err(e),
            Err(_) => return Ok(got),
            Ok(tried) => tried,
        };
        got += n;
        // More pieces than are handed on at once. Asked first, as an error would be lost.
        let goes_on = is_full && n != 0 && got < limit && !flags.contains(RecvFlags::PEEK);
        if !goes_on || !tcp_goes_on(fd) {
            return Ok(got);
        }
    }
}
