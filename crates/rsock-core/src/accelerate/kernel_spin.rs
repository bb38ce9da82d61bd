//! Waits for connections of one host that are on TCP yet: for a moment a thread asks the kernel
//! without waiting, and sleeps only then.
//!
//! To put a thread to sleep and to wake it takes longer than all else that kernel TCP does for a
//! small message on one host. But each question is a system call, and a peer that computes, or is
//! far away, does not answer within the moment. So only waits that follow each other closely ask
//! first, in a process that has made a connection within its host a moment ago, and only as long
//! as that pays off.

use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::tcp_socket::is_nonblocking;
use crate::config::environment;
use crate::engine::cpu_contention::{CPU_CONTENTION, CpuContention, TIME_SLICE};
use crate::interrupt::{self, Watch};
use crate::sys;
use rsock_verbs::per_thread::ZeroInThread;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// How long a thread asks at most, unless `RSOCK_SPIN_US` says otherwise. Nanoseconds.
const LONGEST_NS: u64 = 40_000;
/// Waits are close if no more than this lies between the beginnings of two. Nanoseconds.
const CLOSE_NS: u64 = 300_000;
/// Close waits before one that asks first; after each that has asked in vain, twice as many.
const FIRST_TRY: u32 = 4;
const LAST_TRY: u32 = 1024;
/// So many times in vain in a row end a time in which all close waits ask first.
const PATIENCE: u32 = 4;
/// Questions between two that offer the CPU to other threads.
const BURST: u32 = 4;
/// A `sched_yield` that takes so long has let another thread run. Nanoseconds.
const SWITCHES_NS: u64 = 3_000;
/// For how long after a connection within this host waits ask first. Milliseconds.
const LOCAL_FOR: u32 = 100;

/// The connections of this process.
static RECENT: Recent = Recent { looked_at: AtomicU32::new(0), local_at: AtomicU32::new(0) };

/// Connections that were made a moment ago. Ticks; 0 for none.
struct Recent {
    /// When one was looked at.
    looked_at: AtomicU32,
    /// When one within this host was found.
    local_at: AtomicU32,
}

impl Recent {
    /// Notes the connection of `fd`. Looks at one of them in each tick.
    fn note(&self, fd: BorrowedFd<'_>, tick: u32) {
        let now = tick.max(1);
        if self.looked_at.swap(now, Ordering::Relaxed) != now
            && FourTuple::of(fd).ok().flatten().is_some_and(|tuple| tuple.is_within_host())
        {
            self.local_at.store(now, Ordering::Relaxed);
        }
    }

    fn has_local(&self, tick: u32) -> bool {
        let at = self.local_at.load(Ordering::Relaxed);
        at != 0 && tick.max(1).wrapping_sub(at) <= LOCAL_FOR
    }
}

/// Notes that this process has made or accepted the connection of `fd`.
pub fn note_connection(fd: BorrowedFd<'_>) {
    RECENT.note(fd, sys::tick());
}

rsock_verbs::per_thread! {
    /// Of the calling thread.
    STATE: KernelSpin, "kernel_spin"
}

/// What a thread has learned of its waits.
struct KernelSpin {
    /// When the last wait began.
    began_ns: Cell<u64>,
    /// Close waits since one asked first.
    n_close: Cell<u32>,
    /// By how often the number of close waits before the next that asks has doubled.
    n_doublings: Cell<u32>,
    /// How many may still ask in vain before they are tried rarely.
    patience: Cell<u32>,
}

// SAFETY: numbers, of which zero is a value; no drop.
unsafe impl ZeroInThread for KernelSpin {}

impl KernelSpin {
    /// Notes a wait that begins at `now`. Whether it should ask first.
    fn is_due(&self, now: u64) -> bool {
        let is_close = now.wrapping_sub(self.began_ns.replace(now)) <= CLOSE_NS;
        if !is_close {
            self.n_close.set(0);
            return false;
        }
        if self.patience.get() != 0 {
            return true;
        }
        let tries_after = (FIRST_TRY << self.n_doublings.get()).min(LAST_TRY);
        let n = self.n_close.get() + 1;
        let is_due = n >= tries_after;
        self.n_close.set(if is_due { 0 } else { n });
        is_due
    }

    fn learn(&self, has_helped: bool) {
        if has_helped {
            self.patience.set(PATIENCE);
            self.n_doublings.set(0);
            return;
        }
        let patience = self.patience.get();
        self.patience.set(patience.saturating_sub(1));
        if patience <= 1 {
            self.n_doublings.set((self.n_doublings.get() + 1).min(LAST_TRY.ilog2()));
        }
    }
}

/// By which handlers a wait was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupted {
    /// All of them asked for `SA_RESTART`.
    MayRestart,
    /// Some of them did not.
    MustEnd,
}

/// How asking without waiting ended.
#[derive(Debug)]
enum Asked<R> {
    /// With an answer.
    Answer(R),
    /// Signal handlers have run meanwhile.
    Interrupted(Interrupted),
    /// Without an answer: the caller should sleep.
    Nothing,
}

/// Receives by `receive`, which does not wait, what comes to `fd` within a moment. `None` if the
/// call should sleep, as it would have to without this.
pub fn recv_before_sleep(
    fd: BorrowedFd<'_>,
    mut receive: impl FnMut() -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let mut may_wait = false;
    let asked = ask_before_sleep(|| {
        let received = receive();
        if received != Err(Errno::AGAIN) {
            return Some(received);
        }
        may_wait = may_wait || !is_nonblocking(fd);
        (!may_wait).then_some(received)
    });
    match asked {
        Asked::Answer(received) => Some(received),
        Asked::Interrupted(Interrupted::MustEnd) => Some(Err(Errno::INTR)),
        Asked::Interrupted(Interrupted::MayRestart) | Asked::Nothing => None,
    }
}

/// Asks `ask`, which does not wait, for events that come within a moment. `None` if the call
/// should sleep, as it would have to without this.
///
/// # Errors
/// `EINTR` if a signal handler has run.
pub fn events_before_sleep<R>(ask: impl FnMut() -> Option<R>) -> Option<Result<R, Errno>> {
    match ask_before_sleep(ask) {
        Asked::Answer(answer) => Some(Ok(answer)),
        // A wait for events is never restarted: see signal(7).
        Asked::Interrupted(_) => Some(Err(Errno::INTR)),
        Asked::Nothing => None,
    }
}

fn ask_before_sleep<R>(ask: impl FnMut() -> Option<R>) -> Asked<R> {
    let longest = environment::spin_us().map_or(LONGEST_NS, |us| u64::from(us) * 1000);
    if longest == 0 || !RECENT.has_local(sys::tick()) || interrupt::is_in_handler() {
        return Asked::Nothing;
    }
    STATE.with(|state| state.ask(&CPU_CONTENTION, longest, sys::nanos(), ask))
}

impl KernelSpin {
    /// Asks for up to `longest` nanoseconds, if a wait that begins at `now` should.
    fn ask<R>(
        &self,
        contention: &CpuContention,
        longest: u64,
        now: u64,
        mut ask: impl FnMut() -> Option<R>,
    ) -> Asked<R> {
        if !self.is_due(now) || contention.is_present() {
            return Asked::Nothing;
        }
        let watch = Watch::begin();
        // What is there already says nothing about waits.
        if let Some(answer) = ask() {
            return Asked::Answer(answer);
        }
        let asked = loop {
            if let Some(answer) = (0..BURST).find_map(|_| ask()) {
                break Asked::Answer(answer);
            }
            if watch.has_fired() {
                let must_end = watch.must_end();
                let by = if must_end { Interrupted::MustEnd } else { Interrupted::MayRestart };
                return Asked::Interrupted(by);
            }
            let offered = sys::nanos();
            rustix::thread::sched_yield();
            let after = sys::nanos();
            let away = after.wrapping_sub(offered);
            if u128::from(away) >= TIME_SLICE.as_nanos() {
                contention.report();
            }
            if away >= SWITCHES_NS {
                // Another thread wants this CPU: it may be the peer, which has answered then.
                break ask().map_or(Asked::Nothing, Asked::Answer);
            }
            if after.wrapping_sub(now) >= longest {
                break Asked::Nothing;
            }
        };
        self.learn(matches!(asked, Asked::Answer(_)));
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn new() -> KernelSpin {
        let zero = || Cell::new(0);
        KernelSpin {
            began_ns: Cell::new(0),
            n_close: zero(),
            n_doublings: zero(),
            patience: zero(),
        }
    }

    /// One whose next wait at [`NOW`] is due.
    fn due() -> KernelSpin {
        KernelSpin { began_ns: Cell::new(NOW), patience: Cell::new(PATIENCE), ..new() }
    }

    const NOW: u64 = 1 << 40;

    /// A wait that begins now, of a moment that is over at once.
    fn ask<R>(spin: &KernelSpin, ask: impl FnMut() -> Option<R>) -> Asked<R> {
        spin.ask(&CpuContention::new(), 0, NOW, ask)
    }

    #[test]
    fn close_waits_ask_now_and_then_and_each_time_while_that_helps() {
        let (spin, mut now) = (new(), NOW);
        let mut waits_until_due = |spin: &KernelSpin, apart: u64| {
            (1..=4 * FIRST_TRY).find(|_| {
                now += apart;
                spin.is_due(now)
            })
        };
        assert_eq!(waits_until_due(&spin, CLOSE_NS + 1), None, "these are not close");
        assert_eq!(waits_until_due(&spin, CLOSE_NS), Some(FIRST_TRY));
        spin.learn(false);
        assert_eq!(waits_until_due(&spin, CLOSE_NS), Some(2 * FIRST_TRY));
        spin.learn(true);
        for _ in 0..PATIENCE {
            assert_eq!(waits_until_due(&spin, CLOSE_NS), Some(1));
            spin.learn(false);
        }
        assert_eq!(waits_until_due(&spin, CLOSE_NS), Some(2 * FIRST_TRY));
        for _ in 0..100 {
            spin.learn(false);
        }
        spin.n_close.set(LAST_TRY - 1);
        assert!(spin.is_due(spin.began_ns.get()), "it never stops to try");
    }

    #[test]
    fn an_answer_within_the_moment_is_returned_and_counts() {
        let spin = KernelSpin { patience: Cell::new(1), ..due() };
        let mut n = 0;
        let second = || {
            n += 1;
            (n == 2).then_some(n)
        };
        assert!(matches!(ask(&spin, second), Asked::Answer(2)));
        assert_eq!(spin.patience.get(), PATIENCE);
    }

    #[test]
    fn what_is_there_at_once_does_not_count_and_nothing_is_learned() {
        let spin = KernelSpin { patience: Cell::new(1), ..due() };
        assert!(matches!(ask(&spin, || Some(1)), Asked::Answer(1)));
        assert_eq!(spin.patience.get(), 1);
        assert!(matches!(ask(&spin, || None::<u8>), Asked::Nothing));
        assert_eq!(spin.patience.get(), 0);
    }

    #[test]
    fn a_wait_on_a_contended_machine_does_not_ask() {
        let contention = CpuContention::new();
        contention.report();
        let asked = due().ask(&contention, u64::MAX, NOW, || Some(1));
        // The pause may be over by now.
        assert!(matches!(asked, Asked::Nothing) || !contention.is_present());
    }

    #[test]
    fn a_handler_that_runs_meanwhile_ends_the_moment() {
        let asked = ask(&due(), || {
            interrupt::note_handler(false);
            None::<u8>
        });
        assert!(matches!(asked, Asked::Interrupted(Interrupted::MustEnd)));
    }

    #[test]
    fn a_connection_within_the_host_counts_for_a_while() {
        let recent = Recent { looked_at: AtomicU32::new(0), local_at: AtomicU32::new(0) };
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        recent.note(listener.as_fd(), 7);
        recent.note(client.as_fd(), 7);
        assert!(!recent.has_local(7), "one look in each tick");
        recent.note(client.as_fd(), u32::MAX);
        assert!(recent.has_local(u32::MAX) && recent.has_local(LOCAL_FOR - 1));
        assert!(!recent.has_local(LOCAL_FOR));
    }
}
