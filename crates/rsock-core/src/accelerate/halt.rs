//! A halt of moves: while one is in effect, no stream of this process moves to the ring.
//!
//! A process that is about to `exec` or to fork first brings its streams back to TCP. Its other
//! threads go on meanwhile. They may accept a connection and move it to the ring after that, and
//! the new program, or the child, would not know of it.
//!
//! Invariant: a stream that is not in the program's list of streams when that list is read, after
//! [`Halt::begin`], finds the halt when it is about to move.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// How many halts are in effect.
static HALTS: AtomicU32 = AtomicU32::new(0);

/// Keeps streams from moving to the ring until it is dropped. Streams that are on the ring stay
/// there.
#[derive(Debug)]
#[must_use]
pub struct Halt(());

impl Halt {
    /// Begins a halt. The caller looks for streams that have moved after this call.
    pub fn begin() -> Self {
        HALTS.fetch_add(1, Ordering::Relaxed);
        // SYNC(halt): the halt is counted before the list of streams is read. A thread that adds a
        // stream to the list does so before it reads the count, with the fence in `is_halted`
        // between the two. At least one of the two threads sees what the other did.
        fence(Ordering::SeqCst);
        Self(())
    }

    /// Forgets all halts, in a forked child: those of the parent's other threads do not end here.
    pub fn forget_all() {
        HALTS.store(0, Ordering::Relaxed);
    }
}

impl Drop for Halt {
    fn drop(&mut self) {
        let less = |n: u32| n.checked_sub(1);
        let _ = HALTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Whether a halt is in effect. To be asked under the lock of a direction that is about to move.
pub(super) fn is_halted() -> bool {
    // SYNC(halt): see `Halt::begin`.
    fence(Ordering::SeqCst);
    HALTS.load(Ordering::Relaxed) != 0
}
