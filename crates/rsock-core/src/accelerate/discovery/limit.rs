//! How many searches of the process may have descriptors open at once.
//!
//! A search has one or two, and one that no peer answers goes on for as long as its stream rests. A
//! program may have as many such streams as its limit of descriptors lets it, and needs the numbers
//! itself. So a small part of the limit is for searches. One more takes the place of the one that
//! has been there longest, whose stream then stays on TCP, or waits for a later call.

use crate::accelerate::discovery::local::Search;
use crate::interrupt::{self, Section};
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The part of the limit of descriptors that is for searches, and most searches in all.
const PART: u64 = 16;
const MOST: usize = 256;
/// A search that has taken so long gives its place to another. Two ends that search find each other
/// within a few calls.
pub(in crate::accelerate) const LONG: Duration = Duration::from_secs(1);

/// The searches that may have descriptors open.
static OPEN: Mutex<Places> = Mutex::new(Places(VecDeque::new()));

/// Places of searches, the oldest first.
#[derive(Debug, Default)]
pub(in crate::accelerate) struct Places(VecDeque<Place>);

#[derive(Debug)]
struct Place {
    search: Weak<Mutex<Search>>,
    since: Instant,
}

/// Whether `search`, which has no descriptors and whose lock the caller holds, may open some.
///
/// No thread waits here for another one, which a forked child may not have: there the search stays
/// on TCP.
pub(super) fn may_open(search: &Arc<Mutex<Search>>) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / PART;
    let most = usize::try_from(limit).unwrap_or(MOST).min(MOST);
    OPEN.try_lock().is_ok_and(|mut open| open.take(search, most, Instant::now()))
}

/// Ends the searches of this process that have descriptors open, except those of threads that take
/// a step at the moment: the program needs the numbers. Their streams stay on TCP. Returns whether
/// there were any.
pub fn close_searches() -> bool {
    if interrupt::is_in_handler() {
        // To close them frees memory.
        return false;
    }
    let _section = Section::enter();
    let Ok(mut open) = OPEN.try_lock() else { return false };
    let n = open.0.len();
    open.0.retain(|place| !place.end());
    open.0.len() != n
}

impl Places {
    /// Takes one of `most` places for `search`, at `now`.
    pub(in crate::accelerate) fn take(
        &mut self,
        search: &Arc<Mutex<Search>>,
        most: usize,
        now: Instant,
    ) -> bool {
        if self.0.len() >= most {
            self.0.retain(|place| place.is_taken_beside(search));
        }
        if self.0.len() >= most {
            let is_long = |place: &Place| now.duration_since(place.since) >= LONG;
            match self.0.iter().position(|place| is_long(place) && place.end()) {
                Some(longest) => drop(self.0.remove(longest)),
                None => return false,
            }
        }
        self.0.push_back(Place { search: Arc::downgrade(search), since: now });
        true
    }
}

impl Place {
    /// Whether another search than `search` has this place, and descriptors.
    fn is_taken_beside(&self, search: &Arc<Mutex<Search>>) -> bool {
        if ptr::eq(self.search.as_ptr(), Arc::as_ptr(search)) {
            return false;
        }
        self.search.upgrade().is_some_and(|other| {
            // A thread that takes a step may be about to open some.
            other.try_lock().map_or(true, |other| other.has_descriptors())
        })
    }

    /// Ends the search of this place, if it has descriptors and no thread takes a step.
    fn end(&self) -> bool {
        let Some(search) = self.search.upgrade() else { return false };
        let Ok(mut search) = search.try_lock() else { return false };
        let is_open = search.has_descriptors();
        if is_open {
            *search = Search::Ended;
        }
        is_open
    }
}
