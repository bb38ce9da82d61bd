//! Decides which copies use streaming stores, by measuring the machine while it runs.
//!
//! The two CPUs of a connection may or may not share a cache, and the host of a virtual machine
//! changes that within minutes. For payloads of each size this decides which kind of store is
//! faster. The cost of a single copy does not show it, because the slower end hides it from the
//! other; so now and then a trial runs both kinds, one after the other, and compares their
//! throughput. A trial outlasts a turn of the ring: lines that streaming stores have sent to memory
//! are slow to write with ordinary ones, once.

/// The choice for one direction between two queues. `Copy`, because it is part of a queue
/// pair's state in family memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyPolicy {
    classes: [Choice; CLASSES.len()],
    /// What had been received at the last copy.
    received_then: u64,
}

/// Sizes for which one choice is made.
#[derive(Clone, Copy, Debug)]
struct Class {
    from: usize,
    /// Whether copies stream before the first trial.
    streams_at_first: bool,
}

/// PERF: Gbit/s of a 512 KiB ring under 64-byte slots on an EPYC, streaming against ordinary
/// stores. One cache: 33 to 46 at 1 KiB, 46 to 47 at 1.4 KiB, 94 to 63 at 4 KiB. Two: 5 to 6 at 256
/// B, 12 to 9 at 512 B, 21 to 12 at 1 KiB, 59 to 16 at 4 KiB. On a Xeon, netperf with streaming
/// stores from 1408 B on and with a learnt choice: 43 and 77 at 4 KiB, 76 and 110 at 16 KiB,
/// 78 and 107 at 64 KiB.
const CLASSES: [Class; 3] = [
    Class { from: 512, streams_at_first: false },
    Class { from: 1408, streams_at_first: true },
    Class { from: 16 << 10, streams_at_first: true },
];

/// From this size on copies stream, while the peer answers every message. PERF: a streamed payload
/// is read from memory, which adds 0.4 us (one cache) or 0.6 us (two) to a round trip of 1 to 4
/// KiB.
const ANSWERS_FROM: usize = 8192;

/// Bytes in which there are two trials, one of each kind of store.
const PERIOD: u32 = 256 << 20;
/// Bytes of a trial before its timed part: more than a ring has.
const SETTLING: u32 = 4 << 20;
/// Bytes of a trial.
const TRIAL: u32 = 6 << 20;
const SCALE: u64 = 256;

impl CopyPolicy {
    /// The size from which copies stream, for a copy of `len` bytes. `received` is the number of
    /// messages that this end has received: if some have come since the last copy, the peer's
    /// program reads the payload soon, so it should be in the cache.
    #[inline(always)]
    pub(super) fn stream_from(&mut self, len: usize, received: u64) -> usize {
        if std::mem::replace(&mut self.received_then, received) != received {
            return ANSWERS_FROM;
        }
        match CLASSES.iter().rposition(|class| len >= class.from) {
            Some(n) => self.choose(n, len, now),
            None => usize::MAX,
        }
    }

    #[inline(never)]
    fn choose(&mut self, class: usize, len: usize, now: impl Fn() -> u64) -> usize {
        let Class { from, streams_at_first } = CLASSES[class];
        let streams = self.classes[class].is_other_way(len, now) ^ streams_at_first;
        if streams { from } else { usize::MAX }
    }
}

/// What has been learnt of one class of sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    /// Bytes so far, modulo [`PERIOD`].
    at: u32,
    /// Whether copies go the other way than at first.
    is_other_way: bool,
    /// The time-stamp counter, and `at`, when the timed part of a trial began.
    start: (u64, u32),
    /// Cycles of a line, times [`SCALE`], in the last trial of the other way.
    trial: u64,
}

impl Choice {
    /// Whether this copy goes the other way than at first.
    fn is_other_way(&mut self, len: usize, now: impl Fn() -> u64) -> bool {
        let before = self.at;
        let after = before.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        self.at = if after < PERIOD { after } else { 0 };
        if before >= 2 * TRIAL {
            return self.is_other_way;
        }
        let passes = |mark: u32| before < mark && after >= mark;
        if passes(SETTLING) || passes(TRIAL + SETTLING) {
            self.start = (now(), before);
        } else if passes(TRIAL) {
            self.trial = self.cost(now(), before);
        } else if passes(2 * TRIAL) && self.trial * 10 < self.cost(now(), before) * 9 {
            // A tenth is more than the error of a trial.
            self.is_other_way ^= true;
        }
        self.is_other_way ^ (before < TRIAL)
    }

    /// Cycles of a line in the timed part, which ends with byte `end`.
    fn cost(&self, now: u64, end: u32) -> u64 {
        let (start, from) = self.start;
        let lines = u64::from(end.saturating_sub(from) / 64).max(1);
        now.saturating_sub(start).saturating_mul(SCALE) / lines
    }
}

/// The time-stamp counter.
#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and systems keep it open to user space: their
    // own clocks are read by it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Other architectures have no streaming kernels to choose: with a constant clock the choice never
/// changes.
#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The class of 1 KiB, and that of 64 KiB.
    const SIZES: [(usize, usize); 2] = [(0, 1 << 10), (2, 64 << 10)];

    fn streams(copy_policy: &CopyPolicy, class: usize) -> bool {
        copy_policy.classes[class].is_other_way ^ CLASSES[class].streams_at_first
    }

    /// Sends `bytes` in messages of one size on a machine where a message takes `ordinary` cycles
    /// with ordinary stores and `streaming` with streaming ones. How fast the reader is depends on
    /// how the bytes were written that the ring held a turn before.
    fn run(
        copy_policy: &mut CopyPolicy,
        (class, len): (usize, usize),
        (ordinary, streaming): (u64, u64),
        bytes: u32,
    ) {
        const RING: usize = 3 << 20;
        let clock = Cell::new(0);
        let mut ring = std::collections::VecDeque::new();
        for _ in 0..bytes as usize / len {
            let from = copy_policy.choose(class, len, || clock.get());
            ring.push_back(if len >= from { streaming } else { ordinary });
            if ring.len() > RING / len {
                clock.set(clock.get() + ring.pop_front().unwrap_or(0));
            }
        }
    }

    #[test]
    fn the_choice_follows_the_machine_in_both_directions() {
        for size in SIZES {
            let mut copy_policy = CopyPolicy::default();
            for _ in 0..3 {
                run(&mut copy_policy, size, (2000, 1000), 2 * PERIOD);
                assert!(streams(&copy_policy, size.0), "{size:?}");
                run(&mut copy_policy, size, (600, 1000), 2 * PERIOD);
                assert!(!streams(&copy_policy, size.0), "{size:?}");
            }
        }
    }

    #[test]
    fn equal_costs_do_not_change_the_choice() {
        for is_other_way in [false, true] {
            for size in SIZES {
                let mut copy_policy = CopyPolicy::default();
                copy_policy.classes[size.0].is_other_way = is_other_way;
                let before = streams(&copy_policy, size.0);
                run(&mut copy_policy, size, (1000, 1000), 4 * PERIOD);
                assert_eq!(streams(&copy_policy, size.0), before, "{size:?}");
            }
        }
    }

    #[test]
    fn small_and_answered_messages_do_not_depend_on_the_trials() {
        let mut copy_policy = CopyPolicy::default();
        let least = CLASSES[0].from;
        assert!(copy_policy.stream_from(least - 1, 0) > least - 1);
        assert!(copy_policy.stream_from(4096, 1) > 4096);
        assert!(copy_policy.stream_from(65536, 2) <= 65536);
    }

    #[test]
    fn sizes_are_learnt_apart() {
        let mut copy_policy = CopyPolicy::default();
        run(&mut copy_policy, SIZES[0], (2000, 1000), 2 * PERIOD);
        run(&mut copy_policy, SIZES[1], (600, 1000), 2 * PERIOD);
        assert!(streams(&copy_policy, SIZES[0].0) && !streams(&copy_policy, SIZES[1].0));
        assert_eq!(copy_policy.stream_from(4096, 0), usize::MAX, "its first trial");
    }
}
