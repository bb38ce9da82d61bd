//! How many searches of the process may have descriptors open at once.
//!
//! A search has one or two, and one that no peer answers goes on for as long as its stream rests. A
//! program may have as many such streams as its limit of descriptors lets it, and needs the numbers
//! itself. So a small part of the limit is for searches on this host. One more takes the place of
//! one that has had no answer for long, or waits for a later call.
//!
//! A search that loses its place begins again, with a later call of its stream.

use crate::accelerate::discovery::local::Search;
use crate::fork;
use crate::interrupt::{self, Section};
use crate::sys;
use rsock_verbs::mutex::try_lock;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The part of the limit of descriptors that is for searches, and the least and the most of them.
const PART: u64 = 16;
const LEAST: usize = 4;
const MOST: usize = 256;
/// A search without an answer for so long gives its place to another. Two ends that search find
/// each other within a few calls.
const LONG: Duration = Duration::from_secs(1);
/// The same for a search that has had an answer, and for which the peer then rests.
const LONG_ANSWERED: Duration = Duration::from_secs(15);

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

/// Calls `f` with the places, unless another thread uses them or forks.
fn with_places<T>(f: impl FnOnce(&mut Places) -> T) -> Option<T> {
    let _lock = try_lock(&fork::SEARCH_PLACES)?;
    try_lock(&OPEN).map(|mut open| f(&mut open))
}

/// Whether `search`, which has no descriptors and whose lock the caller holds, may open some. If
/// not, or not now, it is to be asked again with a later call.
pub(super) fn may_open(search: &Arc<Mutex<Search>>) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / PART;
    let most = usize::try_from(limit).unwrap_or(MOST).clamp(LEAST, MOST);
    with_places(|open| open.take(search, most, Instant::now())).unwrap_or(false)
}

/// Closes the descriptors of searches on this host, except those of threads that take a step at the
/// moment: the program needs the numbers. Returns whether there were any.
pub fn close_searches() -> bool {
    if interrupt::is_in_handler() {
        // To close them frees memory.
        return false;
    }
    let _section = Section::enter();
    let close = |open: &mut Places| {
        let n = open.0.len();
        if n == 0 {
            return false;
        }
        sys::with_spare_descriptors(|| open.0.retain(|place| !place.end(|_| true)));
        open.0.len() != n
    };
    with_places(close).unwrap_or(false)
}

impl Places {
    /// Takes one of `most` places for `search`, at `now`.
    pub(in crate::accelerate) fn take(
        &mut self,
        search: &Arc<Mutex<Search>>,
        most: usize,
        now: Instant,
    ) -> bool {
        // A place keeps the memory of a search that is gone.
        self.0.retain(|place| {
            place.search.strong_count() != 0 && !ptr::eq(place.search.as_ptr(), Arc::as_ptr(search))
        });
        if self.0.len() >= most {
            self.0.retain(Place::is_taken);
        }
        if self.0.len() >= most {
            let gives_way = |place: &Place| {
                let age = now.duration_since(place.since);
                age >= LONG && place.end(|search| search.is_unanswered() || age >= LONG_ANSWERED)
            };
            match self.0.iter().position(gives_way) {
                Some(at) => drop(self.0.remove(at)),
                None => return false,
            }
        }
        self.0.push_back(Place { search: Arc::downgrade(search), since: now });
        true
    }
}

#[cfg(test)]
impl Places {
    pub(in crate::accelerate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Place {
    /// Whether the search of this place has descriptors, or may be about to open some.
    fn is_taken(&self) -> bool {
        let Some(search) = self.search.upgrade() else { return false };
        search.try_lock().map_or(true, |search| search.has_descriptors())
    }

    /// Closes the descriptors of the search of this place, if it has some that can be closed,
    /// `may_end` agrees, and no thread takes a step. It then begins again. Returns whether it did.
    fn end(&self, may_end: impl FnOnce(&Search) -> bool) -> bool {
        let Some(search) = self.search.upgrade() else { return false };
        let Ok(mut search) = search.try_lock() else { return false };
        let ends = search.has_descriptors() && may_end(&search) && search.can_be_closed();
        if ends {
            *search = Search::new();
        }
        ends
    }
}
