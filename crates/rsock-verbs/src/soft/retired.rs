//! Lanes and regions of a link that this end has closed, and that the peer may still be writing.

use super::wait::OwnedWaitLine;
use std::sync::Arc;

/// What waits until it can be reclaimed, and when to search it.
///
/// To search it takes a look at each lane, and a barrier in the peer's threads. A process that
/// closes thousands of streams would do so for each of them. So the searches are as many as the
/// logarithm of what is closed: one when a sixteenth of the link's lanes has been closed since the
/// last.
#[derive(Debug, Default)]
pub(super) struct Retired {
    /// Lanes of dropped queue pairs.
    pub(super) lanes: Vec<RetiredLane>,
    /// Withdrawn regions: offset and length.
    pub(super) regions: Vec<(u64, u64)>,
    /// How many lanes and regions there are when the next search is due.
    next_search: usize,
}

/// The lane of a dropped queue pair, kept until its peer has detached from it.
#[derive(Debug)]
pub(super) struct RetiredLane {
    /// [`LaneHead`](super::layout::LaneHead).
    pub(super) head_at: u64,
    /// Its allocations, with that of the head: offset and length.
    pub(super) spans: Vec<(u64, u64)>,
    /// The wait line that the peer may still ring: held, not used.
    pub(super) _wait_line: Arc<OwnedWaitLine>,
}

/// Up to so many live and retired lanes are searched at every occasion.
const FEW: usize = 64;

impl Retired {
    fn len(&self) -> usize {
        self.lanes.len() + self.regions.len()
    }

    /// Whether to search, on a link with `n_live` lanes in use.
    pub(super) fn is_search_due(&self, n_live: usize) -> bool {
        let n = self.len();
        n != 0 && (n + n_live <= FEW || n >= self.next_search)
    }

    /// What was found in a search has been taken out.
    pub(super) fn note_search(&mut self, n_live: usize) {
        let n = self.len();
        self.next_search = n + 1 + (n + n_live) / 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Closes all of `n` streams while the peer closes none of them, and returns the searches.
    fn searches_of_closing(n: usize) -> usize {
        let mut retired = Retired::default();
        let mut n_searches = 0;
        for i in 0..n {
            retired.regions.push((0, 0));
            if retired.is_search_due(n - 1 - i) {
                n_searches += 1;
                retired.note_search(n - 1 - i);
            }
        }
        n_searches
    }

    #[test]
    fn few_streams_are_searched_each_time_and_many_now_and_then() {
        assert_eq!(searches_of_closing(FEW), FEW);
        assert!(searches_of_closing(10_000) <= 16);
        assert!(searches_of_closing(100_000) <= 16);
    }

    #[test]
    fn what_is_left_over_does_not_keep_others_from_a_search() {
        let mut retired = Retired::default();
        retired.regions.extend([(0, 0); 5000]);
        assert!(retired.is_search_due(5000));
        retired.note_search(5000);
        assert!(!retired.is_search_due(5000), "nothing has changed");
        retired.regions.extend([(0, 0); 700]);
        assert!(retired.is_search_due(5000));
    }
}
