//! Waiting for an accelerated stream in an event loop of the program: tasks wait, not threads.
//!
//! The loop watches two descriptors: the stream's socket, edge-triggered, for what comes on TCP and
//! for the end of the connection, and a [`Doorbell`], for what comes on the ring. The order is:
//! take a [`Mark`], try, and if that would block, [`AcceleratedStream::arm`] with the mark, then
//! wait. If `arm` returns `false`, something came meanwhile: try again. Disarm before trying again,
//! or the progress of the try itself rings the doorbell.
//!
//! Every waiter must have the doorbell once [`AcceleratedStream::has_path`]: a receive invites the
//! peer to the ring from then on, and the socket does not show what comes there.

use crate::Doorbell;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::SOCKET_CHECK_INTERVAL;
use crate::accelerate::state::FLAG_BROKEN;
use crate::accelerate::{AcceleratedStream, PATIENCE};
use crate::interrupt::Section;
use rsock_proto::switch::DirectionSwitch;
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
