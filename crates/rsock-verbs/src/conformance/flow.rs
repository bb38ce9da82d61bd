//! Completions, order, and what happens when there is no room.

use super::*;

/// Without `SIGNALED` a send completes nothing.
pub fn unsignaled_sends_complete_silently<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("unsignaled");
    let [a, b] = connected(f);
    for i in 0..200u64 {
        b.post_recv(i, &[b.sge(0, 10)]).expect("receive");
        a.post(i, SendOp::Send, &[a.sge(0, 10)], SendFlags::empty()).expect("post");
        assert_received(&b.next(&a), i, WcOp::Recv, 10);
    }
    assert!(a.poll().is_empty());
}

/// Signaled sends complete once each, in order, among unsignaled ones.
pub fn signaled_sends_complete_in_order<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("signaled");
    let [a, b] = connected(f);
    let mut expected = Vec::new();
    for i in 0..14u64 {
        b.post_recv(i, &[b.sge(0, 4000)]).expect("receive");
        let flags = if i % 3 == 2 { SendFlags::empty() } else { SendFlags::SIGNALED };
        let (op, done) = match i % 4 {
            0 => (b.write_op(0), WcOp::Write),
            _ => (SendOp::Send, WcOp::Send),
        };
        let len = 3 * usize::try_from(i).expect("index");
        a.post(i, op, &[a.sge(0, len)], flags).expect("post");
        if flags.contains(SendFlags::SIGNALED) {
            expected.push((WrId(i), done));
        }
    }
    for (id, op) in expected {
        let wc = a.next(&b);
        assert_eq!((wc.id, wc.status, wc.op), (id, WcStatus::SUCCESS, op));
        assert_eq!(wc.qp_num, a.qp.qp_num());
    }
    assert!(a.poll().is_empty());
}

/// More signaled requests than the send queue holds are refused, until completions are polled.
pub fn a_full_send_queue_is_reported<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("full send queue");
    let [a, b] = connected(f);
    // Where sends wait for a receive, they fill the queue: other requests leave it by themselves.
    let waits = F::Backend::SENDS_WAIT;
    let op = if waits { SendOp::Send } else { b.write_op(0) };
    let post = |id| a.post(id, op, &[a.sge(0, 10)], SendFlags::SIGNALED);
    let mut posted = 0;
    while post(posted).is_ok() {
        posted += 1;
        assert!(posted < 10_000, "the queue has no end");
    }
    assert!(posted >= 16, "as deep as was asked for");
    assert_eq!(post(0), Err(PostError::QueueFull));
    for i in 0..posted {
        if waits {
            b.post_recv(i, &[b.sge(0, 10)]).expect("receive");
            assert_received(&b.next(&a), i, WcOp::Recv, 10);
        }
        assert_eq!(a.next(&b).id, WrId(i));
    }
    post(posted).expect("room again");
}

/// What was posted may change at once, however long it waits, and however much of it the device
/// takes; when there is no more room, there will be.
pub fn copied_payloads_may_be_reused_at_once<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("copied payloads");
    let [a, b] = connected(f);
    let too_long = vec![0; a.max_send + 1];
    let copy = |id, data: &[u8]| {
        let pieces = [std::io::IoSlice::new(&data[..1]), std::io::IoSlice::new(&data[1..])];
        a.qp.post_copy(WrId(id), SendOp::Send, &pieces, SendFlags::empty())
    };
    assert_eq!(copy(0, &too_long), Err(PostError::Invalid));
    let len = a.max_send;
    for round in 0..3 {
        let payload = |i: u64| pattern(len, u8::try_from(20 * round + i).expect("seed"));
        // No receive: they wait, as far as the device lets them.
        let mut n = 0;
        while n < 12 && copy(n, &payload(n)).is_ok() {
            n += 1;
        }
        for i in 0..n {
            b.post_recv(i, &[b.sge(0, len)]).expect("receive");
            assert_received(&b.next(&a), i, WcOp::Recv, len);
            assert!(b.read(0, len) == payload(i), "message {i} of round {round}");
        }
        // Room becomes free again.
        b.post_recv(n, &[b.sge(0, len)]).expect("receive");
        while let Err(e) = copy(n, &payload(n)) {
            assert_eq!(e, PostError::QueueFull);
            a.cq.park(Some(Duration::from_millis(1)));
            assert!(a.poll().is_empty());
        }
        assert_received(&b.next(&a), n, WcOp::Recv, len);
        assert!(b.read(0, len) == payload(n), "the last message of round {round}");
    }
}

/// More receives than the queue holds are refused.
pub fn a_full_receive_queue_is_reported<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("full receive queue");
    let [a, b] = connected(f);
    let mut posted = 0;
    while b.post_recv(posted, &[]).is_ok() {
        posted += 1;
        assert!(posted < 10_000, "the queue has no end");
    }
    assert!(posted >= 32, "as deep as was asked for");
    assert_eq!(b.post_recv(0, &[]), Err(PostError::QueueFull));
    a.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
    assert_received(&b.next(&a), 0, WcOp::Recv, 0);
    b.post_recv(posted, &[]).expect("room again");
}

/// Receives that are posted many at once are as many as those posted one by one: as many as there
/// is room for, each used by one message, and flushed after an error.
pub fn receives_can_be_posted_many_at_once<F: Fixture>(f: &F) {
    const FEW: u32 = 20;
    let _dog = Watchdog::new("many receives at once");
    for max_recv_sge in [0, 3] {
        let default = Setup::default();
        let setup = Setup { cap: QpCap { max_recv_sge, ..default.cap }, ..default };
        let [a, b] = setup.build(f);
        let (few, many, late) = (WrId(5), WrId(6), WrId(7));
        assert_eq!(b.qp.post_recvs_empty(few, 0), 0);
        assert_eq!(b.qp.post_recvs_empty(few, FEW), FEW);
        let taken = b.qp.post_recvs_empty(many, 10_000);
        assert!((32 - FEW..10_000).contains(&taken), "{taken} more");
        assert_eq!(b.qp.post_recv_empty(many), Err(PostError::QueueFull));
        for id in std::iter::repeat_n(few.0, FEW as usize).chain([many.0; 3]) {
            a.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
            assert_received(&b.next(&a), id, WcOp::Recv, 0);
        }
        assert_eq!(b.qp.post_recvs_empty(late, 2), 2);
        b.qp.fail();
        assert_eq!(b.qp.post_recvs_empty(late, 1), 1);
        for id in std::iter::repeat_n(many.0, taken as usize - 3).chain([late.0; 3]) {
            let wc = b.next(&a);
            assert_eq!((wc.id.0, wc.status), (id, WcStatus::WR_FLUSH));
        }
        assert!(b.poll().is_empty());
    }
}

/// Receives without ids are used and flushed as others are.
pub fn receives_need_no_ids<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("receives without ids");
    let default = Setup::default();
    let setup = Setup { cap: QpCap { has_recv_ids: false, ..default.cap }, ..default };
    let [a, b] = setup.build(f);
    let posted = b.qp.post_recvs_empty(WrId(0), 10_000);
    assert!(posted >= 32, "{posted}");
    a.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
    let wc = b.next(&a);
    assert_eq!((wc.status, wc.op, wc.len), (WcStatus::SUCCESS, WcOp::Recv, 0));
    b.qp.fail();
    for _ in 1..posted {
        assert_eq!(b.next(&a).status, WcStatus::WR_FLUSH);
    }
    assert!(b.poll().is_empty());
}

/// Many messages of changing kind and size, window after window, with a receiver in a thread of its
/// own: nothing is lost, doubled or reordered.
pub fn a_long_stream_keeps_its_order<F: Fixture>(f: &F) {
    const MESSAGES: u32 = 20_000;
    const WINDOW: u32 = 32;
    let _dog = Watchdog::new("long stream");
    let [a, b] = connected(f);
    let has_imm = a.attr().write_with_imm;
    let is_write = |i: u32| has_imm && !i.is_multiple_of(3);
    let size = |i: u32| {
        let most = if is_write(i) { 304 } else { a.max_send.min(304) };
        4 + (i.wrapping_mul(2_654_435_761) >> 20) as usize % (most - 3)
    };
    // Room for the largest message, in rotation over more places than the window.
    let place = |i: u32| u64::from(i % 64) * 512;
    for i in 0..WINDOW {
        b.post_recv(i.into(), &[b.sge(place_of(place(i)), 512)]).expect("receive");
    }
    std::thread::scope(|s| {
        let b = &b;
        let a = &a;
        s.spawn(move || {
            for i in 0..MESSAGES {
                let mut out = [Completion::BLANK; 1];
                while b.cq.poll(&mut out) == 0 {
                    b.cq.park(Some(Duration::from_secs(1)));
                }
                assert_eq!((out[0].status, out[0].id), (WcStatus::SUCCESS, WrId(i.into())));
                assert_eq!(out[0].len as usize, size(i), "message {i}");
                let mut expected = pattern(size(i), 1);
                expected[..4].copy_from_slice(&i.to_le_bytes());
                assert!(b.read(place_of(place(i)), size(i)) == expected, "message {i}");
                let next = i + WINDOW;
                b.post_recv(next.into(), &[b.sge(place_of(place(next)), 512)]).expect("receive");
            }
        });
        for i in 0..MESSAGES {
            let mut data = pattern(size(i), 1);
            data[..4].copy_from_slice(&i.to_le_bytes());
            let op = if is_write(i) { b.write_imm_op(place(i), i) } else { SendOp::Send };
            let piece = [std::io::IoSlice::new(&data)];
            let mut epoch = a.cq.wake_epoch();
            while let Err(e) = a.qp.post_copy(WrId(0), op, &piece, SendFlags::empty()) {
                assert_eq!(e, PostError::QueueFull);
                // Room for a send is an event of the queue.
                a.cq.park_since(epoch, Some(Duration::from_secs(1)));
                epoch = a.cq.wake_epoch();
                assert!(a.poll().is_empty());
            }
        }
    });
}

fn place_of(at: u64) -> usize {
    usize::try_from(at).expect("offset")
}
