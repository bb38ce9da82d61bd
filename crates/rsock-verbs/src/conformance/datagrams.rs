//! Datagrams: what a queue accepts, what it loses, and that a waiting thread is woken.
//!
//! A device may lose datagrams. Where it knows what it loses, nothing else may be missing; where it
//! does not, it loses nothing for which its receiver has room, in these tests as on a wire that is
//! in order.

use super::{Endpoint, Fixture, Watchdog, pattern};
use crate::datagram::{Arrived, DatagramBackend, DatagramError, DatagramQueue, Posted};
use crate::device::{Bell, Context, Parked};
use crate::types::{QKey, QpNum};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const KEY: QKey = QKey(0x0123_4567);

/// More than any queue has room for.
const MANY: u32 = 4000;

/// A queue, and the route from it to the other end's.
struct End<B: DatagramBackend> {
    ud: B::Datagrams,
    to: B::Destination,
    endpoint: Endpoint<B>,
}

fn queue<B: DatagramBackend>(endpoint: &Endpoint<B>) -> B::Datagrams {
    let ud = B::create_datagrams(&endpoint.ctx, KEY).expect("queue");
    ud.admit(&endpoint.path).expect("admit");
    ud
}

fn pair<F: Fixture<Backend: DatagramBackend>>(f: &F) -> [End<F::Backend>; 2] {
    let [a, b] = f.endpoints();
    let (of_a, of_b) = (queue(&a), queue(&b));
    let to_b = of_a.destination(&a.path, of_b.qp_num(), KEY).expect("destination");
    let to_a = of_b.destination(&b.path, of_a.qp_num(), KEY).expect("destination");
    [End { ud: of_a, to: to_b, endpoint: a }, End { ud: of_b, to: to_a, endpoint: b }]
}

/// Sends a datagram as soon as the device has room for it.
fn post<B: DatagramBackend>(
    ud: &B::Datagrams,
    to: &B::Destination,
    pieces: &[IoSlice<'_>],
) -> Posted {
    loop {
        match ud.post(to, pieces) {
            Err(DatagramError::Full) => std::thread::yield_now(),
            posted => {
                ud.ring(to);
                return posted.expect("post");
            }
        }
    }
}

impl<B: DatagramBackend> End<B> {
    fn send(&self, bytes: &[u8]) -> Posted {
        post::<B>(&self.ud, &self.to, &[IoSlice::new(bytes)])
    }

    fn try_recv(&self) -> Option<(QpNum, Vec<u8>)> {
        let mut got = None;
        let any = self.ud.try_recv(&mut |arrived: &dyn Arrived| {
            let mut bytes = vec![0; arrived.len()];
            arrived.copy_out(0, &mut bytes);
            got = Some((arrived.src(), bytes));
        });
        assert_eq!(any, got.is_some());
        got
    }

    fn recv(&self) -> (QpNum, Vec<u8>) {
        loop {
            let epoch = self.ud.wake_epoch();
            if let Some(got) = self.try_recv() {
                return got;
            }
            self.ud.park_since(epoch, Some(Duration::from_millis(100)));
        }
    }
}

/// Every length up to the longest arrives with all its bytes, in both directions.
pub fn datagrams_of_any_length_arrive_whole<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("lengths");
    let [a, b] = pair(f);
    let most = a.ud.max_len();
    assert!(most >= 1024);
    let lengths = [0, 1, 39, 40, 47, 48, 49, 63, 64, 65, 1000, 1024, most / 2, most - 1, most];
    for (i, len) in (0u8..).zip(lengths.into_iter().cycle()).take(60) {
        let (from, to) = if i % 3 == 0 { (&b, &a) } else { (&a, &b) };
        let sent = pattern(len, i);
        assert_eq!(from.send(&sent), Posted::Out);
        assert_eq!(to.recv(), (from.ud.qp_num(), sent));
    }
    assert!(a.try_recv().is_none() && b.try_recv().is_none());
}

/// Pieces become one datagram, which can be read in other pieces.
pub fn datagrams_are_gathered_and_read_in_pieces<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("pieces");
    let [a, b] = pair(f);
    for len in [3, 48, 700, 1024] {
        let sent = pattern(len, 7);
        let (head, rest) = sent.split_at(len / 3);
        let pieces = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(rest)];
        // Several, so that they lie in different places.
        for _ in 0..100 {
            post::<F::Backend>(&a.ud, &a.to, &pieces);
            let mut seen = vec![0; len];
            let (front, back) = seen.split_at_mut(len / 2);
            let mut take = |arrived: &dyn Arrived| {
                assert_eq!(arrived.len(), len);
                arrived.copy_out(len / 2, back);
                arrived.copy_out(0, front);
                arrived.copy_out(len, &mut []);
            };
            while !b.ud.try_recv(&mut take) {
                b.ud.park_since(b.ud.wake_epoch(), Some(Duration::from_millis(100)));
            }
            assert_eq!(seen, sent);
        }
    }
}

/// A datagram that is too long is an error, and no part of it arrives.
pub fn a_datagram_that_is_too_long_is_refused<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("too long");
    let [a, b] = pair(f);
    let long = vec![1; a.ud.max_len() + 1];
    let before = a.ud.counters();
    let posted = a.ud.post(&a.to, &[IoSlice::new(&long)]);
    assert_eq!(posted, Err(DatagramError::TooLong));
    assert_eq!(a.ud.counters(), before);
    a.send(b"next");
    assert_eq!(b.recv().1, b"next");
}

/// A fast sender and a slow reader: what arrives is in order, and nothing is missing that was
/// not counted.
pub fn datagrams_of_one_sender_arrive_in_order_and_every_loss_is_counted<
    F: Fixture<Backend: DatagramBackend>,
>(
    f: &F,
) {
    const N: u32 = 20_000;
    let _dog = Watchdog::new("order");
    let [a, b] = pair(f);
    let is_over = AtomicBool::new(false);
    let last = std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..N {
                let mut bytes = pattern(100, 1);
                bytes[..4].copy_from_slice(&i.to_ne_bytes());
                a.send(&bytes[..4 + i as usize % 97]);
            }
            // The end must arrive, so it is sent until it has.
            while a.send(&u32::MAX.to_ne_bytes()) == Posted::Lost
                || !F::Backend::KNOWS_LOSS && !is_over.load(Ordering::Relaxed)
            {
                std::thread::yield_now();
            }
        });
        let mut next = 0;
        loop {
            let (_, bytes) = b.recv();
            let i = u32::from_ne_bytes(bytes[..4].try_into().expect("number"));
            if i == u32::MAX {
                is_over.store(true, Ordering::Relaxed);
                return next;
            }
            assert!(i >= next && bytes.len() == 4 + i as usize % 97, "{i} after {next}");
            next = i + 1;
        }
    });
    assert!(last > 0);
    let (sent, got) = (a.ud.counters(), b.ud.counters());
    assert!(sent.n_sent > u64::from(N));
    assert!(got.n_received <= sent.n_sent - sent.n_full && got.n_malformed == 0);
    if F::Backend::KNOWS_LOSS {
        assert_eq!(got.n_received, sent.n_sent - sent.n_full);
    }
}

/// The sender does not wait for a receiver: a datagram without room is lost.
pub fn a_full_queue_loses_what_comes_and_takes_more_once_it_is_read<
    F: Fixture<Backend: DatagramBackend>,
>(
    f: &F,
) {
    let _dog = Watchdog::new("full");
    let [a, b] = pair(f);
    for round in 0..3 {
        let mut n = 0;
        for len in [500, 8] {
            while a.send(&pattern(len, 3)) == Posted::Out && (F::Backend::KNOWS_LOSS || n < MANY) {
                n += 1;
                assert!(n < 1 << 20, "a queue without a bound");
            }
        }
        for _ in 0..100 {
            a.send(&pattern(500, 3));
        }
        let mut got = 0;
        while b.try_recv().is_some() {
            got += 1;
        }
        if F::Backend::KNOWS_LOSS {
            assert!(got >= 16 && got == n, "{got} of {n} in round {round}");
        } else {
            assert!(got >= 16 && got < n, "{got} of {n} in round {round}");
        }
    }
    let (sent, got) = (a.ud.counters(), b.ud.counters());
    assert!(sent.n_sent >= got.n_received + sent.n_full);
    if F::Backend::KNOWS_LOSS {
        assert!(sent.n_full >= 300);
        assert_eq!(sent.n_sent, got.n_received + sent.n_full);
    }
    loop {
        let posted = a.send(b"again");
        assert_eq!(posted, Posted::Out);
        // Datagrams sent before may arrive before.
        let epoch = b.ud.wake_epoch();
        b.ud.park_since(epoch, Some(Duration::from_millis(100)));
        let mut got = std::iter::from_fn(|| b.try_recv());
        if got.any(|(_, bytes)| bytes == b"again") {
            break;
        }
        assert!(!F::Backend::KNOWS_LOSS, "a loss that was not reported");
    }
}

/// As many as it states fit; on a device that reports losses, no more.
pub fn a_queue_has_the_room_that_it_states<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("room");
    let [a, b] = pair(f);
    for len in [1, 48, 49, 500, 1000] {
        let room = b.ud.room(len);
        assert!((8..1 << 20).contains(&room), "{room} of {len} bytes");
        for i in 0..room {
            assert_eq!(a.send(&pattern(len, 5)), Posted::Out, "{i} of {room} of {len} bytes");
        }
        if F::Backend::KNOWS_LOSS {
            assert_eq!(a.send(&pattern(len, 5)), Posted::Lost, "{room} of {len} bytes");
        }
        for _ in 0..room {
            assert_eq!(b.recv().1, pattern(len, 5));
        }
        assert!(b.try_recv().is_none());
    }
    let counters = b.ud.counters();
    assert_eq!(counters.n_malformed, 0);
}

/// The Q_Key is checked.
pub fn a_datagram_with_another_key_is_lost<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("key");
    let [a, b] = pair(f);
    let other = QKey(KEY.0 + 1);
    let to = a.ud.destination(&a.endpoint.path, b.ud.qp_num(), other).expect("destination");
    let is_known = F::Backend::KNOWS_LOSS;
    let posted = post::<F::Backend>(&a.ud, &to, &[IoSlice::new(b"lost")]);
    assert_eq!(posted == Posted::Lost, is_known);
    a.send(b"taken");
    assert_eq!(b.recv().1, b"taken");
    let counters = a.ud.counters();
    let seen = (counters.n_sent, counters.n_wrong_key, counters.n_full);
    assert_eq!(seen, (2, u64::from(is_known), 0));
}

/// Several datagrams are taken in order, at most as many as there are and as were requested.
pub fn several_datagrams_are_taken_at_once<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("several");
    let [a, b] = pair(f);
    let sent: Vec<_> = (0u8..7).map(|i| pattern(usize::from(i) * 30, i)).collect();
    for bytes in &sent {
        assert_eq!(a.send(bytes), Posted::Out);
    }
    let mut got = vec![b.recv().1];
    let mut ask_for = 2;
    while got.len() < sent.len() {
        let before = got.len();
        let n = b.ud.try_recv_up_to(ask_for, &mut |arrived: &dyn Arrived| {
            let mut bytes = vec![0; arrived.len()];
            arrived.copy_out(0, &mut bytes);
            got.push(bytes);
        });
        assert_eq!(n, got.len() - before);
        assert!(n <= ask_for);
        ask_for = 10;
    }
    assert_eq!(got, sent);
    assert_eq!(b.ud.try_recv_up_to(1, &mut |_| panic!("nothing is left")), 0);
    assert_eq!(b.ud.try_recv_up_to(0, &mut |_| panic!("no datagram was requested")), 0);
    assert_eq!(b.ud.counters().n_received, 7);
}

/// Queues of one process and of others, all at once, into one queue.
pub fn a_queue_takes_from_many_senders<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    const SENDERS: u8 = 6;
    const EACH: u32 = 500;
    // Few enough to have room, however slow the receiver is.
    const AHEAD: u32 = 8;
    let _dog = Watchdog::new("many senders");
    let [a, b] = pair(f);
    let senders: Vec<_> = (0..SENDERS).map(|_| queue(&a.endpoint)).collect();
    let taken = [const { AtomicU32::new(0) }; SENDERS as usize];
    std::thread::scope(|s| {
        for (i, ud) in (0u8..).zip(&senders) {
            let (a, b, taken) = (&a, &b, &taken[usize::from(i)]);
            s.spawn(move || {
                let to = ud.destination(&a.endpoint.path, b.ud.qp_num(), KEY).expect("destination");
                for n in 0..EACH {
                    while n >= taken.load(Ordering::Relaxed) + AHEAD {
                        std::thread::yield_now();
                    }
                    let bytes = [&[i][..], &n.to_ne_bytes()].concat();
                    while post::<F::Backend>(ud, &to, &[IoSlice::new(&bytes)]) == Posted::Lost {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0u32; SENDERS as usize];
        for _ in 0..u32::from(SENDERS) * EACH {
            let (src, bytes) = b.recv();
            let i = usize::from(bytes[0]);
            assert_eq!(src, senders[i].qp_num());
            assert_eq!(bytes[1..], next[i].to_ne_bytes());
            next[i] += 1;
            taken[i].store(next[i], Ordering::Relaxed);
        }
    });
    assert!(b.try_recv().is_none());
}

/// A number that no queue has, and one of a queue that is gone: an error or a loss, nothing worse.
pub fn datagrams_to_a_missing_queue_do_no_harm<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("a missing queue");
    let [a, b] = pair(f);
    if let Ok(to) = a.ud.destination(&a.endpoint.path, QpNum(0x00ff_fff0), KEY) {
        let _ = a.ud.post(&to, &[IoSlice::new(b"lost")]);
        a.ud.ring(&to);
    }
    assert_eq!(a.send(b"taken"), Posted::Out);
    assert_eq!(b.recv().1, b"taken");
    let End { ud, to, endpoint } = b;
    drop((ud, to));
    for _ in 0..3000 {
        let _ = a.ud.post(&a.to, &[IoSlice::new(&pattern(100, 1))]);
        a.ud.ring(&a.to);
    }
    // A successor is reached, under its own number.
    let ud = queue(&endpoint);
    let to = a.ud.destination(&a.endpoint.path, ud.qp_num(), KEY).expect("destination");
    // Datagrams for its predecessor may still be under way, and use its room.
    let mut got = 0;
    while got != 5 {
        assert_eq!(post::<F::Backend>(&a.ud, &to, &[IoSlice::new(b"hello")]), Posted::Out);
        let epoch = ud.wake_epoch();
        ud.park_since(epoch, Some(Duration::from_millis(100)));
        ud.try_recv(&mut |arrived: &dyn Arrived| got = arrived.len());
    }
}

/// A parked thread wakes for each datagram, however the two interleave, and a bounded sleep ends.
pub fn threads_that_park_wake_for_datagrams<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    const ROUNDS: u32 = 2000;
    let _dog = Watchdog::new("park");
    let [a, b] = pair(f);
    let epoch = a.ud.wake_epoch();
    assert_eq!(a.ud.park_since(epoch, Some(Duration::from_millis(1))), Parked::TimedOut);
    a.ud.wake_waiters();
    assert_eq!(a.ud.park_since(epoch, None), Parked::Woken);
    let play = |me: &End<F::Backend>, first: bool| {
        for i in 0..ROUNDS {
            if first {
                me.send(&i.to_ne_bytes());
            }
            let got = loop {
                let epoch = me.ud.wake_epoch();
                match me.try_recv() {
                    Some((_, got)) => break got,
                    None => assert_eq!(me.ud.park_since(epoch, None), Parked::Woken),
                }
            };
            assert_eq!(got, i.to_ne_bytes());
            if !first {
                me.send(&i.to_ne_bytes());
            }
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| play(&b, false));
        play(&a, true);
    });
}

/// An armed bell rings for the next datagram, wherever it comes from.
pub fn bells_ring_for_datagrams<F: Fixture<Backend: DatagramBackend>>(f: &F) {
    let _dog = Watchdog::new("bell");
    let [a, b] = pair(f);
    let bell = b.endpoint.ctx.create_bell().expect("bell");
    for i in 0..500u32 {
        assert!(b.ud.arm(&bell));
        std::thread::scope(|s| {
            s.spawn(|| a.send(&i.to_ne_bytes()));
            let mut fds = [PollFd::new(&bell, PollFlags::IN)];
            while poll(&mut fds, None).expect("poll") == 0 {}
        });
        assert!(!b.ud.arm(&bell), "there is something");
        assert_eq!(b.recv().1, i.to_ne_bytes());
        b.ud.disarm(&bell);
        bell.drain();
    }
}
