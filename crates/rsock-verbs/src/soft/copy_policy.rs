//! Decides which copies use streaming stores, by measuring the machine while it runs.
//!
//! The two CPUs of a connection may or may not share a cache, and the host of a virtual machine
//! changes that within minutes. For payloads of middle size this decides which kind of store is
//! faster. The cost of a single copy does not show it, because the slower end hides it from the
//! other; so now and then a trial runs both kinds, one after the other, and compares their
//! throughput.

/// The choice for one direction between two queue pairs. `Copy`, because it is part of a queue
/// pair's state in family memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyPolicy {
    /// Messages of middle size so far, modulo [`PERIOD`].
    turn: u16,
    /// Whether payloads of middle size use streaming stores.
    streams_middle: bool,
    /// Lines copied since `start`, a reading of the time-stamp counter.
    lines: u32,
    start: u64,
    /// Cycles of a line, times [`SCALE`], in the last trial of the other way.
    trial: u64,
}

/// From these sizes on copies stream, while the peer only receives. PERF: Gbit/s of a 512 KiB ring
/// under 64-byte slots on an EPYC, streaming against ordinary stores. One cache: 33 to 46 at 1 KiB,
/// 46 to 47 at 1.4 KiB, 94 to 63 at 4 KiB. Two: 5 to 6 at 256 B, 12 to 9 at 512 B, 21 to 12 at 1
/// KiB, 59 to 16 at 4 KiB.
const LARGE_FROM: usize = 1408;
const MIDDLE_FROM: usize = 512;

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
            ANSWERS_FROM
        } else if (MIDDLE_FROM..LARGE_FROM).contains(&len) {
            self.choose_middle(len, now)
        } else {
            LARGE_FROM
        }
    }

    #[inline(never)]
    fn choose_middle(&mut self, len: usize, now: impl Fn() -> u64) -> usize {
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
            END_AGAIN if self.trial * 10 < self.cost(now()) * 9 => self.streams_middle ^= true,
            _ => self.lines = self.lines.saturating_add(u32::try_from(len / 64).unwrap_or(0)),
        }
        let streams = self.streams_middle ^ (turn < TRIAL);
        if streams { MIDDLE_FROM } else { LARGE_FROM }
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

    /// Sends `messages` of 1 KiB on a machine where a message takes `ordinary` cycles with ordinary
    /// stores and `streaming` with streaming ones, under a window of 112 messages.
    fn run(copy_policy: &mut CopyPolicy, ordinary: u64, streaming: u64, messages: u32) {
        let clock = Cell::new(0);
        let mut under_way = std::collections::VecDeque::new();
        for _ in 0..messages {
            let from = copy_policy.choose_middle(1024, || clock.get());
            under_way.push_back(if from == MIDDLE_FROM { streaming } else { ordinary });
            if under_way.len() > 112 {
                clock.set(clock.get() + under_way.pop_front().unwrap_or(0));
            }
        }
    }

    #[test]
    fn the_choice_follows_the_machine_in_both_directions() {
        let mut copy_policy = CopyPolicy::default();
        for _ in 0..3 {
            run(&mut copy_policy, 2000, 1000, 2 * u32::from(PERIOD));
            assert!(copy_policy.streams_middle);
            run(&mut copy_policy, 600, 1000, 2 * u32::from(PERIOD));
            assert!(!copy_policy.streams_middle);
        }
    }

    #[test]
    fn equal_costs_do_not_change_the_choice() {
        for streams_middle in [false, true] {
            let mut copy_policy = CopyPolicy { streams_middle, ..CopyPolicy::default() };
            run(&mut copy_policy, 1000, 1000, 5 * u32::from(PERIOD));
            assert_eq!(copy_policy.streams_middle, streams_middle);
        }
    }

    #[test]
    fn small_large_and_answered_messages_do_not_depend_on_the_trials() {
        let mut copy_policy =
            CopyPolicy { streams_middle: true, turn: TRIAL, ..CopyPolicy::default() };
        assert!(copy_policy.stream_from(MIDDLE_FROM - 1, false) > MIDDLE_FROM - 1);
        assert!(copy_policy.stream_from(LARGE_FROM, false) <= LARGE_FROM);
        assert!(copy_policy.stream_from(1024, false) <= 1024);
        assert!(copy_policy.stream_from(4096, true) > 4096);
        assert!(copy_policy.stream_from(65536, true) <= 65536);
    }
}
