//! How a connection ends: by a half-close, by a close, or because it broke.

use crate::accelerate::ask::Subject;
use crate::accelerate::call_stops::{CallStops, EndsCalls};
use crate::accelerate::path::Path;
use crate::accelerate::state::{
    FLAG_BROKEN, FLAG_ENDED, FLAG_PINNED, FLAG_RESET, FLAG_RX_PLAIN, FLAG_RX_SHUT, FLAG_TX_SHUT,
    Sending,
};
use crate::accelerate::{AcceleratedStream, FallbackReason, PARK, offsets, verify};
use crate::interrupt::Section;
use crate::metrics::{self, Direction};
use crate::sys;
use rsock_proto::switch::{Conditions, DirectionSwitch, End, Receiver, Seen};
use rustix::fd::BorrowedFd;
use rustix::net::Shutdown;
use std::io;
use std::time::Duration;

/// How long the end of a stream between hosts may take to arrive. A peer that is there answers
/// within the network's round trip.
const LINGER: Duration = Duration::from_secs(5);

/// Two events at least this far apart by the kernel's clock (ticks of 4 ms, as a rule) came in the
/// order of their times.
const MOMENT: Duration = Duration::from_millis(20);

/// How the kernel's connection ends when the ring between hosts has lost bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// By FIN, which TCP retransmits. Without an end on the ring a reader that waits for the ring
    /// reports an error, not an end.
    End,
    /// By a reset: the peer's reader may be on TCP, and would take FIN for the end of the stream.
    Reset,
}

impl AcceleratedStream {
    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.dirs.raise(FLAG_RX_SHUT);
        }
        match how {
            Shutdown::Read => rustix::net::shutdown(fd, how)?,
            Shutdown::Write | Shutdown::Both => self.shutdown_sending(fd, how)?,
        }
        if self.has(FLAG_TX_SHUT) && self.has(FLAG_RX_SHUT) {
            self.decline_more(fd);
        }
        Ok(())
    }

    /// Ends the sending direction on the ring and on TCP, and with [`Shutdown::Both`] the other
    /// direction of TCP as well. Under one lock: a writer that finds the ring closed goes on to the
    /// socket, and would send bytes there that the peer does not expect.
    fn shutdown_sending(&self, fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
        let _section = Section::enter();
        let tx = self.dirs.tx.0.lock();
        self.dirs.raise(FLAG_TX_SHUT);
        let path = self.path();
        let now = Conditions::NONE.with_if(Conditions::PAIRED, path.is_some());
        if let (End::RingThenTcp, Some(path)) = (tx.switch.end(now), path) {
            path.shutdown(std::net::Shutdown::Write);
        }
        Ok(rustix::net::shutdown(fd, how)?)
    }

    /// Asks the peer to leave the ring: what it sends from now on is not read, and on TCP the
    /// kernel tells it so with a reset.
    fn decline_more(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path().filter(|path| !path.is_remote()) else { return };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        let decline = |switch: &mut Receiver, seen: &mut Seen| switch.request_leave(seen);
        let _ = self.ask(&mut *rx, &mut seen, &mut subject, decline);
    }

    /// Repeats on a path that has just been found the end that [`Self::shutdown`] gave the kernel
    /// before.
    pub(super) fn repeat_shutdown(&self) {
        if let Some(path) = self.path().filter(|path| !path.is_remote())
            && self.has(FLAG_TX_SHUT)
        {
            path.shutdown(std::net::Shutdown::Write);
        }
    }

    /// To be called when the program is about to close its last descriptor of this stream (the
    /// kernel decides whether it really is the last of all). Unread bytes make the close a reset,
    /// as on TCP.
    pub fn close(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path() else { return };
        let shared = self.pin_reason() == FallbackReason::Passed || self.is_shared();
        if !shared && path.bytes_readable() != 0 || !self.end_between_hosts(path) {
            let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        } else if !shared {
            // Marks as unneeded what the peer sends before it learns of this close, so that it does
            // not become a reset: TCP would report an end as well.
            path.ignore_unread();
        }
        if !shared && !self.has(FLAG_PINNED) && is_reset_by_close(fd) {
            // At once, so that the peer's reader does not find the end of the ring before the
            // reset, and take it for the end of the stream. If the kernel refuses, its `close`
            // resets the connection a moment later. A pinned stream may have other holders.
            sys::disconnect(fd);
        }
    }

    /// Whether a reader is to report a reset: see [`Self::is_reset`]. `tcp_bytes` have been read
    /// from the socket, all that it had. What was sent at the time of the peer's end counts: it may
    /// have come before the end.
    pub(super) fn is_reset_for_reader(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        tcp_bytes: u64,
    ) -> bool {
        // Otherwise the socket's state tells an end from a reset. The count cannot do so if an
        // urgent byte was skipped.
        let tcp_bytes = self.has(FLAG_TX_SHUT).then_some(tcp_bytes);
        path.is_unread(None)
            && offsets::fin(fd, tcp_bytes).is_ok_and(|fin| fin.is_some())
            && self.is_reset(path)
    }

    /// Whether a writer is to report a reset: see [`Self::is_reset`]. What was sent at the time of
    /// the peer's end does not count: a writer may send for a moment after the end, and TCP answers
    /// that with `EPIPE`.
    pub(super) fn is_reset_for_writer(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        tx: &Sending,
    ) -> bool {
        if !path.is_unread(Some(tx.switch.ring_bytes())) {
            return false;
        }
        // In this order: time that passes between the two does not make the last send older.
        let now = sys::tick();
        let Ok(Some(since)) = offsets::fin(fd, None) else { return false };
        let silence = Duration::from_millis(now.wrapping_sub(tx.sent_at).into());
        let sent =
            if silence >= since + MOMENT { tx.switch.ring_bytes() } else { tx.ring_bytes_checked };
        path.is_unread(Some(sent)) && self.is_reset(path)
    }

    /// Whether a peer that has ended its socket in good order, and has left bytes unread on the
    /// ring, has closed. TCP would have sent a reset for such bytes, but the kernel does not know
    /// the ring. Stays true until the reset has been reported.
    fn is_reset(&self, path: &Path) -> bool {
        // The end on the ring came before the socket's end: in that order TCP would not have
        // reported a reset either.
        if self.has(FLAG_ENDED) || path.peer_has_ended() {
            return false;
        }
        // After the ends of both directions the kernel forgets a socket whether or not it is open.
        // If the peer closes it then with bytes unread, TCP does not reset the connection either;
        // if the peer's process died, it may have died before.
        if self.has(FLAG_TX_SHUT) && !path.is_peer_dead() {
            self.dirs.raise(FLAG_ENDED);
            return false;
        }
        // Taken from the cache: by now the kernel may have forgotten the addresses of the
        // connection.
        let tuple = self.tuple.get().copied().flatten();
        let is_closed = tuple
            .zip(path.peer())
            .and_then(|(tuple, peer)| verify::is_closed(&tuple, peer.cookie).ok());
        if is_closed != Some(true) {
            self.dirs.raise(FLAG_ENDED);
        }
        is_closed == Some(true)
    }

    /// To be called when the process is about to end: delivers what has not reached the peer's host
    /// yet.
    pub fn finish(&self) {
        if let Some(path) = self.path() {
            self.end_between_hosts(path);
        }
    }

    /// Ends a stream between hosts and waits until the peer's device has everything, for which the
    /// peer need not make a call. Returns `false` if something may be missing there.
    pub(super) fn end_between_hosts(&self, path: &Path) -> bool {
        if !path.is_remote() || self.has(FLAG_BROKEN) {
            return true;
        }
        let _section = Section::enter();
        match end_and_drain(path) {
            Drained::Yes => true,
            Drained::TimedOut => false,
            // Nothing was under way on the ring if it was not in use.
            Drained::Failed => self.dirs.tx.0.lock().switch.is_on_tcp(),
        }
    }

    /// How to end a broken connection between hosts, as far as the sending direction matters.
    pub(super) fn how_to_break(&self, tx: &Sending) -> Break {
        let must_reset = tx.switch.breaks_by_reset(self.dirs.conditions().into());
        if must_reset { Break::Reset } else { Break::End }
    }

    /// Ends a connection between hosts that is broken.
    pub(super) fn break_connection(&self, fd: BorrowedFd<'_>, how: Break) -> io::Error {
        self.pin_for(FallbackReason::PathFailed);
        if !self.has(FLAG_BROKEN) {
            self.dirs.raise(FLAG_BROKEN);
            // The kernel's answer does not count any more.
            self.dirs.lower(FLAG_RX_PLAIN);
            if how == Break::Reset {
                sys::disconnect(fd);
            }
            // Some kernels refuse a reset while a thread sleeps in a call on the socket.
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
            if let Some(path) = self.path() {
                path.disconnect();
            }
        }
        error_of_broken(self.path())
    }
}

impl EndsCalls for AcceleratedStream {
    fn call_stops(&self) -> Option<&CallStops> {
        Some(&self.call_stops)
    }

    /// The first call that asks reports it; a send that has found it at the same time fails as
    /// those after it do.
    fn report_reset(&self, fd: BorrowedFd<'_>, by: Direction) -> io::Error {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        let is_reported = by == Direction::Send && self.has(FLAG_RESET);
        self.dirs.raise(FLAG_ENDED | FLAG_RESET);
        tx.switch.break_off();
        self.note_transport(Direction::Send, metrics::Transport::Tcp);
        let _ = rustix::net::shutdown(fd, Shutdown::Both);
        if is_reported {
            rustix::io::Errno::PIPE.into()
        } else {
            rustix::io::Errno::CONNRESET.into()
        }
    }
}

/// Whether the kernel's `close` resets the connection (`SO_LINGER` with no time).
fn is_reset_by_close(fd: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_linger(fd) == Ok(Some(Duration::ZERO))
}

/// Whether the peer's device has everything that was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    Yes,
    /// The stream has failed.
    Failed,
    /// The device takes too long.
    TimedOut,
}

/// Ends both directions of a stream between hosts, and waits until the peer's device has all bytes.
pub(super) fn end_and_drain(path: &Path) -> Drained {
    path.shutdown(std::net::Shutdown::Both);
    let deadline = sys::now().checked_add(LINGER);
    loop {
        let mark = path.mark();
        if path.has_failed() {
            return Drained::Failed;
        }
        if path.is_drained() {
            return Drained::Yes;
        }
        let left = sys::time_left(deadline).unwrap_or_default();
        if left.is_zero() {
            return Drained::TimedOut;
        }
        let _ = path.park(mark, left.min(PARK));
    }
}

/// What a call reports that has found the device's stream broken.
pub(super) fn error_of_broken(path: Option<&Path>) -> io::Error {
    match path.is_some_and(Path::is_unanswered) {
        true => rustix::io::Errno::TIMEDOUT.into(),
        false => rustix::io::Errno::CONNRESET.into(),
    }
}
