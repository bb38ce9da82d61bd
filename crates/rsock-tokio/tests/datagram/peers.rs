//! Peers that are not known yet, restart, or have several tasks waiting for them.

use super::{addresses, any, bound, met, past_udp, talk};
use crate::common::{
    Count, Watchdog, at_own_port, current_thread, in_both, is_rdma, multi_thread, pattern,
    poll_times,
};
use rsock_tokio::Datagram;
use rustix::net::sockopt;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

pub(crate) fn the_first_datagram_arrives_once_before_the_peers_have_found_each_other() {
    in_both(|| async {
        for addr in addresses() {
            let ((a, at_a), (b, at_b)) = (bound(addr).await, bound(addr).await);
            a.send_to(b"first", at_b).await.expect("send");
            assert_eq!((a.counters().n_by_udp, past_udp(&a).sent), (1, 0));
            let mut word = [0; 16];
            b.readable().await.expect("readable");
            assert_eq!(b.recv_from(&mut word).await.expect("receive"), (5, at_a));
            assert_eq!(word[..5], b"first"[..]);
            let none = b.try_recv(&mut word).expect_err("it came once");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);
            assert!(poll_times(b.recv(&mut word), 4).await.is_none(), "it came once");
            talk([(&a, at_a), (&b, at_b)]).await;
        }
    });
}

/// Packets of no peer, more than one look at the UDP socket takes, lie before the datagram.
pub(crate) fn a_datagram_behind_many_foreign_packets_makes_the_socket_readable() {
    in_both(|| async {
        let ((a, at_a), (b, at_b)) = (bound(any()).await, bound(any()).await);
        let foreign = std::net::UdpSocket::bind(any()).expect("a socket");
        for _ in 0..150 {
            foreign.send_to(b"junk", at_b).expect("send");
        }
        a.send_to(b"first", at_b).await.expect("send");
        let mut word = [0; 16];
        loop {
            b.readable().await.expect("readable");
            match b.try_recv_from(&mut word) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                received => break assert_eq!(received.expect("receive"), (5, at_a)),
            }
        }
    });
}

/// The same with more of them than several tries look at, if the UDP socket may have room for so
/// many, and nothing behind the datagram.
pub(crate) fn a_datagram_behind_very_many_foreign_packets_is_received() {
    const MOST: usize = 7000;
    in_both(|| async {
        let (a, at_a) = bound(any()).await;
        let b = rsock_core::datagram::Datagram::bound(any().parse().expect("an address"));
        let b = b.expect("a socket");
        if sockopt::set_socket_recv_buffer_size_force(&b, 1024 * MOST).is_err() {
            // As much as the kernel allows without a privilege (`rmem_max`).
            sockopt::set_socket_recv_buffer_size(&b, 1024 * MOST).expect("room");
        }
        let n = MOST.min(sockopt::socket_recv_buffer_size(&b).expect("room") / 1024);
        let b = Datagram::from_blocking(b).expect("a socket");
        let at_b = b.local_addr().expect("address");
        let foreign = std::net::UdpSocket::bind(any()).expect("a socket");
        for wait_first in [false, true] {
            for _ in 0..n {
                foreign.send_to(b"junk", at_b).expect("send");
            }
            a.send_to(b"last", at_b).await.expect("send");
            assert_eq!(b.counters().n_dropped_by_udp, 0);
            if wait_first {
                b.readable().await.expect("readable");
            }
            let mut word = [0; 16];
            assert_eq!(b.recv_from(&mut word).await.expect("receive"), (4, at_a));
        }
    });
}

/// Whichever task is woken, every task gets datagrams.
pub(crate) fn tasks_that_share_a_socket_all_receive_datagrams() {
    const EACH: u32 = 200;
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
        let b = Arc::new(b);
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let b = Arc::clone(&b);
                tokio::spawn(async move {
                    let mut word = [0; 16];
                    loop {
                        let (n, from) = b.recv_from(&mut word).await.expect("receive");
                        assert_eq!(from, at_a);
                        b.send_to(&word[..n], from).await.expect("send");
                        if word[..n] == b"end"[..] {
                            break;
                        }
                    }
                })
            })
            .collect();
        let mut word = [0; 16];
        for _ in 0..EACH {
            for question in [b"one", b"two"] {
                assert_eq!(a.send_to(question, at_b).await.expect("send"), 3);
            }
            for _ in 0..2 {
                assert_eq!(a.recv_from(&mut word).await.expect("receive"), (3, at_b));
            }
        }
        for taker in takers {
            a.send_to(b"end", at_b).await.expect("send");
            assert_eq!(a.recv_from(&mut word).await.expect("receive"), (3, at_b));
            assert_eq!(word[..3], b"end"[..]);
            drop(taker);
        }
    });
}

/// A wait that began in one task and thread continues in another; the sockets outlive the tasks.
pub(crate) fn a_socket_moves_between_threads_and_tasks() {
    let _watchdog = Watchdog::new();
    let runtime = multi_thread();
    let [(mut a, at_a), (mut b, at_b)] = runtime.block_on(met(any()));
    for i in 0..100 {
        let handle = runtime.handle().clone();
        let moved = std::thread::spawn(move || {
            handle.block_on(async {
                let mut word = [0; 16];
                assert!(poll_times(b.recv(&mut word), i % 3).await.is_none());
                let answering = tokio::spawn(async move {
                    assert_eq!(b.recv_from(&mut word).await.expect("receive"), (8, at_a));
                    b.send_to(&word[..8], at_a).await.expect("send");
                    b
                });
                let asking = tokio::spawn(async move {
                    let mut word = [0; 16];
                    a.send_to(&pattern(i, 8), at_b).await.expect("send");
                    assert_eq!(a.recv_from(&mut word).await.expect("receive"), (8, at_b));
                    assert_eq!(word[..8], pattern(i, 8)[..]);
                    a
                });
                (asking.await.expect("no panic"), answering.await.expect("no panic"))
            })
        });
        (a, b) = moved.join().expect("no panic");
    }
}

/// The restarted peer has another queue.
pub(crate) fn a_peer_that_restarts_on_its_port_is_reached_again() {
    let _watchdog = Watchdog::new();
    current_thread().block_on(async {
        let (a, at_a) = bound(any()).await;
        let (b, at_b) = bound(&at_own_port(any()).to_string()).await;
        talk([(&a, at_a), (&b, at_b)]).await;
        drop(b);
        let mut word = [0; 16];
        for _ in 0..2 {
            let b = Datagram::bind(at_b).await.expect("the port is free");
            // What goes to the old queue is lost until the sender notices, or a datagram by UDP
            // finds out. A datagram to a port without a socket is reported as refused.
            while poll_times(b.readable(), 3).await.is_none() {
                sent(a.send_to(b"still there?", at_b).await);
            }
            while b.try_recv(&mut word).is_ok() {}
            // Each side loses datagrams until it has found the other's new queue.
            let before = past_udp(&b).received;
            while past_udp(&b).received == before {
                sent(a.send_to(b"there you are", at_b).await);
                drop(poll_times(b.readable(), 3).await);
                while let Ok((13, from)) = b.try_recv_from(&mut word) {
                    assert_eq!(from, at_a);
                    b.send_to(b"yes", at_a).await.expect("send");
                }
                drop(poll_times(a.readable(), 3).await);
                while a.try_recv(&mut word).is_ok() {}
            }
        }
    });
}

fn sent(sent: std::io::Result<usize>) {
    if let Err(e) = sent {
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
    }
}

pub(crate) fn an_error_that_udp_reports_reaches_a_waiting_task() {
    in_both(|| async {
        let (a, _) = bound(any()).await;
        let at_b = at_own_port(any());
        a.connect(at_b).await.expect("connect");
        a.send(b"is there a peer?").await.expect("send");
        let refused = a.recv(&mut [0; 8]).await.expect_err("there is no peer");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

/// A task that waits since before its socket used a device does not watch the device's queue: it
/// must be woken to do so.
pub(crate) fn a_waiting_task_is_woken_for_a_queue_that_another_task_makes() {
    let _watchdog = Watchdog::new();
    current_thread().block_on(async {
        let ((a, _), (b, at_b)) = (bound(any()).await, bound(any()).await);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut word = [0; 16];
        {
            let mut waiting = pin!(a.recv(&mut word));
            let mut polls = 0;
            // Until a poll leaves it waiting without another wake-up.
            while count.0.swap(0, Ordering::Relaxed) != 0 || polls < 3 {
                assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                tokio::task::yield_now().await;
                polls += 1;
            }
            a.try_send_to(b"first", at_b).expect("sent");
            let is_woken = count.0.load(Ordering::Relaxed) != 0;
            assert_eq!(is_woken, is_rdma(), "a queue in memory is there from the beginning");
        }
        assert_eq!(b.recv(&mut word).await.expect("receive"), 5);
    });
}
