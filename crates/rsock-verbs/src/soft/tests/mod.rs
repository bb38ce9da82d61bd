//! The device against itself: two ends in one process, and two processes.
#![expect(clippy::cast_possible_truncation, reason = "test patterns")]

mod hostile;
mod life;
mod ready_set;

use super::testing::{accept_over, linked_pair, offer_over};
use super::{Link, Soft, SoftBell, SoftContext, SoftCq, SoftMr, SoftPd, SoftQp};
use crate::conformance::{Endpoint, Fixture, Watchdog};
use crate::cred::PeerCred;
use crate::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The device as it is.
struct Whole;
/// The device as one without write-with-immediate.
struct WithoutWriteImm;

fn endpoints(ctx: &SoftContext) -> [Endpoint<Soft>; 2] {
    let (a, b) = linked_pair(ctx).expect("link");
    [a, b].map(|path| Endpoint { ctx: ctx.clone(), path })
}

impl Fixture for Whole {
    type Backend = Soft;
    fn endpoints(&self) -> [Endpoint<Soft>; 2] {
        endpoints(&SoftContext::open().expect("device"))
    }
}

impl Fixture for WithoutWriteImm {
    type Backend = Soft;
    fn endpoints(&self) -> [Endpoint<Soft>; 2] {
        endpoints(&SoftContext::open_without_write_imm().expect("device"))
    }
}

mod whole {
    crate::conformance_tests!(super::Whole);
}

mod without_write_imm {
    crate::conformance_tests!(super::WithoutWriteImm);
}

pub(super) const CAP: QpCap = QpCap {
    max_send_wr: 16,
    max_recv_wr: 64,
    max_send_sge: 4,
    max_recv_sge: 0,
    has_recv_ids: true,
    max_inline: 64,
};

#[derive(Debug)]
struct End {
    qp: SoftQp,
    mr: SoftMr,
    cq: Arc<SoftCq>,
    pd: Arc<SoftPd>,
    link: Arc<Link>,
}

fn end(ctx: &SoftContext, link: &Arc<Link>, cap: QpCap) -> End {
    let pd = ctx.alloc_pd(link).expect("pd");
    let mr = pd.alloc_mr(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("mr");
    let (cq, qp) = pd.create_qp(ctx, cap).expect("qp");
    qp.init(Access::REMOTE_WRITE).expect("init");
    for i in 0..cap.max_recv_wr {
        qp.post_recv_empty(WrId(i.into())).expect("post");
    }
    End { qp, mr, cq, pd, link: Arc::clone(link) }
}

impl End {
    fn connect(&self, peer: QpNum) {
        self.qp.ready_to_receive(&self.link, peer).expect("rtr");
        self.qp.ready_to_send().expect("rts");
    }

    fn wait(&self) -> Completion {
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            self.cq.park(Some(Duration::from_secs(1)));
        }
    }
}

fn pair() -> (End, End) {
    let ctx = SoftContext::open().expect("device");
    let (a, b) = linked_pair(&ctx).expect("link");
    let (a, b) = (end(&ctx, &a, CAP), end(&ctx, &b, CAP));
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    (a, b)
}

fn write_imm(to: &(RemoteAddr, RKey), offset: u64, imm: u32) -> SendOp {
    SendOp::WriteImm { remote: to.0.wrapping_add(offset), rkey: to.1, imm }
}

#[test]
fn a_process_exchanges_messages_with_itself() {
    let _dog = Watchdog::new("soft device");
    let (a, b) = pair();
    let to = (b.mr.addr(), b.mr.rkey());
    for len in [0usize, 1, 48, 49, 4096, 70_000] {
        let data: Vec<u8> = (0..len).map(|i| i as u8 ^ len as u8).collect();
        let imm = 0x8000_0000 | len as u32;
        a.qp.post_copy(WrId(1), write_imm(&to, 5, imm), &[IoSlice::new(&data)], SendFlags::empty())
            .expect("post");
        let wc = b.wait();
        assert_eq!((wc.status, wc.op), (WcStatus::SUCCESS, WcOp::RecvWriteImm));
        assert_eq!((wc.imm, wc.len as usize, wc.qp_num), (imm, len, b.qp.qp_num()));
        let mut seen = vec![0; len];
        b.mr.copy_out(5, &mut seen);
        assert_eq!(seen, data);
    }
}

/// Places for bells run out, and come back.
#[test]
fn a_queue_has_room_for_a_few_bells() {
    let (a, _b) = pair();
    let ctx = SoftContext::open().expect("device");
    let bells: Vec<_> = (0..40).map(|_| ctx.create_bell().expect("bell")).collect();
    let armed: Vec<_> = bells.iter().map(|bell| a.cq.arm(bell)).collect();
    assert!(armed[0] && !armed[39]);
    bells.iter().for_each(|bell| a.cq.disarm(bell));
    assert!(a.cq.arm(&bells[39]));
    a.cq.disarm(&bells[39]);
}

#[test]
fn the_self_link_is_found_from_both_sides() {
    let ctx = SoftContext::open().expect("device");
    let (a, b) = linked_pair(&ctx).expect("link");
    assert_eq!(a.id(), b.id());
    assert!(Arc::ptr_eq(&ctx.link_by_id(a.id()).expect("accepting end"), &b));
    assert!(ctx.link_to_pid(std::process::id(), None).is_some());
}

#[test]
fn two_processes_play_ping_pong_asleep_and_awake() {
    let _dog = Watchdog::new("soft device");
    const ROUNDS: u32 = 2_000;
    let flags = SocketFlags::CLOEXEC;
    let (mine, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("socketpair");
    // Addresses and queue pair numbers, as a connection manager would carry them.
    let play = |socket: &std::os::fd::OwnedFd, first: bool, peer: i32| {
        let cred = PeerCred { pid: peer.cast_unsigned(), ..PeerCred::own() };
        let ctx = SoftContext::open().expect("device");
        let link = if first {
            offer_over(&ctx, socket.as_fd(), cred).expect("offer")
        } else {
            accept_over(&ctx, socket.as_fd(), cred).expect("accept")
        };
        let e = end(&ctx, &link, CAP);
        let mut hello = [0u8; 16];
        hello[..8].copy_from_slice(&e.mr.addr().0.to_ne_bytes());
        hello[8..12].copy_from_slice(&e.mr.rkey().0.to_ne_bytes());
        hello[12..].copy_from_slice(&e.qp.qp_num().0.to_ne_bytes());
        rustix::io::write(socket, &hello).expect("write");
        rustix::io::read(socket, &mut hello).expect("read");
        let word = |i: usize| u32::from_ne_bytes(hello[i..i + 4].try_into().expect("4 bytes"));
        let addr = u64::from_ne_bytes(hello[..8].try_into().expect("8 bytes"));
        let to = (RemoteAddr(addr), RKey(word(8)));
        e.connect(QpNum(word(12)));
        // Both are connected before either sends.
        rustix::io::write(socket, &[1]).expect("write");
        rustix::io::read(socket, &mut [0u8; 1]).expect("read");
        for i in 0..ROUNDS {
            let byte = [i as u8];
            let serve = |i| {
                let piece = [IoSlice::new(&byte)];
                e.qp.post_copy(WrId(0), write_imm(&to, 0, i), &piece, SendFlags::empty())
                    .expect("post");
            };
            if first {
                serve(i);
            }
            let wc = e.wait();
            assert_eq!((wc.status, wc.imm, wc.len), (WcStatus::SUCCESS, i, 1));
            let mut seen = [0];
            e.mr.copy_out(0, &mut seen);
            assert_eq!(seen, byte);
            e.qp.post_recv_empty(wc.id).expect("post");
            if !first {
                serve(i);
            }
        }
    };
    let parent = std::process::id().cast_signed();
    // SAFETY: the child plays and exits; it touches no lock that another thread may hold but the
    // allocator's, which glibc keeps usable.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(mine);
        let ok =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&theirs, false, parent)));
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(i32::from(ok.is_err())) };
    }
    drop(theirs);
    play(&mine, true, child);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}
