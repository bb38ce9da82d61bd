//! Sleeping on completion queues: parking, bells, and many queues at once.

use super::*;
use crate::device::{Bell, Parked};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
}

/// Blocks until `fd` is readable; the watchdog bounds it.
fn wait_readable(fd: impl AsFd) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    while poll(&mut fds, None).expect("poll") == 0 {}
}

/// A parked thread wakes for each completion, however the two interleave, and a bounded sleep ends.
pub fn parked_threads_wake_for_completions<F: Fixture>(f: &F) {
    const ROUNDS: u64 = 3000;
    let _dog = Watchdog::new("park");
    let [a, b] = connected(f);
    assert_eq!(b.cq.park(Some(Duration::from_millis(1))), Parked::TimedOut);
    std::thread::scope(|s| {
        let (a, b) = (&a, &b);
        for end in [a, b] {
            end.post_recv(0, &[]).expect("receive");
        }
        let play = |me: &End<F::Backend>, first: bool| {
            for i in 0..ROUNDS {
                let send = || me.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
                if first {
                    send();
                }
                let mut out = [Completion::BLANK; 1];
                while me.cq.poll(&mut out) == 0 {
                    assert_eq!(me.cq.park(None), Parked::Woken);
                }
                assert_received(&out[0], i, WcOp::Recv, 0);
                me.post_recv(i + 1, &[]).expect("receive");
                if !first {
                    send();
                }
            }
        };
        s.spawn(move || play(b, false));
        play(a, true);
    });
}

/// A thread that waits for completions which other threads take from the queue: the epoch shows
/// that they were taken.
pub fn wake_ups_before_the_sleep_are_not_lost<F: Fixture>(f: &F) {
    const ROUNDS: u32 = 2000;
    let _dog = Watchdog::new("epoch");
    let [a, _b] = connected(f);
    let epoch = a.cq.wake_epoch();
    a.cq.wake_waiters();
    assert_eq!(a.cq.park_since(epoch, None), Parked::Woken);
    let (ping, pong) = (AtomicU32::new(0), AtomicU32::new(0));
    let wait_for = |word: &AtomicU32, value| loop {
        let epoch = a.cq.wake_epoch();
        if word.load(Ordering::Acquire) == value {
            break;
        }
        a.cq.park_since(epoch, None);
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 1..=ROUNDS {
                wait_for(&ping, i);
                pong.store(i, Ordering::Release);
                a.cq.wake_waiters();
            }
        });
        for i in 1..=ROUNDS {
            ping.store(i, Ordering::Release);
            a.cq.wake_waiters();
            wait_for(&pong, i);
        }
    });
}

/// An armed bell rings for a completion; a ready queue refuses to arm; `disarm` takes it back.
pub fn bells_ring_for_completions<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("bells");
    let [a, b] = connected(f);
    let bell = b.endpoint.ctx.create_bell().expect("bell");
    let other = b.endpoint.ctx.create_bell().expect("bell");
    for i in 0..20 {
        b.post_recv(i, &[]).expect("receive");
        assert!(b.cq.arm(&bell) && b.cq.arm(&other));
        a.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
        wait_readable(&bell);
        wait_readable(&other);
        assert!(!b.cq.arm(&bell), "the queue is ready");
        b.cq.disarm(&bell);
        b.cq.disarm(&other);
        bell.drain();
        other.drain();
        assert!(!is_readable(&bell));
        assert_received(&b.next(&a), i, WcOp::Recv, 0);
    }
    // Other threads of the process ring too.
    assert!(b.cq.arm(&bell));
    b.cq.wake_waiters();
    wait_readable(&bell);
    b.cq.disarm(&bell);
    bell.drain();
    b.post_recv(50, &[]).expect("receive");
    a.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
    assert_received(&b.next(&a), 50, WcOp::Recv, 0);
    assert!(!is_readable(&bell), "disarmed");
    // A device may have room for few bells; each bell that was accepted is rung.
    let bells: Vec<_> = (0..40).map(|_| b.endpoint.ctx.create_bell().expect("bell")).collect();
    let armed: Vec<_> = bells.iter().filter(|bell| b.cq.arm(bell)).collect();
    assert!(!armed.is_empty());
    b.cq.wake_waiters();
    armed.iter().for_each(wait_readable);
    bells.iter().for_each(|bell| b.cq.disarm(bell));
    assert!(b.cq.arm(&bell));
    b.cq.disarm(&bell);
}

/// The device may implement many completion queues by one: each still gives the completions of its
/// own queue pair alone, also to a sleeper, and queue pairs come and go meanwhile.
pub fn many_queue_pairs_complete_each_in_its_own_queue<F: Fixture>(f: &F) {
    const PAIRS: usize = 20;
    let _dog = Watchdog::new("many queue pairs");
    let setup = Setup::default();
    let [a, b] = setup.build(f);
    let make = |end: &End<F::Backend>| {
        let made = end.pd.create_qp(&end.endpoint.ctx, setup.cap).expect("qp");
        made.1.init(setup.qp_access).expect("init");
        made
    };
    let from: Vec<_> = (0..PAIRS).map(|_| make(&a)).collect();
    let mut to: Vec<_> = (0..PAIRS).map(|_| make(&b)).collect();
    for ((_, x), (_, y)) in from.iter().zip(&to) {
        x.ready_to_receive(&a.endpoint.path, y.qp_num()).expect("rtr");
        x.ready_to_send().expect("rts");
        y.ready_to_receive(&b.endpoint.path, x.qp_num()).expect("rtr");
        y.ready_to_send().expect("rts");
    }
    for round in 0..50u64 {
        to.iter().for_each(|(_, qp)| qp.post_recv_empty(WrId(round)).expect("receive"));
        std::thread::scope(|s| {
            s.spawn(|| {
                for (cq, qp) in &to {
                    let mut out = [Completion::BLANK; 2];
                    while cq.poll(&mut out) == 0 {
                        cq.park(Some(Duration::from_secs(1)));
                    }
                    assert_received(&out[0], round, WcOp::Recv, 0);
                    assert_eq!(out[0].qp_num, qp.qp_num());
                    assert_eq!(cq.poll(&mut out), 0, "one message each");
                }
            });
            // In the other order than the sleeper's.
            for (_, qp) in from[..to.len()].iter().rev() {
                qp.post_copy(WrId(0), SendOp::Send, &[], SendFlags::empty()).expect("post");
            }
        });
        // Now and then one is removed.
        if round % 10 == 9 {
            drop(to.pop());
        }
    }
}
