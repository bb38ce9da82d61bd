//! Two processes over the soft device, one of which is killed: what had arrived is received,
//! everything else completes with an error, and nothing hangs.

#![expect(clippy::cast_possible_truncation, reason = "test patterns")]

use rsock_verbs::conformance::Watchdog;
use rsock_verbs::cred::PeerCred;
use rsock_verbs::soft::testing::{accept_over, offer_over};
use rsock_verbs::soft::{Link, SoftContext, SoftCq, SoftMr, SoftQp};
use rsock_verbs::{
    Access, Completion, CompletionQueue, Context, MemoryRegion, PostError, ProtectionDomain, QpCap,
    QpNum, QpState, QueuePair, RKey, RemoteAddr, SendFlags, SendOp, WcStatus, WrId,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const WINDOW: u32 = 64;
/// In the environment of the other process of a test.
const ROLE: &str = "RSOCK_TEST_ROLE";

/// The test that the other process runs. Any test of this file would do: each begins with
/// [`start`].
const ENTRY: &str = "a_killed_peer_gives_back_every_receive";

struct End {
    qp: SoftQp,
    mr: SoftMr,
    cq: Arc<SoftCq>,
    link: Arc<Link>,
    to: (RemoteAddr, RKey),
}

/// Makes an end over an established link, and connects it; `receives` are posted.
fn connect_end(ctx: &SoftContext, link: Arc<Link>, socket: BorrowedFd<'_>, receives: u32) -> End {
    let pd = ctx.alloc_pd(&link).expect("pd");
    let mr = pd.alloc_mr(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("mr");
    let cap = QpCap {
        max_send_wr: 16,
        max_recv_wr: WINDOW,
        max_send_sge: 1,
        max_recv_sge: 0,
        has_recv_ids: true,
        max_inline: 64,
    };
    let (cq, qp) = pd.create_qp(ctx, cap).expect("qp");
    qp.init(Access::REMOTE_WRITE).expect("init");
    (0..receives).for_each(|_| qp.post_recv_empty(WrId(7)).expect("receive"));
    let mut words = [mr.addr().0, mr.rkey().0.into(), qp.qp_num().0.into()];
    let bytes = words.map(u64::to_ne_bytes).concat();
    rustix::io::write(socket, &bytes).expect("write");
    let mut bytes = [0u8; 24];
    assert_eq!(rustix::io::read(socket, &mut bytes).expect("read"), 24);
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    }
    qp.ready_to_receive(&link, QpNum(words[2] as u32)).expect("rtr");
    qp.ready_to_send().expect("rts");
    rustix::io::write(socket, &[1]).expect("write");
    rustix::io::read(socket, &mut [0u8; 1]).expect("read");
    End { qp, mr, cq, link, to: (RemoteAddr(words[0]), RKey(words[1] as u32)) }
}

impl End {
    fn send(&self, imm: u32, len: usize) -> Result<(), PostError> {
        let (remote, rkey) = self.to;
        let remote = remote.wrapping_add(u64::from(imm % 64) * 8192);
        let data = vec![imm as u8; len];
        let op = SendOp::WriteImm { remote, rkey, imm };
        self.qp.post_copy(WrId(1), op, &[IoSlice::new(&data)], SendFlags::empty())
    }

    fn poll(&self) -> Option<Completion> {
        let mut out = [Completion::BLANK; 1];
        (self.cq.poll(&mut out) == 1).then_some(out[0])
    }
}

/// What the other process does until it is killed.
fn play(role: &str) -> ! {
    let socket = std::io::stdin();
    let cred = PeerCred { pid: std::os::unix::process::parent_id(), ..PeerCred::own() };
    let ctx = SoftContext::open().expect("device");
    let link = accept_over(&ctx, socket.as_fd(), cred).expect("link");
    let receives = if role == "sit" { 0 } else { WINDOW };
    let end = connect_end(&ctx, link, socket.as_fd(), receives);
    match role {
        "flood" => {
            let mut next = 0;
            loop {
                let len = 1 + next as usize % 5000;
                match end.send(next, len) {
                    Ok(()) => next += 1,
                    Err(_) => {
                        end.poll();
                    }
                }
            }
        }
        "change user" => {
            while end.poll().is_none() {
                end.cq.park(None);
            }
            if rustix::process::geteuid().is_root() {
                // SAFETY: takes a number. libc's function does so for all threads of the process.
                assert_eq!(unsafe { libc::setuid(12_345) }, 0);
            }
            end.send(0, 1).expect("room");
            loop {
                end.cq.park(None);
            }
        }
        "drink" => loop {
            match end.poll() {
                Some(_) => end.qp.post_recv_empty(WrId(7)).expect("receive"),
                None => {
                    end.cq.park(None);
                }
            }
        },
        _ => loop {
            end.cq.park(None);
        },
    }
}

/// A child that is killed, and waited for, at the latest when this is dropped.
struct Victim(Child);

impl Victim {
    fn kill(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the other process, in which this never returns.
fn start(role: &str) -> (End, Victim, SoftContext) {
    if let Ok(role) = std::env::var(ROLE) {
        play(&role);
    }
    let flags = SocketFlags::CLOEXEC;
    let (mine, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("socketpair");
    let child = Command::new(std::env::current_exe().expect("own path"))
        .args([ENTRY, "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::from(theirs as OwnedFd))
        .stdout(Stdio::null())
        .spawn()
        .expect("spawn");
    let victim = Victim(child);
    let ctx = SoftContext::open().expect("device");
    let cred = PeerCred { pid: victim.0.id(), ..PeerCred::own() };
    let link = offer_over(&ctx, mine.as_fd(), cred).expect("link");
    (connect_end(&ctx, link, mine.as_fd(), WINDOW), victim, ctx)
}

fn wait_for_hang_up(link: &Link) {
    let mut fds = [PollFd::new(link, PollFlags::empty())];
    while poll(&mut fds, None).expect("poll") == 0 {}
}

fn assert_over(end: &End, mut flushes: usize) {
    while flushes > 0 {
        let wc = end.poll().expect("a flush");
        assert_eq!((wc.id, wc.status), (WrId(7), WcStatus::WR_FLUSH));
        flushes -= 1;
    }
    assert!(end.poll().is_none());
    assert_eq!(end.qp.state(), QpState::Err);
    assert!(!end.link.is_alive());
}

#[test]
fn a_killed_peer_gives_back_every_receive() {
    let _dog = Watchdog::new("kill of an idle peer");
    let (end, mut victim, ctx) = start("sit");
    assert_eq!(end.send(0, 100), Err(PostError::QueueFull), "the peer has posted no receive");
    assert!(end.link.probe() && end.poll().is_none());
    victim.kill();
    wait_for_hang_up(&end.link);
    assert!(!end.link.probe());
    assert_over(&end, WINDOW as usize);
    assert!(ctx.link_to_pid(victim.0.id(), None).is_none());
    assert!(ctx.link_by_id(end.link.id()).is_none());
}

/// A process that runs as root gives that up; another one cannot change its user.
#[test]
fn the_user_of_a_peer_is_the_one_that_it_has_now() {
    let _dog = Watchdog::new("change of the user");
    let (end, mut victim, _ctx) = start("change user");
    assert!(end.link.has_trusted_user());
    end.send(0, 1).expect("room");
    while end.poll().is_none() {
        end.cq.park(None);
    }
    assert_eq!(end.link.has_trusted_user(), !rustix::process::geteuid().is_root());
    victim.kill();
    assert!(!end.link.has_trusted_user());
}

#[test]
fn what_a_killed_peer_had_sent_arrives_in_order() {
    let _dog = Watchdog::new("kill while it sends");
    for kill_after in [0u32, 1, 5, 63, 64, 100, 1000, 5000] {
        let (end, mut victim, _ctx) = start("flood");
        let mut next = 0;
        while next < kill_after {
            if let Some(wc) = end.poll() {
                assert_eq!((wc.status, wc.imm), (WcStatus::SUCCESS, next));
                next += 1;
                end.qp.post_recv_empty(WrId(7)).expect("receive");
            }
        }
        victim.kill();
        wait_for_hang_up(&end.link);
        assert!(!end.link.probe());
        let mut left = WINDOW;
        while let Some(wc) = end.poll() {
            left -= 1;
            if wc.status == WcStatus::WR_FLUSH {
                assert_over(&end, left as usize);
                break;
            }
            assert_eq!((wc.status, wc.imm), (WcStatus::SUCCESS, next));
            assert_eq!(wc.len, 1 + next % 5000);
            let mut seen = vec![0; wc.len as usize];
            end.mr.copy_out(next as usize % 64 * 8192, &mut seen);
            assert!(seen.iter().all(|b| *b == next as u8), "message {next}");
            next += 1;
        }
        assert_eq!(end.qp.state(), QpState::Err);
    }
}

#[test]
fn a_sender_notices_that_its_peer_was_killed() {
    let _dog = Watchdog::new("kill during sends");
    for kill_after in [0u32, 10, 3000] {
        let (end, mut victim, _ctx) = start("drink");
        let mut sent = 0;
        let mut post = || match end.send(sent, 1 + sent as usize % 5000) {
            Ok(()) => sent += 1,
            Err(e) => {
                assert_eq!(e, PostError::QueueFull);
                end.poll();
            }
        };
        (0..kill_after).for_each(|_| post());
        victim.kill();
        wait_for_hang_up(&end.link);
        // Into the dead peer's memory, until it is known.
        (0..200).for_each(|_| post());
        assert!(!end.link.probe());
        assert_over(&end, WINDOW as usize);
    }
}

#[test]
fn a_parked_thread_wakes_when_another_notices_the_death() {
    let _dog = Watchdog::new("parked thread of a killed peer");
    let (end, mut victim, _ctx) = start("sit");
    std::thread::scope(|s| {
        let sleeper = s.spawn(|| {
            loop {
                if let Some(wc) = end.poll() {
                    return wc;
                }
                end.cq.park(Some(Duration::from_secs(3600)));
            }
        });
        victim.kill();
        wait_for_hang_up(&end.link);
        assert!(!end.link.probe());
        assert_eq!(sleeper.join().expect("thread").status, WcStatus::WR_FLUSH);
    });
}
