//! The schedule of discovery: when the search for the peer begins, takes a step, and ends.

use crate::accelerate::discovery::candidate::{Candidate, Step};
use crate::accelerate::discovery::limit;
use crate::accelerate::discovery::local::{Search, by_link, recent_links};
use crate::accelerate::discovery::remote;
use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::state::{FLAG_HAS_PATH, FLAG_PINNED, FLAG_RX_PLAIN, FLAG_TX_PLAIN};
use crate::accelerate::{AcceleratedStream, FallbackReason};
use crate::closing::notice;
use crate::engine::Config;
use crate::interrupt::{self, Section, Watch};
use crate::sys;
use rsock_verbs::soft::Link;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// The call of a direction with which a connection begins to search for its peer: a short
/// connection never pays for it.
const FIRST_SEARCH_CALL: u32 = 4;
/// The same where the peer is likely to be found over a link, which costs less.
const FIRST_LINK_CALL: u32 = 3;
/// The number of a step that no counted call takes. Nothing is done at such a step that only every
/// so many calls do.
const UNCOUNTED: u32 = 0;
/// Before this call each call takes a step: where both ends are searching they agree within a few
/// calls.
const EAGER_CALLS: u32 = 16;
/// Before this call an end looks for its peer over links alone, where it is likely to be there.
const LINK_END: u32 = FIRST_LINK_CALL + 3;
/// For so many calls the finder looks for the meeting point at each; later it looks at doubling
/// numbers of calls. The publisher may make its first step after the finder's.
const EAGER_LOOKS: u32 = 3;
/// Calls, and time since the first step, after which a connection whose peer has not answered ends
/// its search. Both limits must be reached: a writer of small pieces makes a thousand calls before
/// its reader makes four.
const SEARCH_LIMIT: (u32, Duration) = (1024, Duration::from_secs(1));
/// The same time for a peer on another host. Its first request may be lost, and it may have to load
/// the libraries of its device first.
const REMOTE_SEARCH_LIMIT: Duration = Duration::from_secs(15);

/// Bytes of stack without which a call does not begin a search; a thread of `PTHREAD_STACK_MIN` has
/// some 11 KiB. A step takes up to 6.3 KiB (x86-64), more in a build with checks, and a later one
/// may be taken in `poll` or `select`, which take 5.3 KiB more than the call that began.
const STACK: usize = 16 << 10;
/// The same for a peer on another host, as the libraries of the device are loaded for it.
const REMOTE_STACK: usize = 64 << 10;

/// Whether a connection searches for its peer with call `n` of a direction, and later ones.
pub(in crate::accelerate) fn is_search_call(n: u32) -> bool {
    n >= FIRST_SEARCH_CALL || n >= FIRST_LINK_CALL && recent_links::are_likely()
}

/// Whether the calling thread has enough stack to search for the peer at the other end of `tuple`.
fn has_stack_for(tuple: &FourTuple) -> bool {
    sys::has_stack(if remote::is_for_remote(tuple) { REMOTE_STACK } else { STACK })
}

/// A call that may take a step of a search.
struct Turn {
    /// Its number, or [`UNCOUNTED`].
    calls: u32,
    /// The links by which the step is to be taken. If there are none, it may open sockets.
    links: Vec<Arc<Link>>,
    /// From this call on the finder looks for the meeting point at doubling numbers of calls.
    eager_end: u32,
}

impl Turn {
    /// `None` if the call is too early for what it could do.
    fn of(calls: u32) -> Option<Self> {
        let is_link_likely = recent_links::are_likely();
        let is_by_link = is_link_likely && calls != UNCOUNTED && calls < LINK_END;
        let links = if is_by_link { recent_links::links() } else { Vec::new() };
        let eager_begin = if is_link_likely { LINK_END } else { FIRST_SEARCH_CALL };
        let is_too_early = calls == FIRST_LINK_CALL && links.is_empty();
        (!is_too_early).then(|| Self { calls, links, eager_end: eager_begin + EAGER_LOOKS })
    }

    /// Whether the search, which began so long ago, ends without an answer.
    fn is_last(&self, search: &Search, since: Duration) -> bool {
        let limit = if search.is_remote() { REMOTE_SEARCH_LIMIT } else { SEARCH_LIMIT.1 };
        self.calls >= SEARCH_LIMIT.0 && search.is_unanswered() && since >= limit
    }

    /// Whether the finder does not look for the meeting point in this call.
    fn is_between_looks(&self) -> bool {
        self.calls >= self.eager_end && !self.calls.is_power_of_two()
    }
}

impl AcceleratedStream {
    /// Counts a call, and takes a step of the search when one is due: soon after the first step at
    /// each call, then at each eighth, later more rarely.
    pub(in crate::accelerate) fn count_call(&self, fd: BorrowedFd<'_>, calls: &mut u32) {
        *calls = calls.wrapping_add(1);
        let n = *calls;
        if n >= FIRST_LINK_CALL && !self.has(FLAG_HAS_PATH | FLAG_PINNED) {
            let each = match n {
                ..EAGER_CALLS => 1,
                EAGER_CALLS..1024 => 8,
                1024.. => 64,
            };
            if n.is_multiple_of(each) {
                self.search_step(fd, n);
            }
        }
    }

    /// Takes a step of the search, unless another thread does. `calls` is the number of the call
    /// that takes it, or [`UNCOUNTED`]. Called with or without a direction's lock.
    #[cold]
    fn search_step(&self, fd: BorrowedFd<'_>, calls: u32) {
        if interrupt::is_in_handler() {
            // A step allocates.
            return;
        }
        let Ok(search) = self.search.try_lock() else { return };
        if search.is_over() || self.has(FLAG_PINNED) || self.is_held_by_others(fd, calls) {
            return;
        }
        let Some(turn) = Turn::of(calls) else { return };
        if let Some(since) = self.search_began.get() {
            if turn.is_last(&search, since.elapsed()) {
                self.end_search(search, FallbackReason::NoPeer);
                return;
            }
            if search.is_idle() && turn.is_between_looks() {
                return;
            }
        }
        let tuple = sys::get_or_make(&self.tuple, || {
            FourTuple::of(fd).ok().flatten().filter(|t| t.role().is_some())
        });
        self.open_metrics(fd);
        let Some(tuple) = tuple else {
            self.end_search(search, FallbackReason::Remote);
            return;
        };
        if self.search_began.get().is_none() && !has_stack_for(tuple) {
            self.end_search(search, FallbackReason::SmallStack);
            return;
        }
        let config = Config { iomap_slots: self.iomap_slots, ..Config::default() };
        let (side, links) = (self.side, &turn.links[..]);
        let candidate = Candidate { socket: fd, tuple, config: &config, side, links };
        self.take_turn(search, candidate, &turn);
    }

    /// Whether other processes hold the socket too, as far as this one knows.
    fn is_held_by_others(&self, fd: BorrowedFd<'_>, calls: u32) -> bool {
        if self.is_shared() && calls.is_power_of_two() {
            self.forget_former_holders(fd);
        }
        self.is_shared()
    }

    /// Takes the step of a call, if it may open what the step needs.
    fn take_turn(&self, mut search: MutexGuard<'_, Search>, candidate: Candidate<'_>, turn: &Turn) {
        if turn.links.is_empty() && search.is_by_link() {
            // Takes an answer that is there, or gives the exchange over links up, which opens
            // nothing.
            match self.take_step(search, candidate) {
                Some(begins) if begins.is_idle() => search = begins,
                _ => return,
            }
        }
        if turn.links.is_empty() && search.is_opening() {
            if sys::is_table_half_full(candidate.socket) {
                self.end_search(search, FallbackReason::Resources);
                return;
            }
            let needs_place = !search.has_descriptors() && !remote::is_for_remote(candidate.tuple);
            if needs_place && !limit::may_open(&self.search) {
                return;
            }
        }
        sys::get_or_make(&self.search_began, sys::now);
        if let Some(mut search) = self.take_step(search, candidate)
            && turn.calls >= turn.eager_end - 1
        {
            search.forget_socket();
        }
    }

    /// Takes a step. Returns the search if it goes on.
    fn take_step<'a>(
        &self,
        mut search: MutexGuard<'a, Search>,
        candidate: Candidate<'_>,
    ) -> Option<MutexGuard<'a, Search>> {
        match search.step(candidate) {
            Step::Pending => return Some(search),
            Step::Found(stream) => {
                if stream.has_extensions() && self.path.set(stream).is_ok() {
                    self.dirs.raise(FLAG_HAS_PATH);
                    self.repeat_shutdown();
                    self.epoll_watch.on_path();
                }
            }
            Step::Failed(reason) => {
                drop(search);
                self.give_up(reason);
            }
        }
        None
    }

    /// Ends the search, without a path.
    fn end_search(&self, mut search: MutexGuard<'_, Search>, reason: FallbackReason) {
        *search = Search::Over;
        drop(search);
        self.give_up(reason);
    }

    /// Stays on TCP. Neither direction has moved yet, so both are plain at once.
    fn give_up(&self, reason: FallbackReason) {
        self.pin_for(reason);
        self.dirs.raise(FLAG_RX_PLAIN | FLAG_TX_PLAIN);
    }

    /// Takes a step of the search that no counted call takes: its descriptor became readable during
    /// a wait, or the program asks for the peer.
    pub(in crate::accelerate) fn step_uncounted(&self, fd: BorrowedFd<'_>) {
        let _section = Section::enter();
        self.search_step(fd, UNCOUNTED);
    }

    /// The search's descriptor, to be watched during a wait.
    pub(in crate::accelerate) fn search_fd(&self) -> Option<RawFd> {
        // A signal handler does not take steps of the search.
        if self.has(FLAG_HAS_PATH | FLAG_PINNED) || interrupt::is_in_handler() {
            return None;
        }
        // A signal handler on this thread must not wait for the lock.
        let _section = Section::enter();
        match self.search.try_lock() {
            Ok(search) => search.fd(),
            // Perhaps by a thread that this process does not have: a child that shares the stream
            // does not search.
            Err(_) if self.is_shared() => None,
            Err(_) => self.search.lock().unwrap_or_else(PoisonError::into_inner).fd(),
        }
    }

    /// Whether the search goes on by the memory of links.
    fn is_search_by_link(&self) -> bool {
        let is_over = self.has(FLAG_HAS_PATH | FLAG_PINNED);
        if is_over || self.is_shared() || interrupt::is_in_handler() {
            return false;
        }
        let _section = Section::enter();
        self.search.try_lock().is_ok_and(|search| search.is_by_link())
    }

    /// Sleeps until the socket has one of `events`, or a step of the search has been taken: a
    /// waiting thread answers the peer, and lets go of a device that is being removed.
    pub(in crate::accelerate) fn sleep_without_path(
        &self,
        fd: BorrowedFd<'_>,
        events: i16,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let search = self.search_fd().unwrap_or(-1);
        // An answer in the memory of a link wakes no thread.
        let left = match self.is_search_by_link() {
            true => Some(left.map_or(by_link::PATIENCE, |left| left.min(by_link::PATIENCE))),
            false => left,
        };
        let mut fds = [
            libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 },
            libc::pollfd { fd: search, events: libc::POLLIN, revents: 0 },
            notice::entry(),
        ];
        let n_ready = sys::sleep(&mut fds, left, None, watch)?;
        if fds[1].revents != 0 || n_ready == 0 && self.is_search_by_link() {
            self.step_uncounted(fd);
        }
        Ok(())
    }

    /// The descriptor to be watched during a wait, beside the socket and the ring: that of the
    /// search, or of the connection between hosts.
    pub(in crate::accelerate) fn auxiliary_fd(&self) -> Option<RawFd> {
        match self.path() {
            Some(path) => path.connection_fd(),
            None => self.search_fd(),
        }
    }

    /// To be called when [`Self::auxiliary_fd`] has become readable.
    pub(in crate::accelerate) fn on_auxiliary_ready(&self, fd: BorrowedFd<'_>) {
        match self.path() {
            Some(path) => self.pin_if_device_removed(path),
            None => self.step_uncounted(fd),
        }
    }
}
