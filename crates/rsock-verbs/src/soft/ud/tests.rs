//! Datagram behaviour that only the soft device promises: it notices when peers end, and survives
//! what they may write.

use super::*;
use crate::conformance::{Endpoint, Fixture, Watchdog};
use crate::datagram::DatagramQueue;
use crate::device::QueuePair;
use crate::soft::testing::linked_pair;
use crate::soft::tests::CAP;
use crate::types::Access;
use crate::{Context, ProtectionDomain};

struct Linked;

impl Fixture for Linked {
    type Backend = Soft;
    fn endpoints(&self) -> [Endpoint<Soft>; 2] {
        let ctx = SoftContext::open().expect("device");
        let (a, b) = linked_pair(&ctx).expect("link");
        [a, b].map(|path| Endpoint { ctx: ctx.clone(), path })
    }
}

crate::conformance_tests!(@datagrams Linked);

const KEY: QKey = QKey(7);

fn queue(endpoint: &Endpoint<Soft>) -> SoftUd {
    let ud = Soft::create_datagrams(&endpoint.ctx, KEY).expect("queue");
    ud.admit(&endpoint.path).expect("admit");
    ud
}

fn send(ud: &SoftUd, to: &SoftDestination, bytes: &[u8]) -> Result<Posted, DatagramError> {
    let posted = ud.post(to, &[IoSlice::new(bytes)]);
    ud.ring(to);
    posted
}

#[test]
fn a_sender_learns_that_its_destination_is_gone() {
    let _dog = Watchdog::new("gone");
    let [a, b] = Linked.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    assert_eq!(send(&of_a, &to, b"one"), Ok(Posted::Out));
    drop(of_b);
    while send(&of_a, &to, b"more") != Err(DatagramError::Gone) {}
    // The error is permanent.
    assert_eq!(send(&of_a, &to, b"more"), Err(DatagramError::Gone));
}

#[test]
fn memory_of_a_queue_is_freed_once_its_senders_have_noticed() {
    let _dog = Watchdog::new("memory");
    let [a, b] = Linked.endpoints();
    let before = b.path.in_use();
    for _ in 0..3 {
        let (of_a, of_b) = (queue(&a), queue(&b));
        let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
        assert_eq!(send(&of_a, &to, &[1; 5000]), Ok(Posted::Out));
        // The sender may still write the lane until it has noticed that the queue is gone. Queues
        // of other tests let all senders of the process look, and wait for this one's lock.
        let writing = to.sender.write_for_long();
        of_b.receivers.write().unwrap_or_else(PoisonError::into_inner).clear();
        assert!(b.path.in_use() > before);
        drop(writing);
        drop(of_b);
        while send(&of_a, &to, b"more") != Err(DatagramError::Gone) {}
        drop((of_a, to));
    }
    // The next allocation frees what is left.
    drop(queue(&b));
    assert_eq!(b.path.in_use(), before);
}

#[test]
fn dead_peers_are_swept_out_and_their_datagrams_stay() {
    let _dog = Watchdog::new("sweep");
    let [a, b] = Linked.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    send(&of_a, &to, b"last words").expect("sent");
    a.path.hang_up();
    of_b.sweep();
    let mut got = 0;
    assert!(of_b.try_recv(&mut |arrived: &dyn Arrived| got = arrived.len()));
    assert_eq!(got, 10);
    of_b.sweep();
    assert!(of_b.receivers.read().expect("lock").is_empty());
    while send(&of_a, &to, b"more") != Err(DatagramError::Gone) {}
    assert!(matches!(of_b.admit(&b.path), Err(Error::PeerGone)));
}

#[test]
fn malformed_entries_are_skipped_and_counted() {
    let [a, b] = Linked.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    // No operation, a write, an inline length beyond the slot, a datagram in parts, one that is
    // longer than any, and a message that does not fit.
    let words = [0, 255, 1 | 8 << 8, 2 | 9 << 16, 3 | 49 << 8, 4 | 16384 << 16, 5 | 8193 << 16, 6];
    for word in words {
        to.sender.forge(1, word);
    }
    send(&of_a, &to, &[9; 300]).expect("sent");
    let mut got = Vec::new();
    let mut take = |arrived: &dyn Arrived| {
        got = vec![0; arrived.len()];
        arrived.copy_out(0, &mut got);
    };
    assert!(of_b.try_recv(&mut take));
    assert_eq!(got, [9; 300]);
    let counters = of_b.counters();
    assert_eq!((counters.n_received, counters.n_malformed), (1, words.len() as u64));
}

#[test]
fn lanes_have_the_room_that_the_queue_has_when_they_are_made() {
    const LEN: usize = 4000;
    for (bytes, room) in [(0, 16), (65_536, 16), (65_537, 32), (212_992, 65), (usize::MAX, 1024)] {
        let [a, b] = Linked.endpoints();
        let of_a = queue(&a);
        let of_b = Soft::create_datagrams(&b.ctx, KEY).expect("queue");
        of_b.set_room(bytes);
        assert_eq!(of_b.room(LEN), room);
        of_b.admit(&b.path).expect("admit");
        // Applies to processes that are admitted later.
        of_b.set_room(usize::MAX);
        assert_eq!(of_b.room(LEN), room);
        let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
        for round in 0..3u8 {
            let payload = [round; LEN];
            for _ in 0..room {
                assert_eq!(send(&of_a, &to, &payload), Ok(Posted::Out), "{bytes}");
            }
            assert_eq!(send(&of_a, &to, &payload), Ok(Posted::Lost), "{bytes}");
            let mut n = 0;
            let mut take = |arrived: &dyn Arrived| {
                let mut got = vec![9; arrived.len()];
                arrived.copy_out(0, &mut got);
                assert_eq!(got, payload);
                n += 1;
            };
            while of_b.try_recv_up_to(7, &mut take) != 0 {}
            assert_eq!(n, room);
        }
        let (sent, got) = (of_a.counters(), of_b.counters());
        assert_eq!(sent.n_sent, got.n_received + sent.n_full);
    }
}

#[test]
fn a_stream_s_queue_pair_is_no_destination() {
    let [a, b] = Linked.endpoints();
    let of_a = queue(&a);
    let pd = b.ctx.alloc_pd(&b.path).expect("pd");
    let (_cq, qp) = pd.create_qp(&b.ctx, CAP).expect("queue pair");
    qp.init(Access::empty()).expect("init");
    let to = of_a.destination(&a.path, qp.qp_num(), KEY);
    assert!(matches!(to, Err(Error::Invalid(_))));
    // Nor is a queue that has not admitted this process.
    let hidden = Soft::create_datagrams(&b.ctx, KEY).expect("queue");
    let to = of_a.destination(&a.path, hidden.qp_num(), KEY);
    assert!(matches!(to, Err(Error::Invalid(_))));
}

#[test]
fn a_closed_queue_is_gone_for_its_senders_and_keeps_its_datagrams() {
    let _dog = Watchdog::new("closed");
    let [a, b] = Linked.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    assert_eq!(send(&of_a, &to, b"before"), Ok(Posted::Out));
    of_b.close();
    // At once, not at the next periodic check.
    assert_eq!(send(&of_a, &to, b"after"), Err(DatagramError::Gone));
    assert!(of_b.admit(&b.path).is_err());
    let mut lengths = Vec::new();
    assert!(of_b.try_recv(&mut |arrived| lengths.push(arrived.len())));
    assert!(!of_b.try_recv(&mut |arrived| lengths.push(arrived.len())));
    assert_eq!(lengths, [6]);
}

/// Streaming and ordinary stores take turns in a trial, which lasts for some megabytes.
#[test]
fn datagrams_are_whole_while_their_sender_tries_both_kinds_of_stores() {
    const BYTES: usize = 14 << 20;
    let _dog = Watchdog::new("trials");
    let [a, b] = Linked.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    let bytes = |n: usize, len: usize| -> Vec<u8> {
        (n..n + len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
    };
    for len in [700, 1500, MAX_LEN - 8] {
        let (mut n_sent, mut n_received) = (0_usize, 0_usize);
        while n_sent < BYTES / len {
            let header = n_sent.to_le_bytes();
            let payload = bytes(n_sent, len);
            let pieces = [IoSlice::new(&header), IoSlice::new(&payload)];
            match of_a.post(&to, &pieces).expect("sent") {
                Posted::Out => n_sent += 1,
                Posted::Lost => {
                    while of_b.try_recv(&mut |arrived| {
                        let mut got = vec![0; arrived.len()];
                        arrived.copy_out(0, &mut got);
                        assert_eq!(got[..8], n_received.to_le_bytes());
                        assert!(got[8..] == bytes(n_received, len)[..], "wrong bytes");
                        n_received += 1;
                    }) {}
                }
            }
        }
        while of_b.try_recv(&mut |_| n_received += 1) {}
        assert_eq!(n_received, n_sent);
    }
}

#[test]
fn a_datagram_that_is_left_is_the_next_one_again() {
    let _dog = Watchdog::new("left");
    let [a, b] = Linked.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    for bytes in [&b"one"[..], &[2; 100], b"three"] {
        assert_eq!(send(&of_a, &to, bytes), Ok(Posted::Out));
    }
    for expected in [3, 100, 5] {
        for is_taken in [false, false, true] {
            let mut len = 0;
            assert!(of_b.try_take(|arrived| {
                len = arrived.len();
                is_taken
            }));
            assert_eq!(len, expected);
        }
    }
    assert_eq!(of_b.counters().n_received, 3);
}

/// Arms a bell for the queue, which has a datagram, while the list of its receivers is being
/// changed.
fn arm_unseen(ud: &SoftUd, bell: &SoftBell) {
    let changing = ud.receivers.write().expect("lock");
    // The receivers cannot be checked now, so the bell is armed.
    assert!(ud.arm(bell));
    drop(changing);
    assert!(!bell.take());
}

/// An operation that changes the list of a queue's receivers; it gets another peer to admit.
type Change<'a> = &'a dyn Fn(&SoftUd, &Endpoint<Soft>);

/// A waiter that armed while the list of receivers changed, and so could not check them, is woken
/// by the thread that changed the list.
#[test]
fn a_waiter_that_armed_during_a_change_of_receivers_is_woken() {
    let [a, b] = Linked.endpoints();
    let changes: [Change<'_>; 3] =
        [&|ud, _| ud.sweep(), &|ud, another| ud.admit(&another.path).expect("admit"), &|ud, _| {
            ud.close()
        }];
    for change in changes {
        let (of_a, of_b) = (queue(&a), queue(&b));
        let to = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
        let bell = b.ctx.create_bell().expect("bell");
        assert_eq!(send(&of_a, &to, b"there"), Ok(Posted::Out));
        arm_unseen(&of_b, &bell);
        let [another, _other] = Linked.endpoints();
        change(&of_b, &another);
        assert!(bell.take());
    }
}

/// A sender that sees that the lane is closed must then find that the queue takes no more;
/// otherwise it would count the datagram as lost for lack of room.
#[test]
fn a_closed_lane_was_marked_as_taking_no_more_before() {
    let _dog = Watchdog::new("closing");
    let [a, b] = Linked.endpoints();
    for _ in 0..2000 {
        let of_b = queue(&b);
        let receiver = Arc::clone(&of_b.receivers.read().expect("lock")[0]);
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                loop {
                    if let Some(is_wanted) = receiver.is_wanted_when_closed() {
                        return is_wanted;
                    }
                    std::hint::spin_loop();
                }
            });
            of_b.close();
            assert_eq!(seen.join().ok(), Some(false));
        });
    }
    drop(a);
}
