//! Decides which copies use streaming stores, by measuring the machine while it runs.
//!
//! The two CPUs of a connection may or may not share a cache, and the host of a virtual machine
//! changes that within minutes. For payloads of each size this decides which kind of store is
//! faster. The cost of a single copy does not show it, because the slower end hides it from the
//! other; so now and then a trial runs both kinds, one after the other, and compares their
//! throughput.

/// The choice for one direction between two queue pairs. `Copy`, because it is part of a queue
/// pair's state in family memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyPolicy {
    classes: [Choice; CLASSES.len()],
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

/// Two trials in so many messages.
const PERIOD: u16 = 8192;
/// Messages of a trial. Its first half fills the window of messages under way, its second half is
/// timed.
const TRIAL: u16 = 384;
const SCALE: u64 = 256;

impl CopyPolicy {
    /// The size from which copies stream, for a copy of `len` bytes. `answered`: the peer has sent
    /// something since the last copy.
    #[inline(always)]
    pub(super) fn stream_from(&mut self, len: usize, answered: bool) -> usize {
        if answered {
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
    /// Messages so far, modulo [`PERIOD`].
    turn: u16,
    /// Whether copies go the other way than at first.
    is_other_way: bool,
    /// Lines copied since `start`, a reading of the time-stamp counter.
    lines: u32,
    start: u64,
    /// Cycles of a line, times [`SCALE`], in the last trial of the other way.
    trial: u64,
}

impl Choice {
    /// Whether this copy goes the other way than at first.
    fn is_other_way(&mut self, len: usize, now: impl Fn() -> u64) -> bool {
        const BEGIN: u16 = TRIAL / 2;
        const END: u16 = TRIAL - 1;
        const BEGIN_AGAIN: u16 = TRIAL + BEGIN;
        const END_AGAIN: u16 = TRIAL + END;
        let turn = self.turn;
        self.turn = (turn + 1) % PERIOD;
        match turn {
            BEGIN | BEGIN_AGAIN => (self.start, self.lines) = (now(), 0),
            END => self.trial = self.cost(now()),
            // A tenth is more than the error of a trial.
            END_AGAIN if self.trial * 10 < self.cost(now()) * 9 => self.is_other_way ^= true,
            _ => self.lines = self.lines.saturating_add(u32::try_from(len / 64).unwrap_or(0)),
        }
        self.is_other_way ^ (turn < TRIAL)
    }

    fn cost(&self, end: u64) -> u64 {
        end.saturating_sub(self.start).saturating_mul(SCALE) / u64::from(self.lines.max(1))
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

    /// Sends `messages` of one size on a machine where a message takes `ordinary` cycles with
    /// ordinary stores and `streaming` with streaming ones, under a window of 112 messages.
    fn run(
        copy_policy: &mut CopyPolicy,
        (class, len): (usize, usize),
        (ordinary, streaming): (u64, u64),
        messages: u32,
    ) {
        let clock = Cell::new(0);
        let mut under_way = std::collections::VecDeque::new();
        for _ in 0..messages {
            let from = copy_policy.choose(class, len, || clock.get());
            under_way.push_back(if len >= from { streaming } else { ordinary });
            if under_way.len() > 112 {
                clock.set(clock.get() + under_way.pop_front().unwrap_or(0));
            }
        }
    }

    #[test]
    fn the_choice_follows_the_machine_in_both_directions() {
        for size in SIZES {
            let mut copy_policy = CopyPolicy::default();
            for _ in 0..3 {
                run(&mut copy_policy, size, (2000, 1000), 2 * u32::from(PERIOD));
                assert!(streams(&copy_policy, size.0), "{size:?}");
                run(&mut copy_policy, size, (600, 1000), 2 * u32::from(PERIOD));
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
                run(&mut copy_policy, size, (1000, 1000), 5 * u32::from(PERIOD));
                assert_eq!(streams(&copy_policy, size.0), before, "{size:?}");
            }
        }
    }

    #[test]
    fn small_and_answered_messages_do_not_depend_on_the_trials() {
        let mut copy_policy = CopyPolicy::default();
        let least = CLASSES[0].from;
        assert!(copy_policy.stream_from(least - 1, false) > least - 1);
        assert!(copy_policy.stream_from(4096, true) > 4096);
        assert!(copy_policy.stream_from(65536, true) <= 65536);
    }

    #[test]
    fn sizes_are_learnt_apart() {
        let mut copy_policy = CopyPolicy::default();
        run(&mut copy_policy, SIZES[0], (2000, 1000), 2 * u32::from(PERIOD));
        run(&mut copy_policy, SIZES[1], (600, 1000), 2 * u32::from(PERIOD));
        assert!(streams(&copy_policy, SIZES[0].0) && !streams(&copy_policy, SIZES[1].0));
        assert_eq!(copy_policy.stream_from(4096, false), usize::MAX, "its first trial");
    }
}
