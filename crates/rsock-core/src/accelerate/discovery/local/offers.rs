//! Offers of links that have not been answered yet: streams that search for the same process at the
//! same time share one link.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// An offer that has not been answered for so long keeps no other stream from making its own: the
/// program may have stopped using the stream that made it.
const PATIENCE: Duration = Duration::from_millis(10);

static PENDING: Mutex<Vec<(u32, Instant)>> = Mutex::new(Vec::new());

/// An offer to a process, until this is dropped.
#[derive(Debug)]
pub(in crate::accelerate) struct PendingOffer {
    pid: u32,
    since: Instant,
}

impl PendingOffer {
    /// Begins an offer to process `pid`. `None` while another one is pending.
    pub(in crate::accelerate) fn begin(pid: u32) -> Option<Self> {
        let since = Instant::now();
        // A thread that a forked child does not have may hold the lock. Then the child makes a link
        // for each stream.
        if let Ok(mut pending) = PENDING.try_lock() {
            pending.retain(|(_, since)| since.elapsed() < PATIENCE);
            if pending.iter().any(|(other, _)| *other == pid) {
                return None;
            }
            pending.push((pid, since));
        }
        Some(Self { pid, since })
    }
}

impl Drop for PendingOffer {
    fn drop(&mut self) {
        if let Ok(mut pending) = PENDING.try_lock() {
            pending.retain(|other| *other != (self.pid, self.since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gets_one_offer_at_a_time() {
        // No process has such a number.
        let [one, two] = [u32::MAX, u32::MAX - 1];
        // Other tests of this process make offers, and may hold the lock for a moment.
        let begin = |pid| loop {
            match PendingOffer::begin(pid) {
                Some(offer) if is_listed(&offer) => return offer,
                _ => std::thread::yield_now(),
            }
        };
        fn is_listed(offer: &PendingOffer) -> bool {
            PENDING.lock().unwrap().contains(&(offer.pid, offer.since))
        }
        let first = begin(one);
        let other = begin(two);
        // Unless this thread has been away for longer than the patience.
        let is_refused = PendingOffer::begin(one).is_none();
        assert!(is_refused || first.since.elapsed() >= PATIENCE);
        drop((first, other));
        drop(begin(one));
    }
}
