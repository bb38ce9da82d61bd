//! Waiting for an accelerated stream in an event loop of the program: tasks wait, not threads.
//!
//! The loop watches two descriptors: the stream's socket, edge-triggered, for what comes on TCP and
//! for the end of the connection, and a [`Doorbell`], for what comes on the ring. The order is:
//! take a [`Mark`], try, and if that would block, [`AcceleratedStream::arm`] with the mark, then
//! wait. If `arm` returns `false`, something came meanwhile: try again. Disarm before trying again,
//! or the progress of the try itself rings the doorbell.
//!
//! An event loop with many streams has one ready set for all that are in shared memory, in place of
//! a doorbell for each ([`AcceleratedStream::join_set`]). The order is the same.
//!
//! Every waiter must have the doorbell, or a place in such a set, once
//! [`AcceleratedStream::has_path`]: a receive invites the peer to the ring from then on, and the
//! socket does not show what comes there.

use crate::Doorbell;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::SOCKET_CHECK_INTERVAL;
use crate::accelerate::state::FLAG_BROKEN;
use crate::accelerate::{AcceleratedStream, PATIENCE};
use crate::interrupt::Section;
use rsock_proto::switch::DirectionSwitch;
use rsock_verbs::soft::{ReadyNumber, SoftReadySet};
use std::io;
use std::time::Duration;

/// What had happened on a ring when the mark was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(Option<u32>);

impl Mark {
    const KNOWN: u64 = 1 << 32;

    /// As a number, to be kept in an atomic.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.map_or(0, |mark| Self::KNOWN | u64::from(mark))
    }

    /// The mark of a stream that has a path.
    pub(super) fn of(mark: u32) -> Self {
        Self(Some(mark))
    }

    /// Back from [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let low = u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        Self((bits & Self::KNOWN != 0).then_some(low))
    }
}

/// The shortest wait that [`AcceleratedStream::room_retry_after`] asks for.
const SHORTEST: Duration = Duration::from_micros(100);

impl AcceleratedStream {
    /// Whether the peer has been found, so that input may come on the ring.
    #[must_use]
    pub fn has_path(&self) -> bool {
        self.path().is_some()
    }

    /// A doorbell for this stream, once it [has a path](Self::has_path).
    ///
    /// # Errors
    /// When descriptors or memory run out (`EMFILE`, `ENFILE`, `ENOMEM`); `ENOTCONN` before it has
    /// a path.
    pub fn create_doorbell(&self) -> io::Result<Doorbell> {
        let path = self.path().ok_or(rustix::io::Errno::NOTCONN)?;
        path.create_doorbell()
    }

    /// A mark to take before trying.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.path().map(Path::mark))
    }

    /// Whether anything has come on the ring since `mark`. A few loads, for spinning.
    #[must_use]
    pub fn has_changed(&self, mark: Mark) -> bool {
        match (self.path(), mark.0) {
            (Some(path), Some(mark)) => path.has_changed(mark),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Arms `bell` for what comes on the ring, until [`Self::disarm`]. Returns `false` with nothing
    /// armed if something has come since `mark`, or if too many doorbells are armed already: then
    /// try again.
    #[must_use]
    pub fn arm(&self, bell: &Doorbell, mark: Mark) -> bool {
        let Some(path) = self.path() else { return false };
        let _section = Section::enter();
        if path.arm_persistent(bell) && !self.has_changed(mark) {
            return true;
        }
        path.disarm(bell);
        false
    }

    /// Undoes an [`Self::arm`] that returned `true`.
    pub fn disarm(&self, bell: &Doorbell) {
        if let Some(path) = self.path() {
            let _section = Section::enter();
            path.disarm(bell);
        }
    }

    /// Gives the stream a place in `set`, once it [has a path](Self::has_path). `None` if it cannot
    /// be announced, or to another set: then it needs a doorbell.
    #[must_use]
    pub fn join_set(&self, set: &SoftReadySet) -> Option<ReadyNumber> {
        let stream = self.path()?.soft()?;
        let _section = Section::enter();
        stream.join_set(set)
    }

    /// Gives up the place that [`Self::join_set`] returned.
    pub fn leave_set(&self, set: &SoftReadySet, number: ReadyNumber) {
        if let Some(stream) = self.path().and_then(Path::soft) {
            let _section = Section::enter();
            stream.leave_set(set, number);
        }
    }

    /// Has the set that the stream has joined told of the next thing that comes on the ring after
    /// `mark`, until [`Self::stop_announcing`]. Returns `false` with nothing armed if something has
    /// come already.
    #[must_use]
    pub fn announce(&self, mark: Mark) -> bool {
        let (Some(stream), Some(mark)) = (self.path().and_then(Path::soft), mark.0) else {
            return false;
        };
        let _section = Section::enter();
        stream.announce_to_waiter(mark)
    }

    /// Undoes an [`Self::announce`] that returned `true`. One announcement may still come.
    pub fn stop_announcing(&self) {
        if let Some(stream) = self.path().and_then(Path::soft) {
            let _section = Section::enter();
            stream.stop_announcing();
        }
    }

    /// To be called when the loop saw the socket become readable or end: the next receive that
    /// finds the ring empty checks the socket.
    pub fn note_socket(&self) {
        let _section = Section::enter();
        self.dirs.rx.0.lock().idle_reads = SOCKET_CHECK_INTERVAL - 1;
    }

    /// After a receive that would have blocked: when to try again without an event, or `None` if an
    /// event will come. The socket has ended, and the end of the stream may still be on its way.
    #[must_use]
    pub fn end_retry_after(&self) -> Option<Duration> {
        if !self.path().is_some_and(Path::is_remote) || self.has(FLAG_BROKEN) {
            return None;
        }
        let _section = Section::enter();
        self.dirs.rx.0.lock().ended_since.map(|_| PATIENCE)
    }

    /// After a send that would have blocked: how long to wait for the ring at most before trying
    /// again, or `None` if it is the socket's buffer that is full.
    #[must_use]
    pub fn room_retry_after(&self) -> Option<Duration> {
        let _section = Section::enter();
        let tx = self.dirs.tx.0.lock();
        if tx.switch.is_on_ring() {
            let limit = self.path().map_or(PATIENCE, Path::patience);
            let since = tx.full_since.map_or(Duration::ZERO, |since| since.elapsed());
            // Never zero: the message by which the writer leaves may have to wait too.
            return Some(limit.saturating_sub(since).max(SHORTEST));
        }
        // Between hosts TCP is not used before the device has delivered what was sent.
        (!tx.switch.is_on_tcp()).then_some(PATIENCE)
    }
}
