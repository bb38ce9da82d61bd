//! SEND and RECV.

use super::*;

const LENGTHS: [usize; 9] = [0, 1, 47, 48, 49, 1000, 16_384, 16_385, 65_536];

/// A SEND of any length fills its receive.
pub fn sends_of_any_length_arrive<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("send");
    let [a, b] = connected(f);
    for (i, len) in LENGTHS.into_iter().filter(|len| *len <= a.max_send).enumerate() {
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
    for sizes in [[3, 0, 4], [20, 20, 8], [10_000, 1, 50_000]] {
        let total: usize = sizes.iter().sum();
        if total > a.max_send {
            continue;
        }
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
    for len in [11usize, 48, 5000, 60_000] {
        let [a, b] = connected(f);
        if len > a.max_send {
            continue;
        }
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
        a.post(1, op, &[a.sge(0, 10 + i as usize)], SendFlags::empty()).expect("post");
    }
    for i in 0..12u32 {
        let wc = b.next(&a);
        assert_eq!((wc.id, wc.status), (WrId(i.into()), WcStatus::SUCCESS));
        assert_eq!(wc.len, 10 + i);
    }
}
