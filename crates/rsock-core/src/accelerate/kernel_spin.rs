//! Waits for connections of one host that are on TCP yet: for a moment a thread asks the kernel
//! without waiting, and sleeps only then.
//!
//! To put a thread to sleep and to wake it takes longer than all else that kernel TCP does for a
//! small message on one host. But each question is a system call, and a peer that computes, or is
//! far away, does not answer within the moment. So only waits that follow each other closely ask
//! first, in a process that has made a connection within its host a moment ago, and only as long
//! as that pays off.

#![forbid(unsafe_code)]

use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::tcp_socket::is_nonblocking;
use crate::config::environment;
use crate::engine::cpu_contention::{CPU_CONTENTION, CpuContention};
use crate::engine::{longest_spin, offer_cpu};
use crate::interrupt::{self, Restart, Watch};
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a thread asks at most, unless `RSOCK_SPIN_US` is less.
const LONGEST: Duration = Duration::from_micros(40);
/// Waits are close if no more than this lies between the beginnings of two. Nanoseconds.
const CLOSE_NS: u64 = 300_000;
/// Close waits before one that asks first; after each that has asked in vain, twice as many.
const FIRST_TRY: u32 = 4;
const LAST_TRY: u32 = 1024;
/// What one wait that has asked in vain costs, where one that has got an answer earns 1: of five
/// that ask, four have to help.
const IN_VAIN: u32 = 4;
const MOST_CREDIT: u32 = 2 * IN_VAIN;
/// A wait with a shorter limit does not ask.
const SHORTEST_LIMIT: Duration = Duration::from_millis(1);
/// Questions between two that offer the CPU to other threads.
const BURST: u32 = 4;
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
    #[inline]
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

/// Notes that this process has made or accepted the connection of `fd`, if rsock is not switched
/// off.
#[inline]
pub fn note_connection(fd: BorrowedFd<'_>) {
    if environment::is_enabled() {
        RECENT.note(fd, sys::tick());
    }
}

thread_local! {
    /// What the thread has learned of receives, between which it may wait for events.
    static OF_RECEIVES: KernelSpin = const { KernelSpin::new() };
    static OF_EVENTS: KernelSpin = const { KernelSpin::new() };
}

/// What a thread has learned of its waits.
struct KernelSpin {
    /// When the last wait began.
    began_ns: Cell<u64>,
    /// Close waits since one asked first.
    n_close: Cell<u32>,
    /// By how often the number of close waits before the next that asks has doubled.
    n_doublings: Cell<u32>,
    /// As long as this is not 0, all close waits ask first.
    credit: Cell<u32>,
}

impl KernelSpin {
    const fn new() -> Self {
        Self {
            began_ns: Cell::new(0),
            n_close: Cell::new(0),
            n_doublings: Cell::new(0),
            credit: Cell::new(0),
        }
    }

    /// Notes a wait that begins at `now`. Whether it should ask first.
    fn is_due(&self, now: u64) -> bool {
        let is_close = now.wrapping_sub(self.began_ns.replace(now)) <= CLOSE_NS;
        if !is_close {
            self.n_close.set(0);
            return false;
        }
        if self.credit.get() != 0 {
            return true;
        }
        let tries_after = (FIRST_TRY << self.n_doublings.get()).min(LAST_TRY);
        let n = self.n_close.get() + 1;
        let is_due = n >= tries_after;
        self.n_close.set(if is_due { 0 } else { n });
        is_due
    }

    fn learn(&self, has_helped: bool) {
        let credit = self.credit.get();
        if has_helped {
            self.credit.set((credit + 1).min(MOST_CREDIT));
            if credit == MOST_CREDIT {
                self.n_doublings.set(0);
            }
            return;
        }
        self.credit.set(credit.saturating_sub(IN_VAIN));
        if credit <= IN_VAIN {
            self.n_doublings.set((self.n_doublings.get() + 1).min(LAST_TRY.ilog2()));
        }
    }
}

/// How asking without waiting ended.
#[derive(Debug)]
enum Asked<R> {
    /// With an answer.
    Answer(R),
    /// Signal handlers have run meanwhile, which this has watched.
    Interrupted(Watch),
    /// Without an answer: the caller should sleep.
    Nothing,
}

/// Receives by `receive`, which does not wait, what comes to `fd` within a moment. `None` if the
/// call should sleep, as it would have to without this. `fd` looks the socket up for each system
/// call: another thread may close its number meanwhile.
pub fn recv_before_sleep<'a>(
    fd: impl Fn() -> Result<BorrowedFd<'a>, Errno>,
    mut receive: impl FnMut(BorrowedFd<'_>) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let mut may_wait = false;
    let asked = OF_RECEIVES.with(|spin| {
        spin.ask_at(sys::nanos(), || {
            let received = fd().and_then(&mut receive);
            if received != Err(Errno::AGAIN) {
                return Some(received);
            }
            may_wait = may_wait || fd().is_ok_and(|fd| !is_nonblocking(fd));
            (!may_wait).then_some(received)
        })
    });
    match asked {
        Asked::Answer(received) => Some(received),
        Asked::Interrupted(mut watch) => {
            let limit = |fd| sockopt::socket_timeout(fd, Timeout::Recv).ok().flatten();
            let restart = Restart::of(fd().ok().and_then(limit).is_none());
            let ended = watch.after_sleep(Err(Errno::INTR.into()), restart).is_err();
            ended.then_some(Err(Errno::INTR))
        }
        Asked::Nothing => None,
    }
}

/// Asks `ask`, which does not wait, for events that come within a moment, before a wait for `left`,
/// or without a limit. `None` if the call should sleep, as it would have to without this.
///
/// # Errors
/// `EINTR` if a signal handler has run.
pub fn events_before_sleep<R>(
    left: Option<Duration>,
    ask: impl FnMut() -> Option<R>,
) -> Option<Result<R, Errno>> {
    if left.is_some_and(|left| left < SHORTEST_LIMIT) {
        return None;
    }
    match OF_EVENTS.with(|spin| spin.ask_at(sys::nanos(), ask)) {
        Asked::Answer(answer) => Some(Ok(answer)),
        // A wait for events is never restarted: see signal(7).
        Asked::Interrupted(_) => Some(Err(Errno::INTR)),
        Asked::Nothing => None,
    }
}

impl KernelSpin {
    /// Asks within a wait that begins at `now`, if this thread should.
    fn ask_at<R>(&self, now: u64, ask: impl FnMut() -> Option<R>) -> Asked<R> {
        let longest = longest_spin(LONGEST).min(LONGEST);
        let has_local = RECENT.has_local(sys::tick());
        let may_ask = !longest.is_zero() && has_local && !interrupt::is_in_handler();
        if !may_ask || !self.is_due(now) || CPU_CONTENTION.is_present() {
            return Asked::Nothing;
        }
        self.ask(&CPU_CONTENTION, now, longest, ask)
    }

    /// Asks for up to `longest` from `began` on.
    fn ask<R>(
        &self,
        contention: &CpuContention,
        began: u64,
        longest: Duration,
        mut ask: impl FnMut() -> Option<R>,
    ) -> Asked<R> {
        let watch = Watch::begin();
        if watch.has_fired() {
            // The thread is being cancelled, which the system call that waits looks after.
            return Asked::Nothing;
        }
        // What is there already says nothing about waits.
        if let Some(answer) = ask() {
            return Asked::Answer(answer);
        }
        let mut is_last = false;
        let answer = loop {
            let answer = (0..BURST).find_map(|_| ask());
            if is_last || answer.is_some() || watch.has_fired() {
                break answer;
            }
            // Another thread that wants this CPU may be the peer, which has answered then.
            let is_wanted = offer_cpu(Some(contention));
            let elapsed = Duration::from_nanos(sys::nanos().wrapping_sub(began));
            is_last = is_wanted || elapsed >= longest;
        };
        if let Some(answer) = answer {
            self.learn(true);
            return Asked::Answer(answer);
        }
        if interrupt::is_cancelled() || !watch.has_fired() {
            self.learn(false);
            return Asked::Nothing;
        }
        Asked::Interrupted(watch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerate::tcp_socket::kernel_recv;
    use rustix::net::RecvFlags;
    use std::io::IoSliceMut;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    const NOW: u64 = 1 << 40;

    fn with_credit(credit: u32) -> KernelSpin {
        let credit = Cell::new(credit);
        KernelSpin { began_ns: Cell::new(NOW), credit, ..KernelSpin::new() }
    }

    /// A wait that asks for a moment which is over at once.
    fn ask<R>(spin: &KernelSpin, ask: impl FnMut() -> Option<R>) -> Asked<R> {
        spin.ask(&CpuContention::new(), sys::nanos(), Duration::ZERO, ask)
    }

    #[test]
    fn close_waits_ask_now_and_then_and_each_time_while_that_helps() {
        let (spin, mut now) = (with_credit(0), NOW);
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
        for _ in 0..=MOST_CREDIT {
            spin.learn(true);
            assert_eq!(waits_until_due(&spin, CLOSE_NS), Some(1));
        }
        for _ in 0..MOST_CREDIT / IN_VAIN {
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
        let (spin, mut n) = (with_credit(1), 0);
        let second = || {
            n += 1;
            (n == 2).then_some(n)
        };
        assert!(matches!(ask(&spin, second), Asked::Answer(2)));
        assert_eq!(spin.credit.get(), 2);
    }

    #[test]
    fn what_is_there_at_once_does_not_count_and_nothing_does() {
        let spin = with_credit(1);
        assert!(matches!(ask(&spin, || Some(1)), Asked::Answer(1)));
        assert_eq!(spin.credit.get(), 1);
        assert!(matches!(ask(&spin, || None::<u8>), Asked::Nothing));
        assert_eq!(spin.credit.get(), 0);
    }

    #[test]
    fn a_handler_that_runs_meanwhile_ends_the_moment() {
        // The last question comes after the CPU was offered, when handlers run.
        for at in [1, 1 + BURST, 1 + 2 * BURST] {
            let mut n = 0;
            let asked = ask(&with_credit(1), || {
                n += 1;
                if n == at {
                    interrupt::note_handler(false);
                }
                None::<u8>
            });
            assert!(matches!(asked, Asked::Interrupted(watch) if watch.must_end()), "{at}");
        }
    }

    #[test]
    fn a_thread_that_is_being_cancelled_goes_on_to_the_call_that_waits() {
        interrupt::note_cancellation();
        assert!(matches!(ask(&with_credit(1), || Some(1)), Asked::Nothing));
        assert!(interrupt::take_cancellation());
        let asked = ask(&with_credit(1), || {
            interrupt::note_cancellation();
            None::<u8>
        });
        assert!(matches!(asked, Asked::Nothing));
        assert!(interrupt::take_cancellation());
    }

    #[test]
    fn a_socket_that_does_not_block_is_answered_at_once() {
        let (socket, _peer) = UnixStream::pair().expect("pair");
        socket.set_nonblocking(true).expect("set");
        RECENT.local_at.store(sys::tick().max(1), Ordering::Relaxed);
        OF_RECEIVES.with(|spin| {
            spin.credit.set(1);
            spin.began_ns.set(sys::nanos());
        });
        let mut n = 0;
        let received = recv_before_sleep(
            || Ok(socket.as_fd()),
            |fd| {
                n += 1;
                kernel_recv(fd, &mut [IoSliceMut::new(&mut [0])], RecvFlags::DONTWAIT)
            },
        );
        // Nothing was asked if this thread was delayed for longer than waits are close.
        assert!(matches!((n, received), (1, Some(Err(Errno::AGAIN))) | (0, None)), "{n}");
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
