//! Datagrams between link-local addresses of one host: each address comes with the scope that an
//! answer needs.

use rsock_core::datagram::Datagram;
use rsock_tests::datagrams::{recv, send};
use rsock_tests::{StuckNetwork, Watchdog};
use std::net::SocketAddr;
use std::time::Duration;

fn bound(network: &StuckNetwork) -> (Datagram, SocketAddr) {
    let socket = Datagram::bound(network.link_local.into()).expect("a socket");
    let addr = socket.local_addr().expect("address");
    (socket, addr)
}

#[test]
fn sources_have_their_scope_and_answers_arrive() {
    let _dog = Watchdog::new(Duration::from_secs(60));
    StuckNetwork::run("sources_have_their_scope_and_answers_arrive", |network| {
        let [(a, at_a), (b, at_b)] = [(); 2].map(|()| bound(network));
        for is_connected in [false, true] {
            if is_connected {
                a.connect(at_b).expect("connect");
                b.connect(at_a).expect("connect");
            }
            for i in 0..500u32 {
                send(&a, at_b, &i.to_ne_bytes());
                let (got, from) = recv(&b);
                assert_eq!((&got[..], from), (&i.to_ne_bytes()[..], at_a));
                send(&b, from, b"back");
                assert_eq!(recv(&a), (b"back".to_vec(), at_b));
            }
        }
        let counters = [a, b].map(|socket| socket.counters());
        assert_eq!(counters.map(|c| (c.n_bad_packets, c.n_foreign)), [(0, 0); 2]);
    });
}
