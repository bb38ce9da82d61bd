//! What is left when things end: nothing.

use super::super::barrier::CALLS;
use super::*;
use crate::own_fd;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn queue_pairs_and_regions_leave_nothing_behind() {
    let _dog = Watchdog::new("leak");
    let ctx = SoftContext::open().expect("device");
    let (x, y) = linked_pair(&ctx).expect("link");
    let round = || {
        let (a, b) = (end(&ctx, &x, CAP), end(&ctx, &y, CAP));
        a.connect(b.qp.qp_num());
        b.connect(a.qp.qp_num());
        let to = (b.mr.addr(), b.mr.rkey());
        for len in [40, 4000] {
            let data = vec![1; len];
            let piece = [IoSlice::new(&data)];
            a.qp.post_copy(WrId(0), write_imm(&to, 0, 1), &piece, SendFlags::empty())
                .expect("post");
        }
        // Unread: they go with the lane.
        assert!(b.cq.is_ready());
    };
    round();
    let settled = (x.in_use(), y.in_use());
    for _ in 0..200 {
        round();
    }
    assert_eq!((x.in_use(), y.in_use()), settled);
}

#[test]
fn an_offer_that_waits_for_its_reply_holds_no_low_descriptor() {
    let ctx = SoftContext::open().expect("device");
    let offer = ctx.offer().expect("offer");
    let (_, fds) = offer.hello();
    let numbers = fds.map(|fd| fd.as_raw_fd());
    assert_eq!(numbers.map(own_fd::is_own), [true; 2], "{numbers:?}");
}

#[test]
fn a_lane_stays_until_its_sender_detaches() {
    let ctx = SoftContext::open().expect("device");
    let (x, y) = linked_pair(&ctx).expect("link");
    let before = y.in_use();
    let (a, b) = (end(&ctx, &x, CAP), end(&ctx, &y, CAP));
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    drop(b);
    // `a` has not noticed, and may be inside a post.
    assert_ne!(y.in_use(), before);
    assert_eq!(a.wait().status, WcStatus::WR_FLUSH);
    drop(end(&ctx, &y, CAP));
    assert_eq!(y.in_use(), before);
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn memory_is_not_used_again_under_a_copy() {
    let (a, b) = pair();
    let mr = b.pd.alloc_mr(1 << 20, Access::all()).expect("mr");
    let before = b.link.in_use();
    a.qp.set_busy(true);
    drop(mr);
    assert_eq!(b.link.in_use(), before, "the peer may be writing");
    assert!(!b.cq.exclusively(&mut || panic!("the peer may be writing")));
    a.qp.set_busy(false);
    assert!(b.cq.exclusively(&mut || {}));
    drop(b.pd.alloc_mr(4096, Access::all()).expect("mr"));
    assert!(b.link.in_use() < before);
}

#[test]
fn a_peer_that_seems_busy_for_ever_costs_the_end_of_a_region_one_barrier() {
    let (a, b) = pair();
    let mut memory = [0u8; 4096];
    // SAFETY: the memory outlives the region, and nothing else uses it meanwhile.
    let mr = unsafe { b.pd.reg_mr(memory.as_mut_ptr(), memory.len(), Access::all()) };
    let mr = mr.or_else(|_| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: as above.
        unsafe { b.pd.reg_mr(memory.as_mut_ptr(), memory.len(), access) }
    });
    a.qp.set_busy(true);
    CALLS.set(0);
    drop(mr.expect("a region"));
    assert!(CALLS.get() <= 1, "{} barriers", CALLS.get());
    a.qp.set_busy(false);
}

#[test]
fn an_idle_link_is_removed_after_its_peer_died_without_a_new_link() {
    let ctx = SoftContext::open().expect("device");
    let (x, y) = linked_pair(&ctx).expect("link");
    let used = linked_pair(&ctx).expect("another link");
    drop(end(&ctx, &x, CAP));
    let idle = Arc::downgrade(&x);
    y.hang_up();
    drop((x, y));
    // Other tests make links, too; each stream that is made or closed checks one of them.
    for _ in 0..10_000 {
        if idle.strong_count() == 0 {
            return;
        }
        drop(end(&ctx, &used.0, CAP));
    }
    panic!("its memory is kept");
}

#[test]
fn connecting_to_a_queue_pair_of_a_process_that_has_died_reports_its_death() {
    let _dog = Watchdog::new("a dead peer");
    let ctx = SoftContext::open().expect("device");
    let (x, y) = linked_pair(&ctx).expect("link");
    let a = end(&ctx, &x, CAP);
    y.hang_up();
    let connected = a.qp.ready_to_receive(&x, QpNum(1 << 20));
    assert!(matches!(connected, Err(Error::PeerGone)), "{connected:?}");
}

#[test]
fn paused_writers_are_woken_when_the_region_is_resumed() {
    let _dog = Watchdog::new("paused region");
    let (a, b) = pair();
    let to = (b.mr.addr(), b.mr.rkey());
    let data = [5u8; 100];
    let piece = [IoSlice::new(&data)];
    let op = write_imm(&to, 0, 1);
    let ran = b.cq.exclusively(&mut || {
        let refused = a.qp.post_copy(WrId(0), op, &piece, SendFlags::empty());
        assert_eq!(refused, Err(PostError::QueueFull));
        assert_eq!(a.qp.post_write_imm(WrId(0), to, 1, &data), Err(PostError::QueueFull));
        assert!(!a.cq.is_ready());
    });
    assert!(ran && a.cq.is_ready());
    assert_eq!(a.cq.park(None), Parked::Woken);
    assert_eq!(a.cq.poll(&mut [Completion::BLANK; 1]), 0);
    a.qp.post_copy(WrId(0), op, &piece, SendFlags::empty()).expect("post");
    assert_eq!(b.wait().len, 100);
}

#[test]
fn a_message_without_payload_waits_for_the_end_of_a_short_pause() {
    let _dog = Watchdog::new("a short pause");
    let (a, b) = pair();
    let to = (b.mr.addr(), b.mr.rkey());
    for i in 0..100 {
        let (paused, resumed) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                paused.wait();
                let post =
                    || a.qp.post_copy(WrId(0), write_imm(&to, 0, i), &[], SendFlags::empty());
                // The first post may give up if the pause takes long. One after it does not.
                while post() == Err(PostError::QueueFull) {
                    thread::yield_now();
                }
                assert!(resumed.load(Ordering::Acquire), "the owner keeps the sender out");
            });
            let ran = b.cq.exclusively(&mut || {
                paused.wait();
                thread::yield_now();
                b.cq.punch();
                resumed.store(true, Ordering::Release);
            });
            assert!(ran);
            sender.join().expect("the sender");
        });
        assert_eq!(b.wait().imm, i);
        b.qp.post_recv_empty(WrId(0)).expect("receive");
    }
}

#[test]
fn a_queue_pair_is_not_dropped_while_its_lane_is_paused() {
    let _dog = Watchdog::new("a drop during a pause");
    let (a, b) = pair();
    let (cq, qp) = (Arc::clone(&b.cq), b.qp);
    let (paused, is_dropped) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            paused.wait();
            drop(qp);
            is_dropped.store(true, Ordering::Release);
        });
        let ran = cq.exclusively(&mut || {
            paused.wait();
            for _ in 0..1000 {
                thread::yield_now();
                assert!(!is_dropped.load(Ordering::Acquire), "its lane may be another's");
            }
        });
        assert!(ran);
    });
    assert!(!cq.exclusively(&mut || panic!("the lane is gone")));
    drop(a);
}

#[test]
fn an_empty_lane_that_was_given_back_takes_messages_again() {
    let _dog = Watchdog::new("a lane that was given back");
    let (a, b) = pair();
    let to = (b.mr.addr(), b.mr.rkey());
    let data = [5u8; 3];
    let send = |imm| {
        let op = write_imm(&to, 0, imm);
        a.qp.post_copy(WrId(0), op, &[IoSlice::new(&data)], SendFlags::empty()).expect("post");
    };
    // More than a lane has slots, so that some are given back in their second round.
    for i in 0..100 {
        assert!(b.cq.exclusively(&mut || b.cq.punch()));
        send(i);
        // A lane that has a message keeps it.
        assert!(b.cq.exclusively(&mut || b.cq.punch()));
        assert_eq!(b.wait().imm, i);
        b.qp.post_recv_empty(WrId(0)).expect("receive");
    }
}

#[test]
fn a_dead_peer_ends_everything() {
    let _dog = Watchdog::new("death");
    let ctx = SoftContext::open().expect("device");
    let (x, y) = linked_pair(&ctx).expect("link");
    let (a, b) = (end(&ctx, &x, CAP), end(&ctx, &y, CAP));
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    let to = (a.mr.addr(), a.mr.rkey());
    b.qp.post_copy(WrId(0), write_imm(&to, 0, 9), &[IoSlice::new(&[1])], SendFlags::empty())
        .expect("post");
    assert!(x.probe());
    // What the system does when the process is killed: its sockets close, and nothing else.
    y.hang_up();
    let woken = thread::scope(|s| {
        let sleeper = s.spawn(|| {
            assert_eq!(a.wait().imm, 9, "what had arrived is received");
            a.wait()
        });
        while x.probe() {}
        sleeper.join().expect("thread")
    });
    assert_eq!(woken.status, WcStatus::WR_FLUSH);
    assert_eq!((a.qp.state(), x.is_alive()), (QpState::Err, false));
    assert!(matches!(ctx.alloc_pd(&x), Err(Error::PeerGone)));
    assert!(ctx.link_by_id(x.id()).is_none_or(|l| Arc::ptr_eq(&l, &y)));
}

#[test]
fn what_a_peer_had_consumed_is_known_after_its_end() {
    let _dog = Watchdog::new("consumed");
    let ctx = SoftContext::open().expect("device");
    let (x, y) = linked_pair(&ctx).expect("link");
    let (a, b) = (end(&ctx, &x, CAP), end(&ctx, &y, CAP));
    assert_eq!(a.qp.consumed_by_peer(), Some(0), "not connected yet");
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    b.qp.note_consumed(40);
    b.qp.note_consumed(2);
    assert_eq!((a.qp.consumed_by_peer(), b.qp.consumed_by_peer()), (Some(42), Some(0)));
    a.qp.note_consumed(u64::MAX);
    a.qp.note_consumed(1);
    assert_eq!(b.qp.consumed_by_peer(), Some(u64::MAX));
    drop(b);
    assert_eq!(a.wait().status, WcStatus::WR_FLUSH);
    // Its lane may be another's by now.
    let other = end(&ctx, &y, CAP);
    other.qp.note_consumed(7);
    assert_eq!(a.qp.consumed_by_peer(), Some(42));
}

#[test]
fn a_forked_child_goes_on_with_what_it_inherits() {
    let _dog = Watchdog::new("fork");
    let (a, b) = pair();
    let to = (b.mr.addr(), b.mr.rkey());
    let send = |imm: u32| {
        let data = [imm as u8; 20];
        let piece = [IoSlice::new(&data)];
        a.qp.post_copy(WrId(0), write_imm(&to, 0, imm), &piece, SendFlags::empty()).expect("post");
    };
    let receive = |imm: u32| {
        let wc = b.wait();
        let mut seen = [0; 20];
        b.mr.copy_out(0, &mut seen);
        assert_eq!((wc.status, wc.imm, seen), (WcStatus::SUCCESS, imm, [imm as u8; 20]));
        b.qp.post_recv_empty(wc.id).expect("post");
    };
    send(1);
    family::note_fork();
    // SAFETY: the child uses atomics and family locks, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            receive(1);
            send(2);
            receive(2);
            send(3);
            let mine = SoftContext::open().expect("device");
            assert!(matches!(mine.alloc_pd(&a.link), Err(Error::Invalid(_))));
            assert!(a.pd.alloc_mr(10, Access::all()).is_err());
        }));
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(i32::from(ok.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    receive(3);
    send(4);
    receive(4);
    // Shared with the child from here on: dropping one handle must not end it for the other
    // process.
    let number = a.qp.qp_num();
    drop(a);
    assert_eq!((b.qp.state(), b.cq.is_ready()), (QpState::Rts, false), "{number:?}");
}
