//! SEND and RECV, from queues of one and of many queue pairs.

use super::*;

const LENGTHS: [usize; 12] =
    [0, 1, 47, 48, 49, 1000, 16_384, 16_385, 65_536, 65_537, 200_000, 3 << 20];

/// A SEND of any length fills its receive.
pub fn sends_of_any_length_arrive<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("send");
    let [a, b] = connected(f);
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let data = a.fill(0, len, 5);
        b.mr.copy_in(0, &vec![0; len + 1]);
        b.post_recv(i as u64, &[b.sge(0, len + 1)]).expect("receive");
        a.post(1, SendOp::Send, &[a.sge(0, len)], SendFlags::SIGNALED).expect("post");
        assert_received(&b.next(&a), i as u64, WcOp::Recv, len);
        let wc = a.next(&b);
        assert_eq!((wc.id, wc.status, wc.op), (WrId(1), WcStatus::SUCCESS, WcOp::Send));
        assert_eq!(b.read(0, len), data);
        assert_eq!(b.read(len, 1), [0]);
    }
}

/// The pieces of a receive are filled in order, from the pieces of the send.
pub fn sends_are_scattered_over_their_receive<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("scatter");
    let [a, b] = connected(f);
    for sizes in [[3, 0, 4], [20, 20, 20], [10_000, 1, 60_000]] {
        let total: usize = sizes.iter().sum();
        let data = a.fill(0, total, 9);
        let sges = [b.sge(0, sizes[0]), b.sge(200_000, sizes[1]), b.sge(400_000, sizes[2])];
        b.post_recv(1, &sges).expect("receive");
        let cut = total / 3;
        let pieces = [a.sge(0, cut), a.sge(cut, total - cut)];
        a.post(1, SendOp::Send, &pieces, SendFlags::empty()).expect("post");
        assert_received(&b.next(&a), 1, WcOp::Recv, total);
        let mut seen = b.read(0, sizes[0]);
        seen.extend(b.read(200_000, sizes[1]));
        seen.extend(b.read(400_000, sizes[2]));
        assert_eq!(seen, data);
    }
}

/// A receive that is too short fails with a length error; the sender learns that its request was
/// refused, and both queue pairs are in the error state.
pub fn a_send_longer_than_its_receive_fails_both_ends<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("send too long");
    for len in [11usize, 5000, 200_000] {
        let [a, b] = connected(f);
        b.post_recv(3, &[b.sge(0, len - 1)]).expect("receive");
        b.post_recv(4, &[b.sge(0, len)]).expect("receive");
        a.post(1, SendOp::Send, &[a.sge(0, len)], SendFlags::SIGNALED).expect("post");
        let statuses = &[WcStatus::LOC_LEN, WcStatus::LOC_QP_OP, WcStatus::REM_INV_REQ];
        assert_failed_as(&b.next(&a), 3, statuses);
        assert_failed(&b.next(&a), 4, WcStatus::WR_FLUSH);
        assert_failed_as(&a.next(&b), 1, &[WcStatus::REM_INV_REQ, WcStatus::REM_OP]);
        assert_eq!(a.qp.state(), crate::QpState::Err);
        assert_eq!(b.qp.state(), crate::QpState::Err);
    }
}

/// Receives are used in the order of posting, by every kind of message.
pub fn receives_complete_in_order<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("receive order");
    let [a, b] = connected(f);
    for id in 0..12 {
        b.post_recv(id, &[b.sge(0, 100)]).expect("receive");
    }
    for i in 0..12u32 {
        let op = match i % 2 {
            1 if a.attr().write_with_imm => b.write_imm_op(0, i),
            _ => SendOp::Send,
        };
        a.post(1, op, &[a.sge(0, 10 + i as usize)], SendFlags::INLINE).expect("post");
    }
    for i in 0..12u32 {
        let wc = b.next(&a);
        assert_eq!((wc.id, wc.status), (WrId(i.into()), WcStatus::SUCCESS));
        assert_eq!(wc.len, 10 + i);
    }
}

/// Queue pairs of one domain take their receives from one queue.
pub fn a_shared_receive_queue_serves_all_its_queue_pairs<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("shared receive queue");
    let setup = Setup { srq_depth: Some(8), ..Setup::default() };
    let [a, b] = setup.build(f);
    let srq = b.srq.as_ref().expect("shared queue");
    assert_eq!(b.post_recv(0, &[]), Err(PostError::Invalid), "not past the shared queue");

    // A second pair of queue pairs over the same queues.
    let more = |end: &End<F::Backend>| {
        let srq = end.srq.as_ref();
        let init = QpInit { send_cq: &end.cq, recv_cq: &end.cq, srq, cap: setup.cap };
        let qp = end.pd.create_qp(&init).expect("qp");
        qp.init(setup.qp_access).expect("init");
        qp
    };
    let (a2, b2) = (more(&a), more(&b));
    for (qp, end, peer) in [(&a2, &a, &b2), (&b2, &b, &a2)] {
        qp.ready_to_receive(&end.endpoint.path, peer.qp_num()).expect("rtr");
        qp.ready_to_send(setup.retry).expect("rts");
    }
    for id in 0..8 {
        let sges = [b.sge(1000 * usize::try_from(id).expect("id"), 1000)];
        // SAFETY: the region outlives the queue pairs.
        unsafe { srq.post_recv(&RecvWr { id: WrId(id), sges: &sges }) }.expect("receive");
    }
    let full = (8..10_000).find_map(|id| {
        // SAFETY: as above.
        unsafe { srq.post_recv(&RecvWr { id: WrId(id), sges: &[] }) }.err()
    });
    assert_eq!(full, Some(PostError::QueueFull));
    let mut expected = Vec::new();
    for i in 0..8u8 {
        let data = a.fill(0, 500 + usize::from(i), i);
        let (from, to) = if i % 3 == 0 { (&a2, &b2) } else { (&a.qp, &b.qp) };
        let sges = [a.sge(0, data.len())];
        let wr = SendWr { id: WrId(1), op: SendOp::Send, sges: &sges, flags: SendFlags::INLINE };
        // SAFETY: copied while posting.
        unsafe { from.post_send(&wr) }.expect("post");
        expected.push((to.qp_num(), data));
        let wc = b.next(&a);
        assert_received(&wc, i.into(), WcOp::Recv, 500 + usize::from(i));
        assert_eq!(wc.qp_num, to.qp_num());
    }
    for (i, (_, data)) in expected.iter().enumerate() {
        assert_eq!(&b.read(1000 * i, data.len()), data);
    }
}

/// A message that finds the shared queue empty is received when a receive is posted, and a sleeper
/// is woken for it.
pub fn a_message_waits_for_the_shared_receive_queue<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("empty shared receive queue");
    let [a, b] = Setup { srq_depth: Some(8), ..Setup::default() }.build(f);
    let srq = b.srq.as_ref().expect("shared queue");
    let data = a.fill(0, 300, 1);
    a.post(1, SendOp::Send, &[a.sge(0, 300)], SendFlags::empty()).expect("post");
    assert!(b.poll().is_empty());
    std::thread::scope(|s| {
        let received = s.spawn(|| b.next(&a));
        let sges = [b.sge(0, 300)];
        // SAFETY: the region outlives the queue pairs.
        unsafe { srq.post_recv(&RecvWr { id: WrId(6), sges: &sges }) }.expect("receive");
        assert_received(&received.join().expect("thread"), 6, WcOp::Recv, 300);
    });
    assert_eq!(b.read(0, 300), data);
}
