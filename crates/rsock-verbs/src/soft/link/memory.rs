//! The memory of a link that the peer writes: what is allocated from this process's segment, and
//! when it may serve again.

use super::State;
use crate::error::Error;
use crate::soft::Link;
use crate::soft::alloc::is_block;
use crate::soft::barrier;
use crate::soft::layout::{LaneHead, PAGE, REVOKED};
use crate::soft::retired::RetiredLane;
use rustix::event::Timespec;
use std::sync::atomic::Ordering;

impl Link {
    /// `len` zeroed bytes: a small block, or whole pages.
    pub(in crate::soft) fn alloc(&self, len: u64) -> Result<u64, Error> {
        self.check_owner()?;
        let mut state = self.state();
        let mut freed = self.reclaim(&mut state);
        let mut at = state.alloc.alloc(len);
        if at.is_none() {
            freed.extend(self.reclaim_now(&mut state));
            at = state.alloc.alloc(len);
        }
        drop(state);
        // A wait line locks the state when it is dropped.
        drop(freed);
        let at = at.ok_or(Error::Exhausted("segment"))?;
        if is_block(len) {
            self.own_segment.clear(at, len);
        }
        Ok(at)
    }

    /// Frees memory that is no longer written.
    pub(in crate::soft) fn free(&self, at: u64, len: u64) {
        self.punch_pages(at, len);
        self.state().alloc.free(at, len);
    }

    /// Punches an allocation of whole pages, so that the next owner finds zeroes.
    fn punch_pages(&self, at: u64, len: u64) {
        if !is_block(len) {
            self.own_segment.punch(at, len.next_multiple_of(PAGE));
        }
    }

    /// Frees memory that the peer may still be writing, once it no longer can be.
    pub(in crate::soft) fn retire_region(&self, at: u64, len: u64) {
        let mut state = self.state();
        state.retired.regions.push((at, len));
        let freed = self.reclaim(&mut state);
        drop(state);
        drop(freed);
    }

    /// A page for a [`ReadySet`](crate::sync::ready_set::ReadySet): without bits, or with stray
    /// ones.
    pub(in crate::soft) fn alloc_ready_page(&self) -> Result<u64, Error> {
        self.check_owner()?;
        let mut state = self.state();
        match state.ready_pages.pop() {
            Some(at) => Ok(at),
            None => state.alloc.alloc(PAGE).ok_or(Error::Exhausted("segment")),
        }
    }

    /// Keeps a page for the next ready set: the peer may still set bits in it, so that it cannot
    /// serve anything else.
    pub(in crate::soft) fn free_ready_page(&self, at: u64) {
        self.state().ready_pages.push(at);
    }

    /// Pages that serve no ready set now.
    #[cfg(test)]
    pub(in crate::soft) fn n_ready_pages(&self) -> usize {
        self.state().ready_pages.len()
    }

    /// Keeps the lane of a closed datagram queue until the peer has detached from it.
    pub(in crate::soft) fn retire_lane(&self, rest: RetiredLane) {
        let mut state = self.state();
        state.retired.lanes.push(rest);
        let freed = self.reclaim(&mut state);
        drop(state);
        drop(freed);
    }

    /// Waits, for a bounded time, until every copy of the peer that began before this call has
    /// ended.
    #[cold]
    pub(in crate::soft) fn wait_for_copies(&self) {
        /// Number of checks, each a load per queue pair, with a pause after each. A peer whose copy
        /// takes longer is hostile or stopped; it gains nothing that it could not write without
        /// this library.
        const LOOKS: u32 = 300;
        /// Checks before the pauses become a millisecond.
        const SHORT: u32 = 100;
        let state = self.state();
        let heads: Vec<_> = lane_heads(&state).collect();
        drop(state);
        // One fence is enough: copies that begin after it find the region's key withdrawn.
        let Some(mut copies) = self.copies_under_way(&heads) else { return };
        for look in 0..LOOKS {
            copies.retain(|(head_at, count)| {
                let head = self.own_segment.at::<LaneHead>(*head_at);
                head.is_some_and(|head| head.copier.guard.is_still(*count))
            });
            if copies.is_empty() || look >= SHORT && !self.probe() {
                return;
            }
            if look < SHORT {
                rustix::thread::sched_yield();
            } else {
                let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = rustix::thread::nanosleep(&pause);
            }
        }
    }

    /// For each lane at `heads` through which the peer may be copying now: its head and the copy
    /// guard's count. `None` if the peer is dead.
    fn copies_under_way(&self, heads: &[u64]) -> Option<Vec<(u64, u32)>> {
        if !self.is_alive() {
            return None;
        }
        // SYNC(copy-guard): as in `is_quiet`. If the barrier failed, every lane counts as copying
        // until its count changes.
        let is_fenced = self.fence_copies();
        let copies = heads.iter().filter_map(|&at| {
            let guard = &self.own_segment.at::<LaneHead>(at)?.copier.guard;
            let count = guard.count();
            (!is_fenced || !count.is_multiple_of(2)).then_some((at, count))
        });
        Some(copies.collect())
    }

    /// Orders the withdrawal of a region, or a pause, before the loads of the copy guards that
    /// follow. False if that failed.
    pub(in crate::soft) fn fence_copies(&self) -> bool {
        if self.has_light_fence() {
            return barrier::full();
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        true
    }

    /// As [`Self::reclaim_now`], if there is enough to reclaim that the search is worth its time.
    #[must_use]
    pub(super) fn reclaim(&self, state: &mut State) -> Vec<RetiredLane> {
        if state.retired.is_search_due(state.qps.len()) {
            self.reclaim_now(state)
        } else {
            Vec::new()
        }
    }

    /// Frees retired lanes from which the peer has detached, and retired regions into which no copy
    /// is under way. The caller drops the result after it has unlocked the state, because wait
    /// lines lock it in their own `drop`.
    #[must_use]
    pub(super) fn reclaim_now(&self, state: &mut State) -> Vec<RetiredLane> {
        let is_detached = |lane: &RetiredLane| {
            !self.is_alive()
                || self.own_segment.at::<LaneHead>(lane.head_at).is_none_or(|head| {
                    let claim = head.producer.claim.load(Ordering::Acquire);
                    // SYNC(detach): the peer's last accesses come before. Pairs with the Release
                    // in `QpCore::enter_error`.
                    claim == REVOKED || head.producer.detached.load(Ordering::Acquire) != 0
                })
        };
        let freed: Vec<_> = state.retired.lanes.extract_if(.., |lane| is_detached(lane)).collect();
        for lane in &freed {
            for &(at, len) in &lane.spans {
                self.punch_pages(at, len);
                state.alloc.free(at, len);
            }
        }
        if !state.retired.regions.is_empty() && self.is_quiet(state) {
            for (at, len) in std::mem::take(&mut state.retired.regions) {
                self.punch_pages(at, len);
                state.alloc.free(at, len);
            }
        }
        state.retired.note_search(state.qps.len());
        freed
    }

    /// Whether no copy of the peer that began before this call is under way.
    fn is_quiet(&self, state: &State) -> bool {
        if !self.is_alive() {
            return true;
        }
        // SYNC(copy-guard): the withdrawal of the region's key is ordered before the loads of the
        // copy guards. Pairs with the sender's store of an odd number before it reads the key:
        // either this load sees the odd number, or the sender sees that the key is gone.
        self.fence_copies()
            && lane_heads(state).all(|at| {
                self.own_segment.at::<LaneHead>(at).is_some_and(|h| h.copier.guard.is_quiet())
            })
    }
}

/// Offsets of the heads of all lanes that the peer may be writing.
fn lane_heads(state: &State) -> impl Iterator<Item = u64> {
    let live = state.qps.values().map(|(_, at)| *at);
    live.chain(state.retired.lanes.iter().map(|lane| lane.head_at))
}
