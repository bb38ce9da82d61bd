//! How a connection ends: by half, in order, or broken.

use crate::accelerate::ask::Subject;
use crate::accelerate::path::Path;
use crate::accelerate::state::{
    FLAG_BROKEN, FLAG_ENDED, FLAG_RX_PLAIN, FLAG_RX_SHUT, FLAG_TX_SHUT, Sending,
};
use crate::accelerate::{AcceleratedStream, FallbackReason, PARK, offsets, verify};
use crate::interrupt::Section;
use crate::metrics::{self, Direction};
use crate::sys;
use rsock_proto::switch::{Conditions, End, Receiver, Seen};
use rustix::fd::BorrowedFd;
use rustix::net::Shutdown;
use std::io;
use std::time::Duration;

/// How long the end of a stream between hosts may take to arrive. A peer that is there answers within the
/// network's round trip.
const LINGER: Duration = Duration::from_secs(5);

/// Events that lie so far apart by the kernel's ticks (4 ms, as a rule) came in this order.
const MOMENT: Duration = Duration::from_millis(20);

/// How the kernel's connection ends when the ring between hosts has lost bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// By its end, which TCP repeats until it has arrived. Without an end on the ring it is no end to a
    /// reader that waits for the ring.
    End,
    /// By a reset: the peer's reader may be on TCP, and would take an end for the end of the stream.
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

    /// Ends the sending direction on the ring and on TCP, and there perhaps the other as well. Under one lock:
    /// a writer that finds the ring closed goes on to the socket, and would send bytes there that
    /// the peer does not expect.
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

    /// Has the peer leave the ring: what it sends from now on is not wanted, which the kernel says with a reset.
    fn decline_more(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path().filter(|path| !path.is_far()) else { return };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        let decline = |switch: &mut Receiver, seen: &mut Seen| switch.decline_more(seen);
        let _ = self.ask(&mut *rx, &mut seen, &mut subject, decline);
    }

    /// Says on a path that has just been found what [`Self::shutdown`] has told the kernel before.
    pub(super) fn repeat_end(&self) {
        if let Some(path) = self.path().filter(|path| !path.is_far())
            && self.has(FLAG_TX_SHUT)
        {
            path.shutdown(std::net::Shutdown::Write);
        }
    }

    /// The program is about to close its last descriptor of this twin (the kernel decides whether
    /// it really is the last of all). Bytes that nobody read make the close a reset, as on TCP.
    pub fn close(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path() else { return };
        if self.is_sole() {
            return self.close_sole(fd, path);
        }
        let shared = self.pin_reason() == FallbackReason::Passed || self.is_shared();
        if !shared && path.bytes_readable() != 0 || !self.end(path) {
            let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
        } else if !shared {
            // What the peer sends before it hears of this is not missed: TCP would say so as well.
            path.renounce();
        }
    }

    /// Whether a reader meets a reset: see [`Self::is_reset`]. `tcp_bytes` have been read from the socket, all that
    /// it had. What was sent in the moment of the peer's end counts: it may have come before.
    pub(super) fn is_reset_for_reader(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        tcp_bytes: u64,
    ) -> bool {
        // Otherwise the state tells an end from a reset. The count cannot if an urgent byte was skipped.
        let tcp_bytes = self.has(FLAG_TX_SHUT).then_some(tcp_bytes);
        path.is_unread(None)
            && offsets::fin(fd, tcp_bytes).is_ok_and(|fin| fin.is_some())
            && self.is_reset(path)
    }

    /// Whether a writer meets a reset: see [`Self::is_reset`]. What was sent in the moment of the peer's end does not
    /// count: a writer may send for a moment after it, and TCP answers that with `EPIPE`.
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
        let sent = if silence >= since + MOMENT { tx.switch.ring_bytes() } else { tx.met_bytes };
        path.is_unread(Some(sent)) && self.is_reset(path)
    }

    /// Whether a peer that has ended its socket in good order, and has left bytes unread on the ring, is gone. TCP
    /// would have sent a reset for them, but the kernel knows nothing of the ring. True until it is told.
    fn is_reset(&self, path: &Path) -> bool {
        // An end on the ring came before the socket's: then TCP would not have told of a reset either.
        if self.has(FLAG_ENDED) || path.was_ended() {
            return false;
        }
        // After the ends of both directions the kernel forgets a socket whether or not it is open. A peer that closes it
        // then with bytes unread resets nothing on TCP either; one that died may have died before.
        if self.has(FLAG_TX_SHUT) && !path.is_peer_dead() {
            self.dirs.raise(FLAG_ENDED);
            return false;
        }
        // By now the kernel may have forgotten whom it was connected to.
        let tuple = self.tuple.get().copied().flatten();
        let is_closed = tuple
            .zip(path.peer())
            .and_then(|(tuple, peer)| verify::is_closed(&tuple, peer.cookie).ok());
        if is_closed != Some(true) {
            self.dirs.raise(FLAG_ENDED);
        }
        is_closed == Some(true)
    }

    /// Ends the connection as the reset does that was found: whoever asks first is told.
    pub(super) fn tell_reset(&self, fd: BorrowedFd<'_>) -> io::Error {
        let _section = Section::enter();
        self.dirs.raise(FLAG_ENDED);
        let mut tx = self.dirs.tx.0.lock();
        tx.switch.break_off();
        self.note_path(Direction::Send, metrics::Transport::Tcp);
        let _ = rustix::net::shutdown(fd, Shutdown::Both);
        rustix::io::Errno::CONNRESET.into()
    }

    /// The process is about to end, and with it what it has not brought to another host yet.
    pub fn finish(&self) {
        if let Some(path) = self.path() {
            self.end(path);
        }
    }

    /// Ends a stream between hosts and waits until the peer's device has everything, which takes no call of
    /// the peer's. False if it may not.
    pub(super) fn end(&self, path: &Path) -> bool {
        if !path.is_far() || self.has(FLAG_BROKEN) {
            return true;
        }
        let _section = Section::enter();
        path.shutdown(std::net::Shutdown::Both);
        let deadline = sys::now().checked_add(LINGER);
        loop {
            let mark = path.mark();
            if path.has_failed() {
                // Nothing was under way on the ring if it was not in use.
                return self.dirs.tx.0.lock().switch.is_on_tcp();
            }
            if path.is_drained() {
                return true;
            }
            let left = sys::time_left(deadline).unwrap_or_default();
            if left.is_zero() {
                return false;
            }
            let _ = path.park(mark, left.min(PARK));
        }
    }

    /// How a connection between hosts is ended that is broken, as far as the sending direction matters.
    pub(super) fn how_to_break(&self, tx: &Sending) -> Break {
        // The placeholder of a stream without TCP is connected to this process alone.
        let must_reset = !self.is_sole() && tx.switch.breaks_by_reset(self.dirs.conditions());
        if must_reset { Break::Reset } else { Break::End }
    }

    /// Ends the connection between hosts, which is broken.
    pub(super) fn break_connection(&self, fd: BorrowedFd<'_>, how: Break) -> io::Error {
        self.pin_for(FallbackReason::PathFailed);
        if !self.has(FLAG_BROKEN) {
            self.dirs.raise(FLAG_BROKEN);
            // Not the kernel's to answer for any more.
            self.dirs.lower(FLAG_RX_PLAIN);
            if how == Break::Reset {
                sys::disconnect(fd);
            }
            // Some kernels refuse a reset while a thread sleeps in a call on the socket.
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
            if let Some(path) = self.path() {
                path.cut();
            }
        }
        match self.path().is_some_and(Path::is_unanswered) {
            true => rustix::io::Errno::TIMEDOUT.into(),
            false => rustix::io::Errno::CONNRESET.into(),
        }
    }
}
