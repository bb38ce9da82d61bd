//! Tests of datagram sockets, in runtimes of both kinds, on any device.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "the test of dropped futures uses a part"
)]

pub(crate) mod flow;
pub(crate) mod peers;

use crate::common::is_rdma;
use rsock_tokio::Datagram;
use std::net::SocketAddr;
use std::{env, fs};

/// Makes each of them a test, which `$run` runs, given its name and what it does.
macro_rules! datagram_tests {
    ($run:path) => {
        crate::datagram::datagram_tests! {
            $run: flow {
                tasks_that_wait_are_woken_by_datagrams_of_every_route
                batches_arrive_whole_or_are_counted
                batches_of_every_size_are_received_by_every_route
                a_datagram_that_is_too_long_for_the_buffer_is_cut
                a_sender_makes_progress_while_its_receiver_does_not_read
            }
            peers {
                the_first_datagram_arrives_once_before_the_peers_have_found_each_other
                a_datagram_behind_many_foreign_packets_makes_the_socket_readable
                a_datagram_behind_very_many_foreign_packets_is_received
                tasks_that_share_a_socket_all_receive_datagrams
                a_socket_moves_between_threads_and_tasks
                a_peer_that_restarts_on_its_port_is_reached_again
                a_waiting_task_is_woken_for_a_queue_that_another_task_makes
                an_error_that_udp_reports_reaches_a_waiting_task
            }
        }
    };
    ($run:path: $($module:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            fn $name() {
                $run(stringify!($name), crate::datagram::$module::$name);
            }
        )*)*
    };
}

pub(crate) use datagram_tests;

/// An address of each family that the device reaches, with port 0; the lab has addresses of its
/// own.
pub(crate) fn addresses() -> [&'static str; 2] {
    if is_rdma() { ["10.9.0.1:0", "[fd09::1]:0"] } else { ["127.0.0.1:0", "[::1]:0"] }
}

pub(crate) fn any() -> &'static str {
    addresses()[0]
}

pub(crate) async fn bound(addr: &str) -> (Datagram, SocketAddr) {
    let socket = Datagram::bind(addr).await.expect("bind");
    let addr = socket.local_addr().expect("address");
    (socket, addr)
}

/// Datagrams that did not go by UDP, but through memory or over the device's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Past {
    sent: u64,
    received: u64,
    lost: u64,
}

fn past_udp(socket: &Datagram) -> Past {
    let counters = socket.counters();
    let (past, other) = match is_rdma() {
        true => (counters.remote, counters.local),
        false => (counters.local, counters.remote),
    };
    assert_eq!((other.n_sent, other.n_received, counters.n_foreign), (0, 0, 0));
    Past { sent: past.n_sent, received: past.n_received, lost: past.n_full }
}

/// Packets that the lab's device has received so far; none where there is no device.
fn received_by_device() -> u64 {
    let Ok(device) = env::var("LAB_DEVICE") else { return 0 };
    let place = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts");
    fs::read_to_string(place).expect("the device's counters").trim().parse().expect("a number")
}

/// Two sockets that have found each other: both send past UDP.
pub(crate) async fn met(addr: &str) -> [(Datagram, SocketAddr); 2] {
    let ends = [bound(addr).await, bound(addr).await];
    let [a, b] = &ends;
    talk([(&a.0, a.1), (&b.0, b.1)]).await;
    ends
}

/// Exchanges datagrams until both send past UDP. Each arrives once, with its source.
async fn talk([(a, at_a), (b, at_b)]: [(&Datagram, SocketAddr); 2]) {
    let before = [a, b].map(|socket| past_udp(socket).sent);
    let mut buf = [0; 8];
    for i in 0u32..10_000 {
        let now = [a, b].map(|socket| past_udp(socket).sent);
        if now[0] > before[0] && now[1] > before[1] {
            return;
        }
        a.send_to(&i.to_ne_bytes(), at_b).await.expect("send");
        assert_eq!(b.recv_from(&mut buf).await.expect("receive"), (4, at_a));
        assert_eq!(buf[..4], i.to_ne_bytes());
        b.send_to(&[1], at_a).await.expect("send");
        assert_eq!(a.recv_from(&mut buf).await.expect("receive"), (1, at_b));
    }
    panic!("still by UDP: {:?} {:?}", a.counters(), b.counters());
}
