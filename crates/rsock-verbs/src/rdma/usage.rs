//! What this process has on RDMA devices: queues, and registered bytes. Counted where they are
//! made, so that `rsock stat` can show it without a query to the device.
//!
//! Invariant: the counts are of one process. A forked child begins at zero, publishes nothing on
//! its parent's [`UsageBoard`], and does not count the release of what it inherited.

use crate::family::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What a process has on RDMA devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Queue pairs.
    pub n_qps: u64,
    /// Completion queues.
    pub n_cqs: u64,
    /// Bytes of registered memory.
    pub registered: u64,
}

/// Shared words that publish the counts, in the order of [`Usage`]'s fields. The third is reserved,
/// and zero.
pub type UsageBoard = [AtomicU64; 4];

impl Usage {
    /// Reads `board`.
    #[must_use]
    pub fn from_board([n_qps, n_cqs, _, registered]: [u64; 4]) -> Self {
        Self { n_qps, n_cqs, registered }
    }
}

/// What this process has now.
#[must_use]
pub fn usage() -> Usage {
    claim_counts();
    Usage::from_board(TOTALS.each_ref().map(|total| total.load(Ordering::Relaxed)))
}

/// The most of each that this process has had at a time.
#[must_use]
pub fn peak_usage() -> Usage {
    claim_counts();
    Usage::from_board(PEAKS.each_ref().map(|peak| peak.load(Ordering::Relaxed)))
}

/// Publishes this process's counts on `board` from now on.
pub fn show_usage(board: &'static UsageBoard) {
    claim_counts();
    BOARD.store(ptr::from_ref(board).cast_mut(), Ordering::SeqCst);
    for kind in 0..TOTALS.len() {
        show(board, kind);
    }
}

/// Objects of one kind, or bytes: the index of a word of [`UsageBoard`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    QueuePair = 0,
    CompletionQueue = 1,
    Bytes = 3,
}

/// Counted as long as this value lives: keep it beside the counted object.
#[derive(Debug)]
pub(super) struct Counted {
    kind: Kind,
    n: u64,
    owner: u32,
}

impl Counted {
    pub(super) fn one(kind: Kind) -> Self {
        Self::new(kind, 1)
    }

    pub(super) fn bytes(n: usize) -> Self {
        Self::new(Kind::Bytes, n as u64)
    }

    fn new(kind: Kind, n: u64) -> Self {
        let owner = claim_counts();
        let before = TOTALS[kind as usize].fetch_add(n, Ordering::SeqCst);
        PEAKS[kind as usize].fetch_max(before + n, Ordering::Relaxed);
        note(kind);
        Self { kind, n, owner }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if claim_counts() == self.owner {
            TOTALS[self.kind as usize].fetch_sub(self.n, Ordering::SeqCst);
            note(self.kind);
        }
    }
}

static TOTALS: UsageBoard = [const { AtomicU64::new(0) }; 4];
static PEAKS: UsageBoard = [const { AtomicU64::new(0) }; 4];
static BOARD: AtomicPtr<UsageBoard> = AtomicPtr::new(ptr::null_mut());
/// The process that owns the counts; with [`CLAIMING`] while it takes them over.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Above every process id.
const CLAIMING: u32 = 1 << 31;

/// Makes the calling process the owner of the counts; returns its id.
fn claim_counts() -> u32 {
    let here = process().0;
    loop {
        let owner = OWNER.load(Ordering::Acquire);
        if owner == here {
            return here;
        }
        if owner == here | CLAIMING {
            // Another thread of this process, for a few instructions.
            std::hint::spin_loop();
            continue;
        }
        // SYNC(usage-owner): the parent's counts are gone before this process counts.
        let claimed =
            OWNER.compare_exchange(owner, here | CLAIMING, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_ok() {
            BOARD.store(ptr::null_mut(), Ordering::SeqCst);
            for count in TOTALS.iter().chain(&PEAKS) {
                count.store(0, Ordering::SeqCst);
            }
            OWNER.store(here, Ordering::Release);
        }
    }
}

/// Publishes a count that has changed.
fn note(kind: Kind) {
    // SYNC(usage-board): a thread that changes a count reads the board pointer afterwards, and a
    // thread that sets the board publishes all counts afterwards: one of them sees the other.
    // SeqCst, or both could miss.
    let board = BOARD.load(Ordering::SeqCst);
    // SAFETY: what is there came from a `&'static UsageBoard`.
    if let Some(board) = unsafe { board.as_ref() } {
        show(board, kind as usize);
    }
}

/// Of two threads that publish at once one might publish the older count last, so each checks its
/// count again afterwards.
fn show(board: &UsageBoard, kind: usize) {
    loop {
        let total = TOTALS[kind].load(Ordering::SeqCst);
        board[kind].store(total, Ordering::SeqCst);
        if TOTALS[kind].load(Ordering::SeqCst) == total {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    static SHOWN: UsageBoard = [const { AtomicU64::new(0) }; 4];

    fn shown() -> Usage {
        Usage::from_board(SHOWN.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The only test of the counts, which are global; no other test here has a device.
    #[test]
    fn what_lives_is_counted_and_shown_and_the_most_is_remembered() {
        let early = Counted::one(Kind::QueuePair);
        show_usage(&SHOWN);
        let expected = Usage { n_qps: 1, ..Usage::default() };
        assert_eq!((usage(), shown()), (expected, expected));
        let others: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn(|| {
                    for _ in 0..2_000 {
                        let _queue = Counted::one(Kind::CompletionQueue);
                        let _bytes = Counted::bytes(1000);
                    }
                    Counted::bytes(10)
                })
            })
            .collect();
        let kept: Vec<_> =
            others.into_iter().map(|other| other.join().expect("no panic")).collect();
        let expected = Usage { n_qps: 1, registered: 40, ..Usage::default() };
        assert_eq!((usage(), shown()), (expected, expected));
        drop((early, kept));
        assert_eq!((usage(), shown()), (Usage::default(), Usage::default()));
        let Usage { n_qps, n_cqs, registered } = peak_usage();
        assert!(n_qps == 1 && (1..=4).contains(&n_cqs));
        assert!((1000..=4040).contains(&registered), "{registered}");
    }
}
