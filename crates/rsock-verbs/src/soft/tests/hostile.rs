//! A peer that writes arbitrary bytes: nothing crashes, nothing outside of the pair's segments is
//! accessed, and other links go on.
//!
//! The hostile end is played through its own mappings, exactly as another process would have them.

use super::*;
use crate::soft::layout::{
    DATA, Entry, MAX_STAGED, PAGE, QP_TABLE, QPS, QpEntry, REGION_TABLE, REGIONS, RegionEntry,
};
use crate::soft::segment::Mapping;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where garbage goes: the parts that steer the device.
#[derive(Clone, Debug)]
enum Spot {
    Header,
    Region,
    QpEntry,
    /// Lane heads and wait lines.
    Blocks,
    /// Lanes, stages and regions.
    Data,
    Anywhere(u64),
}

#[derive(Clone, Debug)]
enum Op {
    /// Writes a word into the attacked process's segment, or into the hostile one's own, which the
    /// attacked process reads.
    Scribble {
        victims: bool,
        spot: Spot,
        at: u64,
        value: u32,
    },
    /// A slot with a right marker and garbage in it.
    Forge {
        ahead: u32,
        imm: u32,
        word: u64,
        small: bool,
    },
    Poll,
    Ready,
    Park,
    Arm,
    Send(u32),
    Write(u32),
    WriteImm(u32),
    PostRecv,
    Region,
    QueuePair,
    /// The hostile end does something honest.
    Honest(u32),
}

fn spot() -> impl Strategy<Value = Spot> {
    prop_oneof![
        1 => Just(Spot::Header),
        1 => Just(Spot::Region),
        1 => Just(Spot::QpEntry),
        4 => Just(Spot::Blocks),
        2 => Just(Spot::Data),
        1 => any::<u64>().prop_map(Spot::Anywhere),
    ]
}

/// Boundary values, and arbitrary ones.
fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(2),
        Just(u32::MAX),
        Just(i32::MAX.cast_unsigned()),
        0u32..200,
        any::<u32>(),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let scribble = (any::<bool>(), spot(), any::<u64>(), value())
        .prop_map(|(victims, spot, at, value)| Op::Scribble { victims, spot, at, value });
    let forge = (0u32..3, any::<u32>(), any::<u64>(), any::<bool>())
        .prop_map(|(ahead, imm, word, small)| Op::Forge { ahead, imm, word, small });
    prop_oneof![
        12 => scribble,
        3 => forge,
        4 => Just(Op::Poll),
        1 => Just(Op::Ready),
        1 => Just(Op::Park),
        1 => Just(Op::Arm),
        2 => (0u32..60).prop_map(Op::Send),
        2 => (0u32..5000).prop_map(Op::Write),
        2 => (0u32..5000).prop_map(Op::WriteImm),
        2 => Just(Op::PostRecv),
        1 => Just(Op::Region),
        1 => Just(Op::QueuePair),
        3 => (0u32..3000).prop_map(Op::Honest),
    ]
}

fn scribble(m: &Mapping, spot: &Spot, at: u64, value: u32) {
    let (start, len) = match spot {
        Spot::Header => (0, 64),
        Spot::Region => (REGION_TABLE, 8 * size_of::<RegionEntry>() as u64),
        Spot::QpEntry => (QP_TABLE, u64::from(QPS) * size_of::<QpEntry>() as u64),
        Spot::Blocks => (DATA, 4 * PAGE),
        Spot::Data => (DATA, 1 << 21),
        Spot::Anywhere(from) => (from % (m.len() - PAGE), PAGE),
    };
    let at = (start + at % len) & !3;
    if let Some(word) = m.at::<AtomicU32>(at) {
        word.store(value, Ordering::Relaxed);
    }
}

fn act(ctx: &SoftContext, victim: &End, hostile: &End, bell: &SoftBell, op: &Op) {
    let cap = QpCap { max_recv_sge: 2, ..CAP };
    let to = (hostile.mr.addr(), hostile.mr.rkey());
    let sge = |len: u32| Sge { addr: victim.mr.addr().0, len, lkey: victim.mr.lkey() };
    let post = |end: &End, op: SendOp, sges: &[Sge], flags: SendFlags| {
        // SAFETY: pieces of a region that outlives the queue pair.
        let _ = unsafe { end.qp.post_send(&SendWr { id: WrId(1), op, sges, flags }) };
    };
    match op {
        Op::Scribble { victims: true, spot, at, value } => {
            scribble(hostile.link.peer_segment(), spot, *at, *value);
        }
        Op::Scribble { victims: false, spot, at, value } => {
            scribble(hostile.link.own_segment(), spot, *at, *value);
        }
        Op::Forge { ahead, imm, word, small } => {
            // Small operation codes are the ones that are looked at twice.
            let word = if *small { word & !0xf8 } else { *word };
            hostile.qp.forge(*ahead, *imm, word);
        }
        Op::Poll => {
            let mut out = [Completion::BLANK; 4];
            let n = victim.cq.poll(&mut out);
            assert!(n <= out.len());
            victim.cq.poll_one();
        }
        Op::Ready => {
            victim.cq.is_ready();
        }
        Op::Park => {
            victim.cq.park(Some(Duration::from_micros(1)));
        }
        Op::Arm => {
            victim.cq.arm(bell);
            victim.cq.disarm(bell);
            bell.drain();
        }
        Op::Send(len) => post(victim, SendOp::Send, &[sge(*len)], SendFlags::SIGNALED),
        Op::Write(len) => {
            let op = SendOp::Write { remote: to.0, rkey: to.1 };
            post(victim, op, &[sge(*len)], SendFlags::empty());
        }
        Op::WriteImm(len) => {
            post(victim, write_imm(&to, 3, *len), &[sge(*len)], SendFlags::empty());
            let data = vec![4; *len as usize];
            let _ = victim.qp.post_write_imm(WrId(1), to, *len, &data);
        }
        Op::PostRecv => {
            let wr = RecvWr { id: WrId(2), sges: &[sge(1000)] };
            // SAFETY: as above.
            let _ = unsafe { victim.qp.post_recv(&wr) };
        }
        Op::Region => {
            if let Ok(mr) = victim.pd.alloc_mr(5000, Access::all()) {
                mr.copy_in(0, &[1; 5000]);
                mr.punch(0, 4096);
            }
        }
        Op::QueuePair => {
            if let Ok((_cq, qp)) = victim.pd.create_qp(ctx, cap)
                && qp.init(Access::REMOTE_WRITE).is_ok()
                && qp.ready_to_receive(&victim.link, hostile.qp.qp_num()).is_ok()
            {
                let _ = qp.ready_to_send();
            }
        }
        Op::Honest(len) => {
            let sge = Sge { addr: hostile.mr.addr().0, len: *len, lkey: hostile.mr.lkey() };
            let to = (victim.mr.addr(), victim.mr.rkey());
            post(hostile, SendOp::Send, &[Sge { len: sge.len % 50, ..sge }], SendFlags::empty());
            post(hostile, write_imm(&to, 0, 1), &[sge], SendFlags::empty());
            hostile.cq.poll(&mut [Completion::BLANK; 4]);
        }
    }
}

/// Checks that a link that is not attacked still works.
fn assert_works(a: &End, b: &End, seed: u8) {
    let to = (b.mr.addr(), b.mr.rkey());
    for len in [1, 40, 3000] {
        let data = vec![seed; len];
        let at = (to.0.wrapping_add(7), to.1);
        a.qp.post_write_imm(WrId(0), at, 1, &data).expect("post");
        let wc = b.wait();
        assert_eq!((wc.status, wc.len as usize), (WcStatus::SUCCESS, len));
        b.qp.post_recv_empty(wc.id).expect("post");
        let mut seen = vec![0; len];
        b.mr.copy_out(7, &mut seen);
        assert_eq!(seen, data);
    }
}

fn hostile_pair(ctx: &SoftContext) -> (End, End) {
    let (a, b) = linked_pair(ctx).expect("link");
    let cap = QpCap { max_recv_sge: 2, ..CAP };
    let (a, b) = (end(ctx, &a, cap), end(ctx, &b, cap));
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    (a, b)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn garbage_spoils_its_own_link_only(ops in proptest::collection::vec(op(), 1..150), seed: u8) {
        let _dog = Watchdog::new("garbage");
        let ctx = SoftContext::open().expect("device");
        let (c, d) = pair();
        let bell = ctx.create_bell().expect("bell");
        {
            let (victim, hostile) = hostile_pair(&ctx);
            for op in &ops {
                act(&ctx, &victim, &hostile, &bell, op);
            }
            // Taking everything down survives it too.
        }
        assert_works(&c, &d, seed);
        assert_works(&d, &c, seed);
    }
}

#[test]
fn a_message_without_a_receive_breaks_its_queue_pair() {
    let (a, b) = pair();
    for _ in 0..CAP.max_recv_wr {
        b.qp.forge(0, 1, Entry::WriteImm { len: 1 }.encode());
    }
    for _ in 0..CAP.max_recv_wr {
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
    }
    b.qp.forge(0, 1, Entry::WriteImm { len: 1 }.encode());
    assert!(a.cq.poll_one().is_none());
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn what_is_posted_one_by_one_in_the_error_state_is_flushed_with_its_id() {
    let (a, b) = pair();
    let to = (b.mr.addr(), b.mr.rkey());
    a.qp.fail();
    assert_every_receive_completes(&a, 0);
    a.qp.post_write_imm(WrId(77), to, 1, &[1; 100]).expect("accepted, to be flushed");
    let wc = a.cq.poll_one().expect("a completion");
    assert_eq!((wc.id, wc.status), (WrId(77), WcStatus::WR_FLUSH));
}

#[test]
fn a_write_for_memory_that_is_no_region_breaks_its_queue_pair() {
    let (a, b) = pair();
    let outside = b.mr.addr().wrapping_add((1 << 20) - 10);
    let _ = a.qp.post_write_imm(WrId(7), (outside, b.mr.rkey()), 1, &[1; 11]);
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn an_unknown_description_breaks_its_queue_pair() {
    for word in [0, 99, u64::MAX, 1 | 49 << 8, 3 | 200 << 8, 4 | (1 << 20) << 16] {
        let (a, b) = pair();
        b.qp.forge(0, 1, word);
        let wc = a.wait();
        assert_eq!(wc.status, WcStatus::WR_FLUSH, "{word:x}");
        assert_eq!(a.qp.state(), QpState::Err);
    }
}

#[test]
fn nothing_arrives_behind_a_message_that_does_not_fit() {
    let (a, b) = pair();
    b.qp.forge(0, 0, Entry::SendTooLong.encode());
    b.qp.forge(0, 1, Entry::WriteImm { len: 1 }.encode());
    let mut out = [Completion::BLANK; 4];
    assert_eq!(a.cq.poll(&mut out[..2]), 2);
    assert_eq!((out[0].status, out[1].status), (WcStatus::LOC_LEN, WcStatus::WR_FLUSH));
    assert_every_receive_completes(&a, 2);
}

#[test]
fn an_error_that_overtakes_a_poll_flushes_all_the_same() {
    let (a, b) = pair();
    b.qp.forge(0, 1, Entry::WriteImm { len: 1 }.encode());
    b.qp.forge(0, 1, Entry::WriteImm { len: 1 }.encode());
    assert_eq!(a.cq.poll(&mut [Completion::BLANK; 2]), 2);
    // As by a thread that failed the queue pair when this poll had published none of the two.
    a.qp.fail_as_of(1);
    assert_every_receive_completes(&a, 2);
}

#[test]
fn a_message_taken_back_after_an_error_holds_up_nothing() {
    let (a, _b) = pair();
    // As if the peer had overwritten an entry that was there.
    a.qp.fail_as_of(1);
    assert_every_receive_completes(&a, 0);
}

/// That the error state gives back every receive, and the queue has nothing more then.
fn assert_every_receive_completes(end: &End, had: u32) {
    let mut out = [Completion::BLANK; 4];
    let mut n = had;
    loop {
        match end.cq.poll(&mut out) {
            0 => break,
            more => n += more as u32,
        }
    }
    assert_eq!((n, end.cq.is_ready()), (CAP.max_recv_wr, false));
}

#[test]
fn a_staged_entry_breaks_a_stream_s_queue_pair() {
    // Only datagrams lie on the stage.
    for len in [0, 1, MAX_STAGED] {
        let (a, b) = pair();
        b.qp.forge(0, 0, Entry::SendStaged { len }.encode());
        let mut out = [Completion::BLANK; 1];
        assert_eq!(a.cq.poll(&mut out), 1, "{len}");
        assert_eq!((out[0].status, a.qp.state()), (WcStatus::WR_FLUSH, QpState::Err));
    }
}

#[test]
fn a_payload_for_an_offset_outside_the_segment_is_refused() {
    let (a, b) = pair();
    let at = (1u64 << 48) - 10;
    b.qp.forge(0, 1, Entry::WriteImmInline { at, len: 48 }.encode());
    assert_eq!(a.wait().status, WcStatus::WR_FLUSH);
}

#[test]
fn a_queue_pair_with_a_false_lane_location_is_refused() {
    let ctx = SoftContext::open().expect("device");
    let spoil: [fn(&QpEntry); 8] = [
        |e| e.slots.store(0, Ordering::Relaxed),
        |e| e.slots.store(65, Ordering::Relaxed),
        |e| e.slots.store(1 << 31, Ordering::Relaxed),
        |e| e.n_caps.store(3, Ordering::Relaxed),
        |e| e.slots_at.store(u64::MAX - 63, Ordering::Relaxed),
        |e| e.slots_at.store(32 << 30, Ordering::Relaxed),
        |e| e.head_at.store(DATA + 4, Ordering::Relaxed),
        |e| e.wait_at.store((32 << 30) - 64, Ordering::Relaxed),
    ];
    for spoil in spoil {
        let (x, y) = linked_pair(&ctx).expect("link");
        let (a, b) = (end(&ctx, &x, CAP), end(&ctx, &y, CAP));
        let number = b.qp.qp_num();
        let at = QP_TABLE + u64::from(number.0 % QPS) * size_of::<QpEntry>() as u64;
        spoil(y.own_segment().at::<QpEntry>(at).expect("entry"));
        let connected = a.qp.ready_to_receive(&x, number);
        assert!(matches!(connected, Err(Error::PeerViolation(_))), "{connected:?}");
        assert_eq!(a.qp.state(), QpState::Init);
    }
}

#[test]
fn false_offers_are_refused() {
    let ctx = SoftContext::open().expect("device");
    let me = PeerCred::own();
    let dup = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("dup");
    let offer = ctx.offer().expect("offer");
    let (hello, [segment, socket]) = offer.hello();
    let refused = |hello: &[u8], fds: Vec<std::os::fd::OwnedFd>, cred| {
        matches!(ctx.accept(hello, fds, cred), Err(Error::PeerViolation(_) | Error::Unsupported(_)))
    };
    assert!(refused(&hello[1..], vec![dup(segment), dup(socket)], me));
    assert!(refused(&hello, vec![dup(segment)], me));
    assert!(refused(&hello, vec![dup(socket), dup(segment)], me));
    assert!(refused(&hello, vec![dup(segment), dup(segment)], me));
    let stranger = PeerCred { uid: me.uid.wrapping_add(7), ..me };
    assert!(refused(&hello, vec![dup(segment), dup(socket)], stranger));
    // Magic, version and size; the reader never trusts what follows.
    for i in (0..12).chain(16..24) {
        let mut wrong = hello;
        wrong[i] ^= 0x40;
        assert!(refused(&wrong, vec![dup(segment), dup(socket)], me), "byte {i}");
    }
    // The honest one is still good; the same name from a second link is not.
    let (_link, reply, file) =
        ctx.accept(&hello, vec![dup(segment), dup(socket)], me).expect("accept");
    assert!(refused(&hello, vec![dup(segment), dup(socket)], me));
    let other_offer = ctx.offer().expect("offer");
    let wrong = other_offer.complete(&reply, vec![dup(file.as_fd())], me);
    assert!(matches!(wrong, Err(Error::PeerViolation(_))));
    offer.complete(&reply, vec![file], me).expect("complete");
}

const _: () = assert!(REGIONS > 8);
