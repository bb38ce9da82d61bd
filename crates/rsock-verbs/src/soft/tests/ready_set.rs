//! Ready sets over real queues.

use super::{CAP, End, end, pair, write_imm};
use crate::conformance::Watchdog;
use crate::soft::ready_set::this_cpu;
use crate::soft::testing::linked_pair;
use crate::soft::{Link, ReadyNumber, SoftContext, SoftReadySet};
use crate::sync::ready_set::QUEUES;
use crate::{Completion, CompletionQueue, Error, QueuePair, SendFlags, WrId, family};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

fn send(from: &End, to: &End) {
    let region = (crate::MemoryRegion::addr(&to.mr), crate::MemoryRegion::rkey(&to.mr));
    from.qp.post_copy(WrId(1), write_imm(&region, 0, 7), &[], SendFlags::empty()).expect("post");
    drain(from);
}

fn pair_on(ctx: &SoftContext, link: &Arc<Link>, other: &Arc<Link>) -> (End, End) {
    let (a, b) = (end(ctx, link, CAP), end(ctx, other, CAP));
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    (a, b)
}

fn drain(end: &End) {
    let mut out = [Completion::BLANK; 4];
    while end.cq.poll(&mut out) != 0 {}
}

fn taken(set: &SoftReadySet) -> Vec<ReadyNumber> {
    let mut all = Vec::new();
    set.take(|number| all.push(number));
    all
}

fn is_readable(set: &SoftReadySet, limit: Option<&Timespec>) -> bool {
    poll(&mut [PollFd::new(set, PollFlags::IN)], limit).expect("poll") == 1
}

#[test]
fn a_peer_announces_what_it_sends_once_for_each_time_that_the_queue_is_armed() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    send(&a, &b);
    assert!(!set.has_any(), "the queue is not armed");
    drain(&b);
    b.cq.announce_next();
    assert!(!b.cq.is_ready() && !set.has_any());
    send(&a, &b);
    send(&a, &b);
    assert!(set.has_any());
    assert_eq!(taken(&set), [number]);
    send(&a, &b);
    assert_eq!(taken(&set), [], "the queue is not armed again");
    set.unwatch(&b.cq, number);
    b.cq.announce_next();
    send(&a, &b);
    assert_eq!(taken(&set), [], "the set does not watch it any more");
}

/// Binds the calling thread to one CPU.
fn stay_on_one_cpu() {
    let mut cpus = CpuSet::new();
    cpus.set(this_cpu() as usize);
    sched_setaffinity(None, &cpus).expect("affinity");
}

#[test]
fn the_cpu_of_a_peer_is_known_once_it_has_rung() {
    let _dog = Watchdog::new("ready set");
    stay_on_one_cpu();
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    let announce = || {
        b.cq.announce_next();
        send(&a, &b);
        let has_rung = set.drain();
        assert_eq!(taken(&set), [number]);
        drain(&b);
        has_rung
    };
    assert!(!announce());
    assert_eq!(set.is_peer_elsewhere(), None, "no thread slept");
    assert!(set.arm());
    assert!(announce());
    assert_eq!(set.is_peer_elsewhere(), Some(false));
    assert!(!announce());
    assert_eq!(set.is_peer_elsewhere(), Some(false), "it is remembered");
}

#[test]
fn one_set_watches_queues_of_several_links() {
    let _dog = Watchdog::new("ready set");
    let set = SoftReadySet::new().expect("set");
    let ctx = SoftContext::open().expect("device");
    let (link, other) = linked_pair(&ctx).expect("link");
    let pairs = [pair_on(&ctx, &link, &other), pair_on(&ctx, &link, &other), pair()];
    let numbers = pairs.each_ref().map(|(_, b)| set.watch(&b.cq).expect("watched"));
    for (_, b) in &pairs {
        b.cq.announce_next();
    }
    for (a, b) in pairs.iter().rev() {
        send(a, b);
    }
    let mut all = taken(&set);
    all.sort_unstable();
    assert_eq!(all, numbers);
}

#[test]
fn an_announcement_ends_a_sleep_on_the_descriptor() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    for _ in 0..20 {
        b.cq.announce_next();
        assert!(set.arm());
        assert!(!is_readable(&set, Some(&Timespec::default())));
        thread::scope(|scope| {
            scope.spawn(|| send(&a, &b));
            assert!(is_readable(&set, None));
        });
        set.drain();
        assert!(!is_readable(&set, Some(&Timespec::default())));
        assert_eq!(taken(&set), [number]);
        drain(&b);
    }
    b.cq.announce_next();
    send(&a, &b);
    assert!(!set.arm(), "there is something to take");
}

#[test]
fn what_another_thread_of_the_process_dispatches_is_announced() {
    let _dog = Watchdog::new("ready set");
    let (_a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    b.cq.wake_waiters();
    assert_eq!(taken(&set), [], "the queue is not armed");
    b.cq.announce_next();
    assert!(set.arm());
    b.cq.wake_waiters();
    assert!(is_readable(&set, Some(&Timespec::default())));
    assert_eq!(taken(&set), [number]);
}

#[test]
fn a_queue_whose_announcement_is_called_off_is_not_announced_by_this_process() {
    let _dog = Watchdog::new("ready set");
    let (_a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    set.watch(&b.cq).expect("watched");
    b.cq.announce_next();
    b.cq.announce_no_more();
    b.cq.wake_waiters();
    assert_eq!(taken(&set), []);
}

#[test]
fn a_queue_is_announced_to_one_set_until_that_leaves_it() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let [first, second] = [(); 2].map(|()| SoftReadySet::new().expect("set"));
    let number = first.watch(&b.cq).expect("watched");
    assert!(matches!(second.watch(&b.cq), Err(Error::Invalid(_))));
    b.cq.announce_next();
    send(&a, &b);
    assert_eq!((taken(&first), taken(&second)), (vec![number], vec![]));
    first.unwatch(&b.cq, number);
    second.watch(&b.cq).expect("watched");
}

#[test]
fn what_a_forked_child_dispatches_is_announced_to_its_parent_whose_watch_it_cannot_end() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    assert!(b.cq.is_unshared());
    b.cq.announce_next();
    assert!(set.arm());
    family::note_fork();
    // SAFETY: the child uses atomics and sends a datagram, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        b.cq.wake_waiters();
        set.unwatch(&b.cq, number);
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(0) };
    }
    assert!(is_readable(&set, None));
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(taken(&set), [number]);
    assert!(!b.cq.is_unshared(), "the child has it, too");
    b.cq.announce_next();
    send(&a, &b);
    assert_eq!(taken(&set), [number]);
}

#[test]
fn the_death_of_a_peer_is_announced() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    b.cq.announce_next();
    a.qp.fail();
    assert_eq!(taken(&set), [number]);
}

#[test]
fn a_number_is_used_again_and_a_late_bit_names_the_next_queue() {
    let _dog = Watchdog::new("ready set");
    let ctx = SoftContext::open().expect("device");
    let (link, other) = linked_pair(&ctx).expect("link");
    let (a, b) = pair_on(&ctx, &link, &other);
    let (_c, d) = pair_on(&ctx, &link, &other);
    let set = SoftReadySet::new().expect("set");
    let first = set.watch(&b.cq).expect("watched");
    b.cq.announce_next();
    send(&a, &b);
    set.unwatch(&b.cq, first);
    let second = set.watch(&d.cq).expect("watched");
    assert_eq!(first, second);
    assert_eq!(taken(&set), [second], "a look for nothing");
    d.cq.announce_next();
    assert!(!d.cq.is_ready());
}

#[test]
fn a_set_that_is_gone_leaves_its_page_to_the_next() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    for _ in 0..40 {
        let set = SoftReadySet::new().expect("set");
        let number = set.watch(&b.cq).expect("watched");
        b.cq.announce_next();
        send(&a, &b);
        assert_eq!(taken(&set), [number]);
        drain(&b);
        set.unwatch(&b.cq, number);
    }
    assert_eq!(b.link.n_ready_pages(), 1);
}

#[test]
fn a_peer_that_announces_each_time_keeps_no_thread() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    let peer = set.announcer();
    let mut n = 0;
    peer.announce(number);
    set.take_and_arm(|number| {
        n += 1;
        peer.announce(number);
    });
    assert!(n > 1, "what came meanwhile was taken");
    assert!(is_readable(&set, Some(&Timespec::default())), "a thread that sleeps is to look");
    set.drain();
    set.take_and_arm(drop);
    assert!(!is_readable(&set, Some(&Timespec::default())));
    b.cq.announce_next();
    send(&a, &b);
    assert!(is_readable(&set, None));
    assert_eq!(taken(&set), [number]);
}

#[test]
fn a_peer_that_sets_every_bit_in_a_loop_keeps_no_thread() {
    let _dog = Watchdog::new("ready set");
    let set = SoftReadySet::new().expect("set");
    let peer = set.announcer();
    let (begun, is_over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            while !is_over.load(Ordering::Relaxed) {
                for number in (0..QUEUES).map(ReadyNumber) {
                    peer.announce(number);
                }
            }
        });
        begun.wait();
        for _ in 0..100 {
            set.take_and_arm(|number| assert!(number.0 < QUEUES));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    while !set.arm() {
        set.take(drop);
    }
}

/// A kernel's set that watches the doorbell of `set` by edges.
fn watching(set: &SoftReadySet) -> OwnedFd {
    let kernels = epoll::create(epoll::CreateFlags::CLOEXEC).expect("set");
    watch(&kernels, set.as_fd(), SOCKET);
    kernels
}

const SOCKET: u64 = 1;
const PIPE: u64 = 2;

fn watch(kernels: &OwnedFd, fd: BorrowedFd<'_>, data: u64) {
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(kernels, fd, epoll::EventData::new_u64(data), edges).expect("watched");
}

/// Sleeps until there is an event; returns whose it is.
fn sleep(kernels: &OwnedFd) -> u64 {
    let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
    epoll::wait(kernels, &mut events, None).expect("wait").0[0].data.u64()
}

#[test]
fn a_doorbell_that_rings_often_gets_a_pipe_and_peers_ring_it_by_that() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    let kernels = watching(&set);
    let mut rung_by = Vec::new();
    for _ in 0..64 {
        b.cq.announce_next();
        assert!(set.arm());
        thread::scope(|scope| {
            scope.spawn(|| send(&a, &b));
            rung_by.push(sleep(&kernels));
        });
        if rung_by.last() == Some(&SOCKET) {
            assert!(set.drain());
            set.bell().add_pipe_if_busy(|pipe| {
                watch(&kernels, pipe, PIPE);
                true
            });
        } else {
            set.note_waker();
        }
        assert_eq!(taken(&set), [number]);
        drain(&b);
    }
    assert_eq!(rung_by, [[SOCKET].repeat(16), [PIPE].repeat(48)].concat());
}

#[test]
fn a_doorbell_whose_pipe_is_not_watched_is_rung_by_its_socket() {
    let _dog = Watchdog::new("ready set");
    let (a, b) = pair();
    let set = SoftReadySet::new().expect("set");
    let number = set.watch(&b.cq).expect("watched");
    let kernels = watching(&set);
    for _ in 0..32 {
        b.cq.announce_next();
        assert!(set.arm());
        send(&a, &b);
        assert_eq!(sleep(&kernels), SOCKET);
        assert!(set.drain());
        set.bell().add_pipe_if_busy(|_| false);
        assert_eq!(taken(&set), [number]);
        drain(&b);
    }
}
