//! Claims in the preload library's descriptor table: a candidate is adopted once, what was adopted
//! ends once, and no thread sleeps in the kernel on a socket that was adopted past it.

#[path = "../../../rsock-preload/src/fdtable/claim.rs"]
mod claim;

use super::explore;
use claim::{begin_wait, convert, end_wait, no_waiters, take};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use loom::thread;
use std::sync::atomic::Ordering;

const CANDIDATE: u64 = 1;
const ADOPTING: u64 = 2;
/// The bits above it number the stream.
const STREAM: u64 = 3;

struct Table {
    entry: AtomicU64,
    n_made: AtomicU32,
    n_ended: AtomicU32,
}

impl Table {
    /// A data call; returns the stream that it uses.
    fn settle(&self) -> Option<u64> {
        loop {
            let word = self.entry.load(Ordering::Acquire);
            match word & 3 {
                0 => return None,
                STREAM => return Some(word),
                ADOPTING => thread::yield_now(),
                _ => convert(
                    &self.entry,
                    word,
                    ADOPTING,
                    || Ok(STREAM | u64::from(self.n_made.fetch_add(1, Ordering::Relaxed)) << 8),
                    |_| _ = self.n_ended.fetch_add(1, Ordering::Relaxed),
                ),
            }
        }
    }

    fn close(&self) {
        if take(&self.entry) & 3 == STREAM {
            self.n_ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_candidate_is_adopted_once_and_what_was_adopted_ends_once() {
    explore(|| {
        let table = Arc::new(Table {
            entry: AtomicU64::new(CANDIDATE),
            n_made: AtomicU32::new(0),
            n_ended: AtomicU32::new(0),
        });
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.settle())
        };
        let closing = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.close())
        };
        let mine = table.settle();
        let others = other.join().expect("a thread");
        if let (Some(mine), Some(others)) = (mine, others) {
            assert_eq!(mine, others, "two calls, one stream");
        }
        closing.join().expect("a thread");
        // What is left is closed with the process.
        table.close();
        let count = |count: &AtomicU32| count.load(Ordering::Relaxed);
        assert!(count(&table.n_made) <= 1);
        assert_eq!(count(&table.n_made), count(&table.n_ended));
    });
}

#[test]
fn no_thread_waits_in_the_kernel_for_a_socket_that_was_adopted_past_it() {
    explore(|| {
        let entry = Arc::new(AtomicU64::new(CANDIDATE));
        let waiters = Arc::new(AtomicU32::new(0));
        let is_waiting = Arc::new(AtomicBool::new(false));
        let adopting = {
            let (entry, waiters) = (Arc::clone(&entry), Arc::clone(&waiters));
            let is_waiting = Arc::clone(&is_waiting);
            thread::spawn(move || {
                let adopt = || {
                    if !no_waiters([&*waiters]) {
                        return Err(CANDIDATE);
                    }
                    assert!(!is_waiting.load(Ordering::Relaxed), "asleep, and will not wake");
                    Ok(STREAM)
                };
                convert(&entry, CANDIDATE, ADOPTING, adopt, |_| ());
            })
        };
        let is_being_adopted = || entry.load(Ordering::Acquire) & 3 == ADOPTING;
        begin_wait(&waiters, is_being_adopted, thread::yield_now);
        if entry.load(Ordering::Acquire) & 3 != STREAM {
            is_waiting.store(true, Ordering::Relaxed);
            thread::yield_now();
            assert_ne!(entry.load(Ordering::Relaxed) & 3, STREAM, "adopted past a sleeper");
            is_waiting.store(false, Ordering::Relaxed);
        }
        end_wait(&waiters);
        adopting.join().expect("a thread");
    });
}
