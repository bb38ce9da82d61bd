//! Many destinations, of one host and of many, and several devices, of one socket.

use super::rdma_datagrams_hostile::{KEY, Stranger};
use super::*;
use rsock_core::datagram::header::{UdpHeader, UdpOp};
use rsock_tests::run;
use rsock_verbs::DatagramQueue;
use std::net::UdpSocket;

/// A socket of no address, and one that listens on each of two devices.
#[test]
fn a_wildcard_socket_talks_over_several_devices_in_turn() {
    on_rdma("rdma_datagrams_many::a_wildcard_socket_talks_over_several_devices_in_turn", || {
        let ips = ["10.78.2.1", "10.78.3.1"];
        let devices = [("two", ips[0]), ("three", ips[1])]
            .map(|(name, ip)| OwnDevice::new(name, ip.parse().expect("an address")));
        let (a, at_any) = bound("0.0.0.0");
        let peers = ips.map(bound);
        let before = devices.each_ref().map(OwnDevice::received);
        let over_device = |socket: &Datagram| {
            let far = socket.counters().remote;
            (far.n_sent, far.n_received)
        };
        let mut n_trips = 0;
        while peers.iter().any(|(peer, _)| over_device(peer).0 < 20) {
            for (peer, at) in &peers {
                let at_a = SocketAddr::new(at.ip(), at_any.port());
                send(&a, *at, b"from any");
                assert_eq!(recv(peer), (b"from any".to_vec(), at_a));
                send(peer, at_a, b"back");
                assert_eq!(recv(&a), (b"back".to_vec(), *at));
            }
            n_trips += 1;
        }
        let (sent, received) = over_device(&a);
        let theirs = peers.each_ref().map(|(peer, _)| over_device(peer));
        assert_eq!((theirs[0].1 + theirs[1].1, theirs[0].0 + theirs[1].0), (sent, received));
        assert!(theirs.iter().all(|(_, received)| *received > 0), "{theirs:?} of {n_trips}");
        for ((device, before), (sent, received)) in devices.iter().zip(before).zip(theirs) {
            assert!(device.received() - before >= sent + received, "{}", device.name());
        }
    });
}

/// All of them are this host, and each has a handle of its own.
#[test]
fn more_hosts_are_reached_than_a_queue_keeps_address_handles_for() {
    /// What the queue keeps, and how many sends may be under way beside.
    const MOST: usize = 1024;
    const UNDER_WAY: usize = 128;
    on_rdma(
        "rdma_datagrams_many::more_hosts_are_reached_than_a_queue_keeps_address_handles_for",
        || {
            let own = "10.79.0.1";
            let device = OwnDevice::new("many", own.parse().expect("an address"));
            run(&format!("ip route add local 10.79.0.0/16 dev {}", device.interface()));
            let x = Stranger::on(device.name(), own);
            let first = x.at.ip();
            let hosts = (256..256 + u16::try_from(MOST).expect("few") + 400).map(|host| {
                let [high, low] = host.to_be_bytes();
                IpAddr::from([10, 79, high, low])
            });
            let hosts: Vec<_> = std::iter::once(first).chain(hosts).chain([first]).collect();
            let before = device.received();
            let mut n_arrived = 0;
            for ip in &hosts {
                let way = x.way_to(*ip, x.ud.qp_num(), KEY);
                x.post(&way, b"to many");
                drop(way);
                // One at a time: none is lost for lack of room.
                let n = n_arrived;
                until(|| {
                    x.ud.try_recv(&mut |_| n_arrived += 1);
                    n_arrived > n
                });
                let n_handles = x.ud.n_address_handles();
                assert!(n_handles <= MOST + UNDER_WAY, "{n_handles}");
            }
            assert_eq!(n_arrived, hosts.len());
            assert!(device.received() - before >= hosts.len() as u64);
        },
    );
}

/// A thousand destinations that answer, of one host: each has its way, and all of them one address
/// handle.
#[test]
fn a_thousand_destinations_are_reached_from_one_socket() {
    const N: usize = 1000;
    on_rdma("rdma_datagrams_many::a_thousand_destinations_are_reached_from_one_socket", || {
        let (a, _) = bound(ADDRESSES[0]);
        let x = Stranger::new();
        let peers: Vec<_> =
            (0..N).map(|_| UdpSocket::bind((ADDRESSES[0], 0)).expect("socket")).collect();
        let mut taken = 0;
        let before = a.counters();
        for _ in 0..3 {
            for peer in &peers {
                let to = peer.local_addr().expect("address");
                // By UDP as long as it is unknown, and now and then to ask whether it is still
                // there.
                while goes_by_udp(&a, to) {
                    let mut buf = [0; 100];
                    let (len, from) = peer.recv_from(&mut buf).expect("by UDP");
                    assert!(buf[..len].ends_with(b"hello"));
                    let own =
                        UdpHeader { op: UdpOp::Control, qp_num: x.ud.qp_num(), addr: to.ip() };
                    peer.send_to(own.encode().as_bytes(), from).expect("sent");
                    assert_eq!(try_recv(&a), None);
                }
                while x.ud.try_recv(&mut |_| taken += 1) {}
            }
        }
        let after = a.counters();
        assert_eq!(after.remote.n_sent - before.remote.n_sent, 3 * N as u64);
        assert!(after.n_by_udp - before.n_by_udp >= N as u64);
        until(|| {
            while x.ud.try_recv(&mut |_| taken += 1) {}
            taken == a.counters().remote.n_sent
        });
    });
}

/// Sends; whether that went by UDP.
fn goes_by_udp(a: &Datagram, to: SocketAddr) -> bool {
    let before = a.counters().n_by_udp;
    send(a, to, b"hello");
    a.counters().n_by_udp > before
}
