//! Futures of streams and their halves, dropped after some polls, again and again, on any device:
//! no byte is lost or doubled, and no task is left without a wake-up.

use super::rsockets_pair;
use crate::common::{Count, accelerated_pair, connect_with, in_both, pattern, poll_times};
use crate::rsockets_streams::any;
use bytes::Bytes;
use rsock_tokio::{Builder, Listener, Stream, Transport, rsockets};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

/// Each case as a test of accelerated streams and as one of rsockets streams, with an argument for
/// each.
macro_rules! for_both_transports {
    ($($case:ident($for_accelerated:expr, $for_rsockets:expr):
        $accelerated:ident, $rsockets:ident;)*) => {$(
        pub(crate) fn $accelerated() {
            in_both(|| async { $case(accelerated_pair().await, $for_accelerated).await });
        }

        pub(crate) fn $rsockets() {
            in_both(|| async { $case(rsockets_pair().await, $for_rsockets).await });
        }
    )*};
}

for_both_transports! {
    drop_reads((), ()):
        repeatedly_dropped_reads_take_nothing,
        repeatedly_dropped_rsockets_reads_take_nothing;
    drop_writes(4_000, 1_000):
        repeatedly_dropped_writes_write_all_or_nothing,
        repeatedly_dropped_rsockets_writes_write_all_or_nothing;
    drop_sends(24 << 20, 4 << 20):
        repeatedly_dropped_sends_leave_what_they_have_not_sent,
        repeatedly_dropped_rsockets_sends_leave_what_they_have_not_sent;
    drop_waits_of_halves((), ()):
        repeatedly_dropped_waits_of_halves_take_nothing,
        repeatedly_dropped_waits_of_rsockets_halves_take_nothing;
    drop_waits_for_readiness((), ()):
        repeatedly_dropped_waits_for_readiness_leave_the_next_one_working,
        repeatedly_dropped_waits_for_rsockets_readiness_leave_the_next_one_working;
    keep_waker_of_dropped_read((), ()):
        the_waker_of_a_dropped_read_is_woken_and_the_next_read_works,
        the_waker_of_a_dropped_rsockets_read_is_woken_and_the_next_read_works;
}

async fn drop_reads<T: Transport>((mut a, mut b): (Stream<T>, Stream<T>), (): ()) {
    for i in 0..200 {
        let mut word = [0; 8];
        assert!(poll_times(a.read(&mut word), i % 4).await.is_none());
        assert!(poll_times(a.recv(100), i % 4).await.is_none());
        b.write_all(&pattern(i, 8)).await.expect("write");
        if let Some(n) = poll_times(a.peek(&mut word), i % 3).await {
            assert_eq!(n.expect("peek"), 8);
        }
        a.read_exact(&mut word).await.expect("read");
        assert_eq!(word[..], pattern(i, 8)[..]);
    }
}

async fn drop_writes<T: Transport>((mut a, mut b): (Stream<T>, Stream<T>), times: usize) {
    let mut sent = 0;
    // Into a full stream: each write is dropped while pending, or returns how much it wrote.
    for i in 0..times {
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
}

async fn drop_sends<T: Transport>((a, mut b): (Stream<T>, Stream<T>), total: usize) {
    let all = Bytes::from(pattern(0, total));
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
}

async fn drop_waits_of_halves<T: Transport>((mut a, b): (Stream<T>, Stream<T>), (): ()) {
    let (mut reading, writing) = b.into_split();
    for i in 0..100 {
        let mut word = [0; 8];
        assert!(poll_times(reading.readable(), i % 4).await.is_none());
        assert!(poll_times(reading.ready(Interest::READABLE), i % 3).await.is_none());
        assert!(poll_times(reading.peek(&mut word), i % 4).await.is_none());
        assert!(poll_times(reading.as_ref().recv(100), i % 4).await.is_none());
        assert!(poll_times(reading.read(&mut word), i % 3).await.is_none());
        assert!(poll_times(writing.writable(), 1 + i % 3).await.is_some());
        a.write_all(&pattern(i, 8)).await.expect("write");
        reading.readable().await.expect("readable");
        assert_eq!(reading.peek(&mut word).await.expect("peek"), 8);
        assert_eq!(reading.try_read(&mut word).expect("read"), 8);
        assert_eq!(word[..], pattern(i, 8)[..]);
        assert_eq!(writing.try_write(&word).expect("written"), 8);
        a.read_exact(&mut word).await.expect("read");
    }
}

async fn drop_waits_for_readiness<T: Transport>((a, mut b): (Stream<T>, Stream<T>), (): ()) {
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
}

async fn keep_waker_of_dropped_read<T: Transport>((mut a, mut b): (Stream<T>, Stream<T>), (): ()) {
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut word = [0; 1];
    {
        let mut read = pin!(a.read(&mut word));
        let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
    b.write_all(&[3]).await.expect("write");
    // The runtime or the poll driver gets its turn: the last reader is woken, though its future was
    // dropped.
    while count.0.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(a.read(&mut word).await.expect("read"), 1);
    assert_eq!(word, [3]);
}

pub(crate) fn repeatedly_dropped_connects_and_accepts_lose_no_connection() {
    in_both(|| async {
        let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        for i in 0..50 {
            assert!(poll_times(listener.accept(), i % 4).await.is_none());
            drop(poll_times(Stream::connect(addr), i % 2).await);
            let mut client = Stream::connect(addr).await.expect("connect");
            client.write_all(&pattern(i, 4)).await.expect("write");
            // Abandoned attempts may have left closed connections in the queue.
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

pub(crate) fn repeatedly_dropped_searches_exposures_and_remote_writes_begin_anew() {
    in_both(|| async {
        let (mut a, mut b) = connect_with(Builder::new().iomap_slots(2)).await;
        for i in 0..40 {
            drop(poll_times(a.accelerated(), i % 4).await);
            drop(poll_times(b.accelerated(), i % 3).await);
        }
        tokio::try_join!(a.accelerated(), b.accelerated()).expect("accelerated");
        // Each is dropped, completed or not: the two slots stay free.
        for i in 0..20 {
            drop(poll_times(a.expose(64, 5), i % 3).await);
        }
        let memory = a.expose(1 << 20, 5).await.expect("exposed");
        let other = a.expose(64, 1 << 30).await.expect("exposed");
        let nowhere = b.write_remote(&[1], 9 << 30).await.expect_err("nothing is exposed");
        assert_eq!(nowhere.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
        let data = pattern(0, 1 << 20);
        for i in 0..20 {
            drop(poll_times(b.write_remote(&data, 5), i % 4).await);
        }
        assert_eq!(b.write_remote(&data, 5).await.expect("written"), data.len());
        b.write_all(&[1]).await.expect("write");
        a.read_exact(&mut [0]).await.expect("read");
        let mut there = vec![0; data.len()];
        memory.read_at(0, &mut there);
        assert!(there == data);
        drop((memory, other));
    });
}

/// With no time at all a connect times out before the peer has answered, or just succeeds.
fn assert_timed_out_or_connected<T: Transport>(connected: io::Result<Stream<T>>) {
    if let Err(e) = connected {
        assert_eq!(e.kind(), ErrorKind::TimedOut);
    }
}

pub(crate) fn a_connect_with_a_timeout_may_be_dropped_or_time_out() {
    in_both(|| async {
        let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        for i in 0..20 {
            drop(poll_times(Stream::connect_timeout(addr, Duration::from_secs(60)), i % 3).await);
        }
        assert_timed_out_or_connected(Stream::connect_timeout(addr, Duration::ZERO).await);
    });
}

pub(crate) fn an_rsockets_connect_with_a_timeout_may_be_dropped_or_time_out() {
    in_both(|| async {
        let listener = rsockets::Listener::bind(any()).await.expect("bind");
        let addr = listener.local_addr().expect("address");
        for i in 0..6 {
            let connecting = rsockets::connect_timeout(addr, Duration::from_secs(60));
            drop(poll_times(connecting, i % 3).await);
        }
        assert_timed_out_or_connected(rsockets::connect_timeout(addr, Duration::ZERO).await);
    });
}
