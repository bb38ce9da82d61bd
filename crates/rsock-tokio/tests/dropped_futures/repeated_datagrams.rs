//! Futures of datagram sockets, dropped after some polls, again and again, on any device: no
//! datagram is lost or doubled, and no other wait is disturbed.

use crate::common::{self, Count, current_thread, in_both, pattern, poll_times};
use crate::datagram::{any, bound, met};
use rsock_tokio::Datagram;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use tokio::io::{Interest, ReadBuf};

pub(crate) fn repeatedly_dropped_receives_take_no_datagram() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
        a.connect(at_b).await.expect("connect");
        assert_eq!(a.peer_addr().expect("address"), at_b);
        let mut word = [0; 16];
        for i in 0..200 {
            assert!(poll_times(a.recv_from(&mut word), i % 4).await.is_none());
            assert!(poll_times(a.recv(&mut word), i % 3).await.is_none());
            assert!(poll_times(a.peek(&mut word), i % 5).await.is_none());
            assert!(poll_times(a.readable(), i % 2).await.is_none());
            assert!(poll_times(a.ready(Interest::READABLE), i % 3).await.is_none());
            // These may complete.
            drop(poll_times(a.connect(at_b), i % 2).await);
            drop(poll_times(Datagram::bind(any()), i % 2).await);
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

pub(crate) fn repeatedly_dropped_sends_send_each_datagram_once_or_not_at_all() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
        a.connect(at_b).await.expect("connect");
        let mut word = [0; 16];
        for i in 0..200 {
            let mut n_sent = 0;
            for polls in 0..3 {
                n_sent += usize::from(poll_times(a.send(&pattern(i, 8)), polls).await.is_some());
                let sent = poll_times(a.send_to(&pattern(i, 8), at_b), polls).await;
                n_sent += usize::from(sent.is_some());
            }
            // Each completes in its first poll unless the task's budget is used up.
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

pub(crate) fn the_waker_of_a_dropped_receive_does_not_disturb_the_task_that_polls() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
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
        // The runtime or the poll driver gets its turn, and the polls below begin with a full
        // budget.
        loop {
            tokio::task::yield_now().await;
            if count.0.load(Ordering::Relaxed) != 0 {
                break;
            }
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

pub(crate) fn a_runtime_that_ends_drops_the_sockets_of_its_tasks() {
    let _watchdog = common::Watchdog::new();
    let runtime = current_thread();
    let (a, _) = runtime.block_on(bound(any()));
    let a = Arc::new(a);
    let waiting = Arc::clone(&a);
    runtime.spawn(async move { waiting.recv(&mut [0; 8]).await });
    runtime.block_on(tokio::task::yield_now());
    drop(runtime);
    assert_eq!(Arc::strong_count(&a), 1);
    assert!(a.try_recv(&mut [0; 8]).is_err());
}
