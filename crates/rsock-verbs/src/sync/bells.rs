//! The bells of a queue: doorbells of threads that are to be rung when the queue has something new.
//!
//! A queue has a few places for bells, in family memory, and a copy of them on each of its wait
//! lines, for the peers. A thread takes a place when it first arms its bell, keeps it while it
//! waits again and again, and gives it up in the end. Meanwhile a new link may add a wait line.

use super::primitive::{Native, Platform, Word};
use super::waiter::{BELL, BELLS, BellName, Lines, WaitLine};
use std::sync::atomic::Ordering;

/// # Invariants
/// A place belongs to the thread that has put its bell's id there, until it takes that out again.
/// On wait lines that are in the queue's list only this thread writes the place, but for
/// [`Self::copy_to`], which writes until the line agrees with the place.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Bells<P: Platform = Native> {
    /// Set while the family is to ring the bells.
    armed: P::U32,
    /// The bell in each place; 0 means none.
    ids: [P::U64; BELLS],
    /// The pipe beside each bell; 0 means none.
    pipes: [P::U64; BELLS],
}

impl<P: Platform> Bells<P> {
    /// No bells, as in fresh memory.
    pub(crate) fn fresh() -> Self {
        Self {
            armed: P::U32::new(0),
            ids: std::array::from_fn(|_| P::U64::new(0)),
            pipes: std::array::from_fn(|_| P::U64::new(0)),
        }
    }

    /// Whether the family is to ring the bells. The caller has executed a full fence after it made
    /// something ready.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Clears the mark that [`Self::is_armed`] reads; returns whether it was set.
    pub(crate) fn take_armed(&self) -> bool {
        self.armed.swap(0, Ordering::AcqRel) != 0
    }

    /// Calls `f` with the id of each bell.
    pub(crate) fn for_each(&self, f: impl FnMut(u64)) {
        self.ids.iter().map(|id| id.load(Ordering::Relaxed)).filter(|&id| id != 0).for_each(f);
    }

    /// Gives a bell a place, if it has none, and arms it; false if all places are taken. The caller
    /// checks for work afterwards.
    pub(crate) fn arm(&self, bell: BellName, lines: &impl Lines<P>) -> bool {
        let known = || self.ids.iter().position(|id| id.load(Ordering::Relaxed) == bell.id);
        let Some(i) = known().or_else(|| self.take_place(bell.id)) else { return false };
        self.pipes[i].store(bell.pipe, Ordering::Relaxed);
        // SYNC(wait-lines): pairs with the fence in `copy_to`.
        P::fence();
        lines.for_each(|line| line.set_bell(i, bell));
        self.armed.store(1, Ordering::Relaxed);
        lines.for_each(|line| {
            line.arm(BELL);
        });
        // SYNC(arm-ring): for a queue without wait lines. Pairs with the fence in
        // `Registry::notify`.
        P::fence();
        true
    }

    fn name(&self, i: usize) -> BellName {
        let id = self.ids[i].load(Ordering::Acquire);
        BellName { id, pipe: self.pipes[i].load(Ordering::Relaxed) }
    }

    fn take_place(&self, id: u64) -> Option<usize> {
        self.ids.iter().position(|place| {
            // SYNC(bell-place): after the thread that gave the place up has cleared the lines.
            place.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes a bell out of its place.
    pub(crate) fn disarm(&self, id: u64, lines: &impl Lines<P>) {
        for (i, place) in self.ids.iter().enumerate() {
            if place.load(Ordering::Relaxed) == id {
                // The lines are cleared before the place is free, because its next owner writes
                // the name of its own bell there.
                lines.for_each(|line| line.set_bell(i, BellName::default()));
                // SYNC(bell-place): pairs with the Acquire in `take_place`.
                place.store(0, Ordering::Release);
            }
        }
    }

    /// Copies the bells to a wait line that has been added to the queue's list, and arms it if
    /// there are any.
    pub(crate) fn copy_to(&self, line: &WaitLine<P>) {
        // SYNC(wait-lines): the wait line is in the list before the bells are read. Pairs with the
        // fence in `arm`: either a bell that is armed meanwhile is seen here, or the wait line is
        // seen there.
        P::fence();
        let mut any = false;
        for i in 0..BELLS {
            // Copies again if another thread has changed the place meanwhile, because this copy
            // may have replaced that thread's.
            loop {
                let bell = self.name(i);
                line.set_bell(i, bell);
                P::fence();
                if self.name(i) == bell {
                    any |= bell.id != 0;
                    break;
                }
            }
        }
        if any {
            line.arm(BELL);
        }
    }
}
