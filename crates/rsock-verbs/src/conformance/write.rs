//! RDMA WRITE, with and without immediate.

use super::*;
use crate::device::MemoryRegion;

/// Lengths on both sides of every limit that a device may have.
const LENGTHS: [usize; 14] =
    [0, 1, 3, 7, 8, 47, 48, 49, 64, 256, 3071, 4097, 70_000, (1 << 20) + 3];

/// A payload of any length arrives, with its word, in the region.
pub fn writes_with_immediate_deliver_payload_and_word<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("write with immediate");
    let [a, b] = connected(f);
    if !a.attr().write_with_imm {
        let op = b.write_imm_op(0, 0);
        assert_eq!(a.post(1, op, &[], SendFlags::empty()), Err(PostError::Invalid));
        return;
    }
    for (i, len) in LENGTHS.into_iter().filter(|len| *len <= a.max_write).enumerate() {
        let (id, seed) = (i as u64, len.to_le_bytes()[0]);
        for offset in [5, 64] {
            let data = a.fill(0, len, seed);
            b.mr.copy_in(0, &vec![0; len + 200]);
            b.post_recv(id, &[]).expect("receive");
            let op = b.write_imm_op(offset, 0xfffe_0000 | u32::from(seed));
            a.post(id, op, &[a.sge(0, len)], SendFlags::empty()).expect("post");
            let wc = b.next(&a);
            assert_received(&wc, id, WcOp::RecvWriteImm, len);
            assert_eq!(wc.imm, 0xfffe_0000 | u32::from(seed));
            let at = usize::try_from(offset).expect("offset");
            assert_eq!(b.read(at, len), data);
            assert!(b.read(0, at).iter().all(|b| *b == 0));
            assert!(b.read(at + len, 100).iter().all(|b| *b == 0));
        }
    }
}

/// The pieces of a payload arrive in order, empty ones too.
pub fn writes_gather_their_pieces<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("gather");
    let [a, b] = connected(f);
    for sizes in [[1, 0, 2], [20, 20, 8], [20, 20, 9], [5000, 1, 7000], [0, 0, 0]] {
        let total: usize = sizes.iter().sum();
        let mut sges = Vec::new();
        let mut data = Vec::new();
        for (i, len) in sizes.into_iter().enumerate() {
            data.extend(a.fill(100_000 * i, len, 7));
            sges.push(a.sge(100_000 * i, len));
        }
        a.post(1, b.write_op(9), &sges, SendFlags::SIGNALED).expect("post");
        assert_eq!(a.next(&b).status, WcStatus::SUCCESS);
        sync(&a, &b);
        assert_eq!(b.read(9, total), data);
    }
}

/// Makes sure that everything that `a` has written so far is in place: RC keeps order.
fn sync<B: Backend>(a: &End<B>, b: &End<B>) {
    b.post_recv(77, &[]).expect("receive");
    a.post(77, SendOp::Send, &[], SendFlags::empty()).expect("send");
    assert_received(&b.next(a), 77, WcOp::Recv, 0);
}

/// A plain WRITE completes nothing at the peer, and a later message finds it in place.
pub fn writes_are_silent_and_land_before_later_messages<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("plain write");
    let [a, b] = connected(f);
    for (i, len) in LENGTHS.into_iter().filter(|len| *len <= a.max_write).enumerate() {
        let seed = u8::try_from(i).expect("index");
        let data = a.fill(0, len, seed);
        a.post(1, b.write_op(3), &[a.sge(0, len)], SendFlags::empty()).expect("post");
        b.post_recv(i as u64, &[]).expect("receive");
        a.post(1, SendOp::Send, &[], SendFlags::empty()).expect("post");
        // The first completion is the SEND's: the WRITE made none.
        assert_received(&b.next(&a), i as u64, WcOp::Recv, 0);
        assert_eq!(b.read(3, len), data);
    }
    assert!(a.poll().is_empty() && b.poll().is_empty());
}

/// Writes without payload ignore address and key.
pub fn empty_writes_need_no_key<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("empty write");
    let [a, b] = connected(f);
    let (remote, rkey, _) = NOWHERE;
    a.post(1, SendOp::Write { remote, rkey }, &[], SendFlags::SIGNALED).expect("post");
    assert_eq!(a.next(&b).status, WcStatus::SUCCESS);
    if a.attr().write_with_imm {
        b.post_recv(4, &[]).expect("receive");
        a.post(1, SendOp::WriteImm { remote, rkey, imm: 9 }, &[], SendFlags::empty())
            .expect("post");
        let wc = b.next(&a);
        assert_received(&wc, 4, WcOp::RecvWriteImm, 0);
        assert_eq!(wc.imm, 9);
    }
}

/// A WRITE outside a region, or with a key that does not allow it, fails with a remote access
/// error, and with it both queue pairs.
pub fn a_region_admits_writes_only_as_registered<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("remote access");
    type Spoil = fn(RemoteAddr, RKey, u64) -> (RemoteAddr, RKey);
    let cases: [(Spoil, Access); 6] = [
        (|_, rkey, _| (NOWHERE.0, rkey), OPEN),
        (|addr, _, _| (addr, NOWHERE.1), OPEN),
        (|addr, rkey, len| (addr.wrapping_add(len), rkey), OPEN),
        (|addr, rkey, len| (addr.wrapping_add(len - 49), rkey), OPEN),
        (|addr, rkey, _| (addr.wrapping_add(u64::MAX), rkey), OPEN),
        (|addr, rkey, _| (addr, rkey), Access::LOCAL_WRITE),
    ];
    for (spoil, mr_access) in cases {
        for len in [50usize, 5000] {
            let [a, b] = Setup { mr_access, ..Setup::default() }.build(f);
            b.post_recv(5, &[]).expect("receive");
            let (remote, rkey) = spoil(b.mr.addr(), b.mr.rkey(), b.mr.len() as u64);
            let op = SendOp::Write { remote, rkey };
            a.post(1, op, &[a.sge(0, len)], SendFlags::empty()).expect("post");
            assert_failed(&a.next(&b), 1, WcStatus::REM_ACCESS);
            assert_eq!(a.qp.state(), crate::QpState::Err);
            assert_failed(&b.next(&a), 5, WcStatus::WR_FLUSH);
            assert_eq!(b.qp.state(), crate::QpState::Err);
            assert!(b.read(0, 100).iter().all(|b| *b == 0), "not a byte arrived");
        }
    }
}

/// A queue pair without remote write refuses writes, even to a region that admits them.
pub fn a_queue_pair_admits_writes_only_as_configured<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("queue pair access");
    let [a, b] = Setup { qp_access: Access::empty(), ..Setup::default() }.build(f);
    a.post(1, b.write_op(0), &[a.sge(0, 10)], SendFlags::empty()).expect("post");
    assert_failed_as(&a.next(&b), 1, &[WcStatus::REM_ACCESS, WcStatus::REM_INV_REQ]);
}

/// Ordinary memory, registered by its owner, is written where the device offers that, and refused
/// with an error where it does not.
pub fn memory_of_the_caller_can_be_written_if_the_device_supports_it<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("foreign memory");
    let [a, b] = connected(f);
    let mut heap = vec![0u8; 300_000];
    let (at, len) = (heap.as_mut_ptr(), heap.len());
    // SAFETY: the vector outlives the region, and is looked at again only after it is gone.
    let mr = unsafe { b.pd.reg_mr(at, len, OPEN) };
    if !b.attr().foreign_remote_write {
        assert!(matches!(mr, Err(crate::Error::Unsupported(_))));
        return;
    }
    let mr = mr.expect("region");
    for (offset, len) in [(0u64, 1usize), (11, 40), (100, a.max_write.min(200_000))] {
        let data = a.fill(0, len, 3);
        let op = SendOp::Write { remote: mr.addr().wrapping_add(offset), rkey: mr.rkey() };
        let half = len / 2;
        let sges = [a.sge(0, half), a.sge(half, len - half)];
        a.post(1, op, &sges, SendFlags::SIGNALED).expect("post");
        assert_eq!(a.next(&b).status, WcStatus::SUCCESS);
        sync(&a, &b);
        let mut seen = vec![0; len];
        mr.copy_out(usize::try_from(offset).expect("offset"), &mut seen);
        assert_eq!(seen, data);
    }
    let op = SendOp::Write { remote: mr.addr().wrapping_add(len as u64 - 3), rkey: mr.rkey() };
    a.post(2, op, &[a.sge(0, 4)], SendFlags::SIGNALED).expect("post");
    assert_failed(&a.next(&b), 2, WcStatus::REM_ACCESS);
    drop(mr);
    assert_eq!(&heap[len - 3..], &[0, 0, 0]);
}

/// The attribute and the operation agree.
pub fn a_device_without_write_with_immediate_refuses_it<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("no write with immediate");
    let [a, b] = connected(f);
    b.post_recv(1, &[]).expect("receive");
    let posted = a.post(1, b.write_imm_op(0, 1), &[a.sge(0, 4)], SendFlags::empty());
    if a.attr().write_with_imm {
        posted.expect("post");
        assert_received(&b.next(&a), 1, WcOp::RecvWriteImm, 4);
    } else {
        assert_eq!(posted, Err(PostError::Invalid));
        assert_eq!(a.qp.state(), crate::QpState::Rts);
    }
}
