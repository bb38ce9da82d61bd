//! When the peer is looked for, and until when.

use crate::accelerate::discovery::local::{Search, Step, Subject};
use crate::accelerate::four_tuple::Tuple;
use crate::accelerate::state::{FLAG_PAIRED, FLAG_PINNED, FLAG_RX_PLAIN, FLAG_TX_PLAIN};
use crate::accelerate::{AcceleratedStream, FallbackReason};
use crate::closing::notice;
use crate::engine::Config;
use crate::interrupt::{self, Section, Watch};
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::PoisonError;
use std::time::Duration;

/// Calls after which a connection begins to look for its peer: a short one never pays for it.
pub(in crate::accelerate) const FIRST_LOOK: u32 = 6;
/// Calls, and time since the first look, after which a connection whose peer never showed itself
/// stops looking. Both: a writer of small pieces makes a thousand calls before its reader makes six.
const GIVE_UP: (u32, Duration) = (1024, Duration::from_secs(1));
/// The time for a peer on another host, whose first request may be lost, and who may have to load the libraries of
/// its device first.
const FAR_GIVE_UP: Duration = Duration::from_secs(15);

impl AcceleratedStream {
    /// Counts a call, and looks for the peer when it is time: at doubling call counts for what costs
    /// system calls, more often once something is under way.
    pub(in crate::accelerate) fn count(&self, fd: BorrowedFd<'_>, calls: &mut u32) {
        *calls = calls.wrapping_add(1);
        let n = *calls;
        if n >= FIRST_LOOK && !self.has(FLAG_PAIRED | FLAG_PINNED) {
            let is_due = n == FIRST_LOOK || n.is_multiple_of(if n < 1024 { 8 } else { 64 });
            if is_due {
                self.look(fd, n);
            }
        }
    }

    /// Takes a step of the search, if no other thread does. Called with or without a direction's lock.
    #[cold]
    pub(in crate::accelerate) fn look(&self, fd: BorrowedFd<'_>, calls: u32) {
        if interrupt::is_in_handler() {
            // It allocates.
            return;
        }
        let Ok(mut search) = self.search.try_lock() else { return };
        if search.is_over() || self.has(FLAG_PINNED) || self.is_shared() {
            return;
        }
        let since = *sys::get_or_make(&self.looking_since, sys::now);
        let give_up = if search.is_far() { FAR_GIVE_UP } else { GIVE_UP.1 };
        if calls >= GIVE_UP.0 && search.is_unanswered() && since.elapsed() >= give_up {
            *search = Search::Over;
            drop(search);
            self.give_up(FallbackReason::NoPeer);
            return;
        }
        if search.fd().is_none() && calls != FIRST_LOOK && !calls.is_power_of_two() {
            return;
        }
        self.show(fd);
        if sys::is_table_half_full(fd) {
            drop(search);
            self.give_up(FallbackReason::Resources);
            return;
        }
        let tuple = sys::get_or_make(&self.tuple, || {
            Tuple::of(fd).ok().flatten().filter(|t| t.role().is_some())
        });
        let Some(tuple) = tuple else {
            drop(search);
            self.give_up(FallbackReason::Remote);
            return;
        };
        let config = Config { iomap_slots: self.iomap_slots, ..Config::default() };
        let subject = Subject { socket: fd, tuple, config: &config, side: self.side };
        match search.step(subject) {
            Step::Pending => {}
            Step::Paired(stream) => {
                if stream.has_extensions() && self.path.set(stream).is_ok() {
                    self.dirs.raise(FLAG_PAIRED);
                    self.repeat_end();
                }
            }
            Step::Failed(reason) => {
                drop(search);
                self.give_up(reason);
            }
        }
    }

    /// Stays on TCP. Nothing was moved yet, so both directions are plain at once.
    fn give_up(&self, reason: FallbackReason) {
        self.pin_for(reason);
        self.dirs.raise(FLAG_RX_PLAIN | FLAG_TX_PLAIN);
    }

    /// Continues the search when its descriptor became readable while waiting.
    pub(in crate::accelerate) fn on_search_ready(&self, fd: BorrowedFd<'_>) {
        let _section = Section::enter();
        self.look(fd, FIRST_LOOK);
    }

    /// The search's descriptor, to be watched while waiting.
    pub(in crate::accelerate) fn search_fd(&self) -> Option<RawFd> {
        // Nothing would be done about it in a handler.
        if self.has(FLAG_PAIRED | FLAG_PINNED) || interrupt::is_in_handler() {
            return None;
        }
        // A handler of this very thread must not wait for it.
        let _section = Section::enter();
        match self.search.try_lock() {
            Ok(search) => search.fd(),
            // Perhaps by a thread that this process does not have: one that shares the stream does not
            // search.
            Err(_) if self.is_shared() => None,
            Err(_) => self.search.lock().unwrap_or_else(PoisonError::into_inner).fd(),
        }
    }

    /// Sleeps until the socket has one of `events`, or a step of the search has been taken: whoever waits
    /// answers the peer, or lets go of a device that is being taken away.
    pub(in crate::accelerate) fn sleep_unpaired(
        &self,
        fd: BorrowedFd<'_>,
        events: i16,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let search = self.search_fd().unwrap_or(-1);
        let mut fds = [
            libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 },
            libc::pollfd { fd: search, events: libc::POLLIN, revents: 0 },
            notice::entry(),
        ];
        sys::sleep(&mut fds, left, None, watch)?;
        if fds[1].revents != 0 {
            self.on_search_ready(fd);
        }
        Ok(())
    }

    /// The descriptor to be watched beside the socket and the ring while waiting: of the search, or of the
    /// connection between hosts.
    pub(in crate::accelerate) fn side_fd(&self) -> Option<RawFd> {
        match self.path() {
            Some(path) => path.fate_fd(),
            None => self.search_fd(),
        }
    }

    /// Does what is to be done when [`Self::side_fd`] has become readable.
    pub(in crate::accelerate) fn on_side_ready(&self, fd: BorrowedFd<'_>) {
        match self.path() {
            Some(path) => self.mind_fate(path),
            None => self.on_search_ready(fd),
        }
    }
}
