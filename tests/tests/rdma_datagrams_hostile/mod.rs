//! A peer that can reach a socket's queue or its UDP port, and sends what it likes.

use super::*;
use rsock_core::datagram::header::{QueueHeader, UdpHeader, UdpOp};
use rsock_verbs::rdma::{Rdma, RdmaContext, RdmaDestination, RdmaUd};
use rsock_verbs::{DatagramBackend, DatagramError, DatagramQueue, Gid, Posted, QKey, QpNum};
use std::net::UdpSocket;

/// WIRE: of every datagram rsocket.
pub(super) const KEY: QKey = QKey(0x0123_4567);

/// A peer of the test's own, with a UDP socket and a queue on the device.
pub(super) struct Stranger {
    udp: UdpSocket,
    pub(super) at: SocketAddr,
    pub(super) ud: RdmaUd,
    ctx: RdmaContext,
}

impl Stranger {
    pub(super) fn new() -> Self {
        let name = env::var("LAB_DEVICE").expect("the lab names its device");
        Self::on(&name, ADDRESSES[0])
    }

    pub(super) fn on(device: &str, ip: &str) -> Self {
        let ctx = RdmaContext::open(Some(device)).expect("device");
        let ud = Rdma::create_datagrams(&ctx, KEY).expect("queue");
        let udp = UdpSocket::bind((ip, 0)).expect("socket");
        let at = udp.local_addr().expect("address");
        Self { udp, at, ud, ctx }
    }

    fn tell(&self, to: SocketAddr, op: UdpOp, number: u32, payload: &[u8]) {
        let header = UdpHeader { op, qp_num: QpNum(number), addr: self.at.ip() };
        let packet = [header.encode().as_bytes(), payload].concat();
        self.udp.send_to(&packet, to).expect("sent");
    }

    /// The number of `victim`'s queue, which the victim tells every sender.
    fn number_of(&self, victim: &Datagram, at: SocketAddr) -> QpNum {
        self.tell(at, UdpOp::Data, self.ud.qp_num().0, b"your number?");
        assert_eq!(recv(victim), (b"your number?".to_vec(), self.at));
        let mut buf = [0; 100];
        let (len, from) = self.udp.recv_from(&mut buf).expect("answer");
        assert_eq!(from, at);
        let (header, _) = UdpHeader::parse(&buf[..len], false).expect("header");
        assert_eq!(header.op, UdpOp::Control);
        header.qp_num
    }

    fn way(&self, number: QpNum, key: QKey) -> RdmaDestination {
        self.way_to(self.at.ip(), number, key)
    }

    pub(super) fn way_to(&self, ip: IpAddr, number: QpNum, key: QKey) -> RdmaDestination {
        let own = self.ctx.find_gid(Gid::from(self.at.ip())).expect("the lab's address");
        let path = self.ctx.path(&own, Gid::from(ip)).expect("path");
        self.ud.destination(&path, number, key).expect("destination")
    }

    pub(super) fn post(&self, way: &RdmaDestination, bytes: &[u8]) {
        loop {
            match self.ud.post(way, &[IoSlice::new(bytes)]) {
                Err(DatagramError::Full) => thread::yield_now(),
                posted => break assert_eq!(posted, Ok(Posted::Out)),
            }
        }
    }
}

fn header(source: SocketAddr) -> Vec<u8> {
    QueueHeader { source }.encode().as_bytes().to_vec()
}

#[test]
fn datagrams_with_short_or_lying_headers_are_dropped_and_counted() {
    on_rdma(
        "rdma_datagrams_hostile::datagrams_with_short_or_lying_headers_are_dropped_and_counted",
        || {
            let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
            talk_past_udp([(&a, at_a), (&b, at_b)]);
            let x = Stranger::new();
            let way = x.way(x.number_of(&a, at_a), KEY);
            let good = header(x.at);
            let mut bad: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
            for (at, value) in [(0, 5), (0, 6), (0, 0), (0, 255), (1, 24), (1, 7), (1, 255)] {
                let mut lie = [&good[..], b"payload"].concat();
                lie[at] = value;
                bad.push(lie);
            }
            // In the name of others: the network knows better.
            let others = ["10.9.0.2:1", "127.0.0.1:1", "0.0.0.0:0", "[fd09::1]:1", "[::]:9"];
            for other in others {
                let other: SocketAddr = other.parse().expect("address");
                bad.push([&header(other)[..], b"payload"].concat());
            }
            // All of version 6, and too short for it; and the longest that a packet carries.
            bad.push(vec![6, 24, 0, 1, 0, 0, 0, 0]);
            bad.push(vec![9; x.ud.max_len()]);
            let before = a.counters().n_foreign;
            for bytes in &bad {
                x.post(&way, bytes);
                // One at a time: none is lost for lack of room.
                let n = a.counters().n_foreign;
                until(|| {
                    assert_eq!(try_recv(&a), None, "{bytes:?}");
                    a.counters().n_foreign > n
                });
            }
            assert_eq!(a.counters().n_foreign - before, bad.len() as u64);
            // What is said well is taken; the longest, too.
            for len in [0, 1, x.ud.max_len() - good.len()] {
                x.post(&way, &[&good[..], &vec![7; len]].concat());
                assert_eq!(recv(&a), (vec![7; len], x.at));
            }
            send(&b, at_a, b"as before");
            assert_eq!(recv(&a), (b"as before".to_vec(), at_b));
            assert_eq!(a.counters().remote.n_malformed, 0);
        },
    );
}

#[test]
fn datagrams_with_another_key_do_not_arrive() {
    on_rdma("rdma_datagrams_hostile::datagrams_with_another_key_do_not_arrive", || {
        let (a, at_a) = bound(ADDRESSES[0]);
        let x = Stranger::new();
        let number = x.number_of(&a, at_a);
        let [wrong, right] = [QKey(1), KEY].map(|key| x.way(number, key));
        let before = a.counters().remote.n_received;
        for _ in 0..50 {
            x.post(&wrong, &header(x.at));
        }
        x.post(&right, &[&header(x.at)[..], b"right"].concat());
        assert_eq!(recv(&a), (b"right".to_vec(), x.at));
        assert_eq!(a.counters().remote.n_received, before + 1);
    });
}

/// Numbers that lead nowhere cost only the peer that told them.
#[test]
fn a_peer_that_tells_a_wrong_number_is_ignored_and_disturbs_no_other() {
    on_rdma(
        "rdma_datagrams_hostile::a_peer_that_tells_a_wrong_number_is_ignored_and_disturbs_no_other",
        || {
            let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
            talk_past_udp([(&a, at_a), (&b, at_b)]);
            let x = Stranger::new();
            for number in [1, 0x00ff_fff0, 0x00ff_ffff] {
                x.tell(at_a, UdpOp::Data, number, b"hello");
                assert_eq!(recv(&a), (b"hello".to_vec(), x.at));
                for _ in 0..20 {
                    send(&a, x.at, b"answer");
                }
                send(&a, at_b, b"as before");
                assert_eq!(recv(&b), (b"as before".to_vec(), at_a));
            }
            // It has none: by UDP then.
            x.tell(at_a, UdpOp::Data, 0, b"hello");
            assert_eq!(recv(&a), (b"hello".to_vec(), x.at));
            let by_udp = a.counters().n_by_udp;
            send(&a, x.at, b"answer");
            assert_eq!(a.counters().n_by_udp, by_udp + 1);
            talk_past_udp([(&a, at_a), (&b, at_b)]);
        },
    );
}

/// A datagram on the wire does not name its destination socket: what is sent to the stranger
/// arrives at `c`, because the stranger told `c`'s number. No other datagrams go astray, and a
/// connected `c` drops them.
#[test]
fn a_peer_that_tells_anothers_number_misleads_datagrams_to_itself() {
    on_rdma(
        "rdma_datagrams_hostile::a_peer_that_tells_anothers_number_misleads_datagrams_to_itself",
        || {
            let [(a, at_a), (b, at_b), (c, at_c)] = [(); 3].map(|()| bound(ADDRESSES[0]));
            talk_past_udp([(&a, at_a), (&b, at_b)]);
            talk_past_udp([(&c, at_c), (&b, at_b)]);
            let x = Stranger::new();
            let number = x.number_of(&c, at_c);
            x.tell(at_a, UdpOp::Data, number.0, b"hello");
            assert_eq!(recv(&a), (b"hello".to_vec(), x.at));
            send(&a, x.at, b"for the stranger");
            assert_eq!(recv(&c), (b"for the stranger".to_vec(), at_a));
            assert!(!x.ud.try_recv(&mut |_| ()), "where it did not ask for it");
            c.connect(at_b).expect("connected");
            let before = c.counters().n_foreign;
            for _ in 0..20 {
                send(&a, x.at, b"for the stranger");
            }
            until(|| {
                assert_eq!(try_recv(&c), None);
                c.counters().n_foreign > before
            });
            // Stragglers of those are dropped meanwhile.
            talk_past_udp([(&b, at_b), (&c, at_c)]);
            talk_past_udp([(&a, at_a), (&b, at_b)]);
        },
    );
}

#[test]
fn resolution_by_others_redirects_nothing() {
    on_rdma("rdma_datagrams_hostile::resolution_by_others_redirects_nothing", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        let x = Stranger::new();
        for _ in 0..50 {
            x.tell(at_a, UdpOp::Control, x.ud.qp_num().0, &[]);
        }
        x.tell(at_a, UdpOp::Data, x.ud.qp_num().0, b"last");
        assert_eq!(recv(&a), (b"last".to_vec(), x.at));
        assert_eq!(a.counters().n_unsolicited, 50);
        for _ in 0..100 {
            send(&a, at_b, b"as before");
            assert_eq!(recv(&b), (b"as before".to_vec(), at_a));
        }
        assert!(!x.ud.try_recv(&mut |_| ()), "a datagram for another one");
    });
}

#[test]
fn a_flood_from_many_sources_disturbs_no_other_peer() {
    on_rdma("rdma_datagrams_hostile::a_flood_from_many_sources_disturbs_no_other_peer", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        let x = Stranger::new();
        let way = x.way(x.number_of(&a, at_a), KEY);
        let sources: Vec<_> =
            (0..500).map(|_| UdpSocket::bind((ADDRESSES[0], 0)).expect("socket")).collect();
        let mut n_seen = 0;
        for (i, source) in (1u32..).zip(&sources) {
            let head = UdpHeader { op: UdpOp::Data, qp_num: QpNum(i), addr: at_a.ip() };
            let packet = [head.encode().as_bytes(), b"flood"].concat();
            source.send_to(&packet, at_a).expect("sent");
            for _ in 0..20 {
                x.post(&way, b"rubbish");
                x.post(&way, &[&header(x.at)[..], b"flood"].concat());
            }
            while let Some(bytes) = try_recv(&a) {
                assert_eq!(bytes, b"flood");
                n_seen += 1;
            }
        }
        assert!(n_seen > 500, "{n_seen}");
        assert!(a.counters().n_foreign > 500);
        // What is still on its way comes first.
        send(&b, at_a, b"as before");
        until(|| try_recv(&a).is_some_and(|bytes| bytes == b"as before"));
        meet_again(&a, at_a, &b, at_b);
    });
}

/// As [`talk_past_udp`], with stragglers of a flood in between.
fn meet_again(a: &Datagram, at_a: SocketAddr, b: &Datagram, at_b: SocketAddr) {
    let before = a.counters().remote.n_sent;
    while a.counters().remote.n_sent == before {
        send(a, at_b, b"still there?");
        assert_eq!(recv(b), (b"still there?".to_vec(), at_a));
    }
}
