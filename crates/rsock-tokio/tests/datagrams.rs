//! Datagram sockets in tasks: by UDP and through shared memory, waited for and dropped at every await.

mod common;

use common::{Count, current_thread, in_both, pattern, poll_times};
use rsock_tokio::Datagram;
use std::future::Future;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use tokio::io::{Interest, ReadBuf};

async fn bound(addr: &str) -> (Datagram, SocketAddr) {
    let socket = Datagram::bind(addr).await.expect("bind");
    let addr = socket.local_addr().expect("address");
    (socket, addr)
}

/// Two sockets that talk until both send through shared memory.
async fn met(addr: &str) -> [(Datagram, SocketAddr); 2] {
    let ends = [bound(addr).await, bound(addr).await];
    let [(a, at_a), (b, at_b)] = &ends;
    let mut buf = [0; 8];
    for i in 0u32..10_000 {
        if [a, b].iter().all(|socket| socket.counters().local.n_sent != 0) {
            return ends;
        }
        a.send_to(&i.to_ne_bytes(), *at_b).await.expect("send");
        assert_eq!(b.recv_from(&mut buf).await.expect("receive"), (4, *at_a));
        assert_eq!(buf[..4], i.to_ne_bytes());
        b.send_to(&[1], *at_a).await.expect("send");
        assert_eq!(a.recv_from(&mut buf).await.expect("receive"), (1, *at_b));
    }
    panic!("still by UDP: {:?} {:?}", a.counters(), b.counters());
}

#[test]
fn tasks_that_wait_are_woken_whichever_way_a_datagram_takes() {
    in_both(|| async {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let [(a, at_a), (b, at_b)] = met(addr).await;
            let echo = tokio::spawn(async move {
                let mut buf = vec![0; 70_000];
                loop {
                    let (n, from) = b.recv_from(&mut buf).await.expect("receive");
                    assert_eq!(from, at_a);
                    if n == 0 {
                        break b;
                    }
                    b.send_to(&buf[..n], from).await.expect("send");
                }
            });
            let mut buf = vec![0; 70_000];
            // The longest go by UDP.
            for len in (0..600).map(|i| 1 + i % 300).chain([1400, 8000, 9000, 60_000, 3]) {
                let sent = pattern(len, len);
                assert_eq!(a.send_to(&sent, at_b).await.expect("send"), len);
                assert_eq!(a.recv_from(&mut buf).await.expect("receive"), (len, at_b));
                assert!(buf[..len] == sent[..], "{len} bytes");
            }
            a.send_to(&[], at_b).await.expect("send");
            let b = echo.await.expect("echo");
            let (a, b) = (a.counters(), b.counters());
            assert_eq!(a.local.n_sent, b.local.n_received + a.local.n_full);
            assert_eq!(b.local.n_sent, a.local.n_received + b.local.n_full);
        }
    });
}

#[test]
fn dropped_receives_take_nothing() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met("127.0.0.1:0").await;
        a.connect(at_b).await.expect("connect");
        assert_eq!(a.peer_addr().expect("address"), at_b);
        let mut word = [0; 16];
        for i in 0..200 {
            assert!(poll_times(a.recv_from(&mut word), i % 4).await.is_none());
            assert!(poll_times(a.recv(&mut word), i % 3).await.is_none());
            assert!(poll_times(a.peek(&mut word), i % 5).await.is_none());
            assert!(poll_times(a.readable(), i % 2).await.is_none());
            assert!(poll_times(a.ready(Interest::READABLE), i % 3).await.is_none());
            // Whether it got to its end or not.
            drop(poll_times(a.connect(at_b), i % 2).await);
            drop(poll_times(Datagram::bind("127.0.0.1:0"), i % 2).await);
            b.send_to(&pattern(i, 8), at_a).await.expect("send");
            if let Some(peeked) = poll_times(a.peek_from(&mut word), i % 3).await {
                assert_eq!(peeked.expect("peek"), (8, at_b));
            }
            a.readable().await.expect("readable");
            assert_eq!(a.peek(&mut word).await.expect("peek"), 8);
            assert_eq!(a.recv(&mut word).await.expect("receive"), 8);
            assert_eq!(word[..8], pattern(i, 8)[..]);
            let none = a.try_recv(&mut word).expect_err("nothing left");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);
        }
    });
}

#[test]
fn a_dropped_send_has_sent_all_or_nothing() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met("127.0.0.1:0").await;
        a.connect(at_b).await.expect("connect");
        let mut word = [0; 16];
        for i in 0..200 {
            let mut n_sent = 0;
            for polls in 0..3 {
                n_sent += usize::from(poll_times(a.send(&pattern(i, 8)), polls).await.is_some());
                let sent = poll_times(a.send_to(&pattern(i, 8), at_b), polls).await;
                n_sent += usize::from(sent.is_some());
            }
            // At the latest in the first poll that has a turn left.
            assert!((2..=4).contains(&n_sent), "{n_sent}");
            for _ in 0..n_sent {
                assert_eq!(b.recv_from(&mut word).await.expect("receive"), (8, at_a));
                assert_eq!(word[..8], pattern(i, 8)[..]);
            }
            let none = b.try_recv_from(&mut word).expect_err("nothing left");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);
            assert!(poll_times(a.writable(), 2).await.is_some_and(|done| done.is_ok()));
        }
    });
}

#[test]
fn a_waker_left_behind_is_woken_and_the_task_that_polls_is_served() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met("127.0.0.1:0").await;
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut room = [0; 8];
        let mut buf = ReadBuf::new(&mut room);
        assert!(a.poll_recv_from(&mut cx, &mut buf).is_pending());
        {
            let mut other = [0; 8];
            let mut dropped = pin!(a.recv(&mut other));
            assert!(dropped.as_mut().poll(&mut cx).is_pending());
        }
        b.send_to(b"news", at_a).await.expect("send");
        // The driver or the hub gets its turn, if it has not woken the task for nothing before.
        while count.0.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        match a.poll_recv_from(&mut cx, &mut buf) {
            Poll::Ready(Ok(from)) => assert_eq!((from, buf.filled()), (at_b, &b"news"[..])),
            other => panic!("{other:?}"),
        }
        assert!(matches!(a.poll_send_to(&mut cx, b"x", at_b), Poll::Ready(Ok(1))));
        assert!(matches!(a.poll_send_ready(&mut cx), Poll::Ready(Ok(()))));
        assert!(a.poll_recv_ready(&mut cx).is_pending());
        let ready = a.ready(Interest::READABLE | Interest::WRITABLE).await.expect("ready");
        assert!(ready.is_writable() && !ready.is_readable());
    });
}

#[test]
fn batches_arrive_whole_or_are_counted() {
    in_both(|| async {
        const ROUNDS: u64 = 100;
        const BATCH: u64 = 16;
        let [(a, _), (b, at_b)] = met("127.0.0.1:0").await;
        let before = [a.counters(), b.counters()].map(|c| c.local);
        let bytes = pattern(0, 64);
        let batch: Vec<_> = (0..BATCH).map(|_| IoSlice::new(&bytes)).collect();
        let mut word = [0; 100];
        let mut n_received = 0;
        for _ in 0..ROUNDS {
            assert_eq!(a.try_send_batch(&batch, Some(at_b)).expect("sent"), batch.len());
            while let Ok((n, _)) = b.try_recv_from(&mut word) {
                assert_eq!(word[..n], bytes[..]);
                n_received += 1;
            }
        }
        let after = [a.counters(), b.counters()].map(|c| c.local);
        assert_eq!(after[0].n_sent - before[0].n_sent, ROUNDS * BATCH);
        let n_lost = after[0].n_full - before[0].n_full;
        assert_eq!(n_received + n_lost, ROUNDS * BATCH);
    });
}

#[test]
fn a_datagram_that_is_too_long_for_the_buffer_is_cut() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met("127.0.0.1:0").await;
        let mut word = [0; 4];
        for len in [5, 100, 9000] {
            a.send_to(&pattern(0, len), at_b).await.expect("send");
            assert_eq!(b.peek_from(&mut word).await.expect("peek"), (4, at_a));
            assert_eq!(b.recv_from(&mut word).await.expect("receive"), (4, at_a));
            assert_eq!(word[..], pattern(0, 4)[..]);
        }
        b.send_to(b"next", at_a).await.expect("send");
        assert_eq!(a.recv_from(&mut word).await.expect("receive"), (4, at_b));
    });
}

#[test]
fn what_udp_reports_arrives_at_a_task_that_waits() {
    in_both(|| async {
        let (a, _) = bound("127.0.0.1:0").await;
        let (b, at_b) = bound("127.0.0.1:0").await;
        drop(b);
        a.connect(at_b).await.expect("connect");
        a.send(b"anybody there?").await.expect("send");
        let refused = a.recv(&mut [0; 8]).await.expect_err("nobody is there");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_socket_may_be_dropped_by_a_runtime_that_ends() {
    let _watchdog = common::Watchdog::new();
    let runtime = current_thread();
    let (a, _) = runtime.block_on(bound("127.0.0.1:0"));
    let a = Arc::new(a);
    let waiting = Arc::clone(&a);
    runtime.spawn(async move { waiting.recv(&mut [0; 8]).await });
    runtime.block_on(tokio::task::yield_now());
    drop(runtime);
    assert_eq!(Arc::strong_count(&a), 1);
    assert!(a.try_recv(&mut [0; 8]).is_err());
}
