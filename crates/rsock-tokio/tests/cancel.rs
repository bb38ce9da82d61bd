//! Dropped futures: each one of a stream is dropped at every await, and no byte is lost, doubled or
//! left without a waker.

mod common;

use bytes::Bytes;
use common::{Count, connect_with, in_both, on_ring, pattern, poll_times};
use rsock_tokio::{Builder, Listener, Stream};
use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

#[test]
fn a_dropped_read_takes_nothing() {
    in_both(|| async {
        let (mut a, mut b) = on_ring().await;
        for i in 0..200 {
            let mut word = [0; 8];
            assert!(poll_times(a.read(&mut word), i % 4).await.is_none());
            b.write_all(&pattern(i, 8)).await.expect("write");
            if let Some(n) = poll_times(a.peek(&mut word), i % 3).await {
                assert_eq!(n.expect("peek"), 8);
            }
            a.read_exact(&mut word).await.expect("read");
            assert_eq!(word[..], pattern(i, 8)[..]);
        }
    });
}

#[test]
fn a_dropped_write_has_written_all_or_nothing() {
    in_both(|| async {
        let (mut a, mut b) = on_ring().await;
        let mut sent = 0;
        // Into a full stream: each write is dropped while pending, or says how much it took.
        for i in 0..4_000 {
            let block = pattern(sent, 40_000);
            if let Some(n) = poll_times(a.write(&block), i % 3).await {
                sent += n.expect("write");
            }
        }
        let reader = tokio::spawn(async move {
            let mut got = Vec::new();
            b.read_to_end(&mut got).await.expect("read");
            got
        });
        a.shutdown().await.expect("shutdown");
        let got = reader.await.expect("reader");
        assert!(got == pattern(0, sent), "{} bytes of {sent}", got.len());
    });
}

#[test]
fn dropped_waits_for_readiness_leave_the_next_one_working() {
    in_both(|| async {
        let (a, mut b) = on_ring().await;
        for i in 0..200 {
            assert!(poll_times(a.readable(), i % 4).await.is_none());
            if let Some(ready) = poll_times(a.ready(Interest::READABLE), i % 2).await {
                panic!("nothing was written, and yet {ready:?}");
            }
            let done = poll_times(a.writable(), 1 + i % 3).await;
            assert!(done.is_some_and(|done| done.is_ok()));
            b.write_all(&[9]).await.expect("write");
            a.readable().await.expect("readable");
            assert_eq!(a.try_read(&mut [0; 2]).expect("there"), 1);
        }
    });
}

#[test]
fn dropped_connects_and_accepts_lose_no_connection() {
    in_both(|| async {
        let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        for i in 0..50 {
            assert!(poll_times(listener.accept(), i % 4).await.is_none());
            drop(poll_times(Stream::connect(addr), i % 2).await);
            let mut client = Stream::connect(addr).await.expect("connect");
            client.write_all(&pattern(i, 4)).await.expect("write");
            // Given-up attempts may have left closed connections in the queue.
            loop {
                let (mut server, _) = listener.accept().await.expect("accept");
                let mut word = [0; 4];
                if server.read_exact(&mut word).await.is_ok() {
                    assert_eq!(word[..], pattern(i, 4)[..]);
                    break;
                }
            }
        }
    });
}

#[test]
fn a_waker_left_behind_is_woken_and_nothing_else_breaks() {
    in_both(|| async {
        let (mut a, mut b) = on_ring().await;
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut word = [0; 1];
        {
            let mut read = pin!(a.read(&mut word));
            let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        b.write_all(&[3]).await.expect("write");
        // The driver or the hub gets its turn: the last reader is told, though its future has gone.
        while count.0.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(a.read(&mut word).await.expect("read"), 1);
        assert_eq!(word, [3]);
    });
}

#[test]
fn a_dropped_send_leaves_what_it_has_not_sent() {
    in_both(|| async {
        let (a, mut b) = on_ring().await;
        let all = Bytes::from(pattern(0, 24 << 20));
        let mut rest = all.clone();
        // The reader takes a little after each try: some tries end in the middle.
        let mut got = Vec::new();
        let mut buf = vec![0; 300_000];
        for i in 0.. {
            if poll_times(a.send(&mut rest), i % 3).await.is_some_and(|done| done.is_ok()) {
                break;
            }
            if let Some(n) = poll_times(b.read(&mut buf), 3).await {
                got.extend_from_slice(&buf[..n.expect("read")]);
            }
        }
        assert!(rest.is_empty());
        drop(a);
        b.read_to_end(&mut got).await.expect("read");
        assert!(got == all, "{} bytes of {}", got.len(), all.len());
    });
}

#[test]
fn a_dropped_receive_takes_nothing() {
    in_both(|| async {
        let (a, mut b) = on_ring().await;
        for i in 0..200 {
            assert!(poll_times(a.recv(100), i % 4).await.is_none());
            b.write_all(&pattern(i, 8)).await.expect("write");
            let got = a.recv(100).await.expect("receive");
            assert_eq!(got, pattern(i, 8));
        }
    });
}

#[test]
fn dropped_searches_openings_and_puts_begin_anew() {
    in_both(|| async {
        let (mut a, mut b) = connect_with(Builder::new().iomap_slots(2)).await;
        for i in 0..40 {
            drop(poll_times(a.paired(), i % 4).await);
            drop(poll_times(b.paired(), i % 3).await);
        }
        tokio::try_join!(a.paired(), b.paired()).expect("paired");
        // Each is dropped, finished or not: there are two places, and both stay free.
        for i in 0..20 {
            drop(poll_times(a.open(64, 5), i % 3).await);
        }
        let memory = a.open(1 << 20, 5).await.expect("opened");
        let other = a.open(64, 1 << 30).await.expect("opened");
        let late = b.put(&[1], 9 << 30).await.expect_err("nothing is open there");
        assert_eq!(late.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
        let data = pattern(0, 1 << 20);
        for i in 0..20 {
            drop(poll_times(b.put(&data, 5), i % 4).await);
        }
        assert_eq!(b.put(&data, 5).await.expect("put"), data.len());
        b.write_all(&[1]).await.expect("write");
        a.read_exact(&mut [0]).await.expect("read");
        let mut there = vec![0; data.len()];
        memory.read_at(0, &mut there);
        assert!(there == data);
        drop((memory, other));
    });
}

#[test]
fn a_connect_in_time_may_be_dropped_or_late() {
    in_both(|| async {
        let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        for i in 0..20 {
            drop(poll_times(Stream::connect_timeout(addr, Duration::from_secs(60)), i % 3).await);
        }
        // No time at all: it is over before the kernel has answered, or just made it.
        match Stream::connect_timeout(addr, Duration::ZERO).await {
            Ok(stream) => drop(stream),
            Err(late) => assert_eq!(late.kind(), ErrorKind::TimedOut),
        }
    });
}

#[test]
fn halves_wait_and_are_dropped_like_streams() {
    in_both(|| async {
        let (mut a, b) = on_ring().await;
        let (mut reading, writing) = b.into_split();
        for i in 0..100 {
            let mut word = [0; 8];
            assert!(poll_times(reading.readable(), i % 4).await.is_none());
            assert!(poll_times(reading.ready(Interest::READABLE), i % 3).await.is_none());
            assert!(poll_times(reading.peek(&mut word), i % 4).await.is_none());
            assert!(poll_times(writing.writable(), 1 + i % 3).await.is_some());
            a.write_all(&pattern(i, 8)).await.expect("write");
            reading.readable().await.expect("readable");
            assert_eq!(reading.peek(&mut word).await.expect("peek"), 8);
            assert_eq!(reading.try_read(&mut word).expect("read"), 8);
            assert_eq!(word[..], pattern(i, 8)[..]);
            assert_eq!(writing.try_write(&word).expect("written"), 8);
            a.read_exact(&mut word).await.expect("read");
        }
    });
}
