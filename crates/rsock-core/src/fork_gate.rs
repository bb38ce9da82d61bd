//! Keeps a fork apart from the changes that a child cannot sort out.
//!
//! The kernel copies the table of descriptors and the memory of a process one after the other, and
//! its other threads run on meanwhile. A descriptor that such a thread makes or closes between the
//! two, or before it has noted so in memory, is open in the child without being listed there, or
//! listed without being open. The child would keep a connection open that its peer waits to end, or
//! close a number that is not open.
//!
//! So a thread makes or closes such a descriptor, and notes it, inside the gate ([`enter`]), and a
//! fork begins when no thread is inside ([`hold`]).

#![forbid(unsafe_code)]

use crate::interrupt::Section;
use crate::sys;
use rsock_verbs::family;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bit 31: a fork is under way. Bits 30:0: threads inside.
static STATE: AtomicU32 = AtomicU32::new(0);
/// The thread that forks, while bit 31 is set.
static FORKING: AtomicU32 = AtomicU32::new(0);

const FORK: u32 = 1 << 31;

/// Longest time that a fork waits for threads inside. They make a few system calls there, without
/// sleep. A fork that goes on all the same risks a descriptor, and no hang.
const BOUND: Duration = Duration::from_secs(2);

/// A thread inside the gate.
#[derive(Debug)]
pub(crate) struct Inside {
    /// A signal handler that forks would wait for the thread that it interrupts.
    _section: Section,
}

/// Enters the gate, after a fork of another thread that is under way. Nestable only in a thread
/// that forks.
pub(crate) fn enter() -> Inside {
    let section = Section::enter();
    loop {
        let state = STATE.load(Ordering::Relaxed);
        let is_free = state & FORK == 0 || FORKING.load(Ordering::Relaxed) == family::thread_id();
        // SYNC(fork gate): one word, so either the fork is seen here or this thread is there. The
        // Acquire pairs with the Release of `Held::drop`.
        let entered = is_free
            && STATE
                .compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if entered {
            return Inside { _section: section };
        }
        rustix::thread::sched_yield();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SYNC(fork gate): what was noted inside comes before the fork that waits for this.
        let _ = STATE.fetch_update(Ordering::Release, Ordering::Relaxed, |state| {
            (state & !FORK != 0).then(|| state - 1)
        });
    }
}

/// The gate is closed for a fork, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(());

/// Closes the gate and waits until no thread is inside. One thread at a time calls this: it holds
/// the arena of family memory.
pub(crate) fn hold() -> Held {
    FORKING.store(family::thread_id(), Ordering::Relaxed);
    STATE.fetch_or(FORK, Ordering::AcqRel);
    let deadline = sys::now().checked_add(BOUND);
    while STATE.load(Ordering::Acquire) != FORK && sys::time_left(deadline) != Some(Duration::ZERO)
    {
        rustix::thread::sched_yield();
    }
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        STATE.fetch_and(!FORK, Ordering::Release);
    }
}

/// In a forked child: the threads that were inside are the parent's.
pub(crate) fn forget_all() {
    STATE.store(0, Ordering::Relaxed);
}
