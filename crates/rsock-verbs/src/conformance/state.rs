//! The state machine, and what becomes of requests when it ends in the error state.

use super::*;
use crate::types::QpState;

/// Posts and state changes in the wrong state are refused, and change nothing.
pub fn states_forbid_what_verbs_forbid<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("states");
    let setup = Setup { connected: false, ..Setup::default() };
    let [a, b] = setup.build(f);
    let (_cq, fresh) = a.pd.create_qp(&a.endpoint.ctx, setup.cap).expect("qp");
    assert_eq!(fresh.state(), QpState::Reset);
    assert_eq!(fresh.post_recv_empty(WrId(0)), Err(PostError::State));
    assert_eq!(fresh.post_recvs_empty(WrId(0), 1), 0);
    assert!(fresh.ready_to_receive(&a.endpoint.path, b.qp.qp_num()).is_err());
    assert!(fresh.ready_to_send().is_err());
    assert_eq!(fresh.state(), QpState::Reset);
    assert_ne!(fresh.qp_num(), a.qp.qp_num());

    assert_eq!(a.qp.state(), QpState::Init);
    a.post_recv(1, &[]).expect("receives may be posted");
    assert_eq!(a.post(1, SendOp::Send, &[], SendFlags::empty()), Err(PostError::State));
    assert!(a.qp.init(setup.qp_access).is_err());
    assert!(a.qp.ready_to_send().is_err());
    a.qp.ready_to_receive(&a.endpoint.path, b.qp.qp_num()).expect("rtr");
    assert_eq!(a.qp.state(), QpState::Rtr);
    assert_eq!(a.post(1, SendOp::Send, &[], SendFlags::empty()), Err(PostError::State));

    setup.connect(&b, a.qp.qp_num());
    b.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
    assert_received(&a.next(&b), 1, WcOp::Recv, 0);
    a.qp.ready_to_send().expect("rts");
    assert_eq!(a.qp.state(), QpState::Rts);
    assert!(a.qp.init(setup.qp_access).is_err());
    a.qp.fail();
    assert_eq!(a.qp.state(), QpState::Err);
    assert!(a.qp.ready_to_send().is_err());
}

/// Everything that was posted completes with a flush, sends and receives each in order.
pub fn failing_flushes_everything_in_order<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("flush");
    let [a, b] = connected(f);
    for i in 0..10 {
        a.post_recv(100 + i, &[a.sge(0, 10)]).expect("receive");
    }
    let n = a.post_without_receives(0, 10);
    a.qp.fail();
    a.qp.fail();
    let (mut sends, mut receives) = (0, 100);
    for _ in 0..n + 10 {
        let wc = a.next(&b);
        assert_eq!((wc.status, wc.qp_num), (WcStatus::WR_FLUSH, a.qp.qp_num()));
        let next = if wc.id.0 < 100 { &mut sends } else { &mut receives };
        assert_eq!(wc.id.0, *next);
        *next += 1;
    }
    assert_eq!((sends, receives), (n, 110));
    assert!(a.poll().is_empty() && !a.cq.is_ready());
}

/// Messages that were complete before the error are received as such.
pub fn what_arrived_before_the_error_is_still_received<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("drain");
    for peer_fails in [false, true] {
        let [a, b] = connected(f);
        if peer_fails && !b.attr().notices_peer {
            continue;
        }
        for i in 0..4 {
            b.post_recv(i, &[b.sge(0, 100)]).expect("receive");
        }
        for i in 0..3usize {
            a.post(1, SendOp::Send, &[a.sge(0, 30 + i)], SendFlags::SIGNALED).expect("post");
        }
        // The sends have completed, so they have arrived.
        for _ in 0..3 {
            assert_eq!(a.next(&b).status, WcStatus::SUCCESS);
        }
        if peer_fails {
            a.qp.fail()
        } else {
            b.qp.fail()
        }
        for i in 0..3usize {
            assert_received(&b.next(&a), i as u64, WcOp::Recv, 30 + i);
        }
        assert_failed(&b.next(&a), 3, WcStatus::WR_FLUSH);
        assert_eq!(b.qp.state(), QpState::Err);
    }
}

/// In the error state requests are taken, and flushed.
pub fn requests_after_the_error_are_flushed<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("flush of late requests");
    let [a, b] = connected(f);
    a.qp.fail();
    a.post(1, b.write_op(0), &[a.sge(0, 60)], SendFlags::empty()).expect("post");
    assert_failed(&a.next(&b), 1, WcStatus::WR_FLUSH);
    a.post(2, SendOp::Send, &[a.sge(0, 6)], SendFlags::empty()).expect("post");
    assert_failed(&a.next(&b), 2, WcStatus::WR_FLUSH);
    a.post_recv(3, &[a.sge(0, 6)]).expect("receive");
    assert_failed(&a.next(&b), 3, WcStatus::WR_FLUSH);
    assert!(b.read(0, 60).iter().all(|b| *b == 0));
}

/// A queue pair that is dropped takes its peer to the error state: receives flush, and requests
/// that wait fail.
pub fn the_end_of_one_queue_pair_is_seen_by_the_other<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("dropped queue pair");
    let [a, b] = connected(f);
    b.post_recv(1, &[]).expect("receive");
    let n = b.post_without_receives(2, 2);
    let End { qp, cq, .. } = a;
    drop(qp);
    let mut seen = Vec::new();
    while (seen.len() as u64) < n + 1 {
        let mut out = [Completion::BLANK; 4];
        let n = b.cq.poll(&mut out);
        seen.extend(out[..n].iter().map(|wc| (wc.id.0, wc.status)));
        b.cq.park(Some(Duration::from_millis(1)));
    }
    seen.sort_by_key(|(id, _)| *id);
    let (flush, gone) = (WcStatus::WR_FLUSH, WcStatus::RETRY_EXC);
    assert_eq!(seen, [(1, flush), (2, gone), (3, flush)][..seen.len()]);
    assert_eq!(b.qp.state(), QpState::Err);
    drop(cq);
}

/// A key is invalid once its region is gone, even if the memory is used again.
pub fn keys_of_dropped_regions_are_dead<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("dropped region");
    let [a, b] = connected(f);
    let mr = b.pd.alloc_mr(8192, OPEN).expect("mr");
    let op = SendOp::Write { remote: mr.addr(), rkey: mr.rkey() };
    a.post(1, op, &[a.sge(0, 100)], SendFlags::SIGNALED).expect("post");
    assert_eq!(a.next(&b).status, WcStatus::SUCCESS);
    drop(mr);
    let again = b.pd.alloc_mr(8192, OPEN).expect("mr");
    a.fill(0, 8192, 1);
    a.post(2, op, &[a.sge(0, 8192)], SendFlags::SIGNALED).expect("post");
    assert_failed(&a.next(&b), 2, WcStatus::REM_ACCESS);
    let mut seen = vec![1; 8192];
    again.copy_out(0, &mut seen);
    assert!(seen.iter().all(|b| *b == 0), "fresh memory is zero");
}

/// Regions of every length read as zero at first, also where other regions were before.
pub fn new_regions_are_zero_after_reuse<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("fresh regions");
    let [a, _b] = connected(f);
    for len in [1, 100, 4096, 4097, 10_000] {
        for _ in 0..3 {
            let mr = a.pd.alloc_mr(len, OPEN).expect("mr");
            let mut seen = vec![1; len];
            mr.copy_out(0, &mut seen);
            assert!(seen.iter().all(|b| *b == 0), "{len} bytes");
            mr.copy_in(0, &vec![7; len]);
        }
    }
}

/// Local keys and bounds of receives are checked, while posting or when a message arrives.
pub fn receives_into_unregistered_memory_are_refused<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("local protection");
    for spoil in [0, 1] {
        let [a, b] = connected(f);
        let mut sge = b.sge(b.mr.len() - 40, 40);
        if spoil == 0 {
            sge.lkey = NOWHERE.2
        } else {
            sge.len = 41
        }
        match b.post_recv(1, &[sge]) {
            Ok(()) => {
                a.post(1, SendOp::Send, &[a.sge(0, 41)], SendFlags::empty()).expect("post");
                let statuses = &[WcStatus::LOC_PROT, WcStatus::LOC_QP_OP, WcStatus::LOC_LEN];
                assert_failed_as(&b.next(&a), 1, statuses);
            }
            Err(e) => assert_eq!(e, PostError::Invalid),
        }
    }
}
