//! Bytes over rsockets streams: small and large ones, both ways at once, back-pressure,
//! readiness, and memory that the peer writes.

use super::{any, pair, receive};
use crate::common::{in_both, pattern, poll_times, send};
use bytes::Bytes;
use rsock_tokio::rsockets::Builder;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

pub(crate) fn small_messages_go_to_and_fro() {
    in_both(|| async {
        let (mut a, mut b) = pair().await;
        let echo = tokio::spawn(async move {
            let mut message = [0; 64];
            while b.read_exact(&mut message).await.is_ok() {
                b.write_all(&message).await.expect("write");
            }
        });
        for i in 0..5_000u32 {
            let message = [i.to_le_bytes()[0]; 64];
            a.write_all(&message).await.expect("write");
            let mut answer = [0; 64];
            a.read_exact(&mut answer).await.expect("read");
            assert_eq!(answer, message);
        }
        drop(a);
        echo.await.expect("it ends with its peer");
    });
}

pub(crate) fn both_directions_carry_every_byte_at_once() {
    in_both(|| async {
        const TOTAL: usize = 8 << 20;
        let (a, b) = pair().await;
        let ((mut ar, mut aw), (mut br, mut bw)) = (a.into_split(), b.into_split());
        let one = tokio::spawn(async move {
            send(&mut aw, TOTAL).await;
            aw.shutdown().await.expect("shutdown");
        });
        let two = tokio::spawn(async move {
            send(&mut bw, TOTAL).await;
            bw.shutdown().await.expect("shutdown");
        });
        tokio::join!(receive(&mut ar, TOTAL), receive(&mut br, TOTAL));
        assert_eq!(ar.read(&mut [0]).await.expect("the end"), 0);
        assert_eq!(br.read(&mut [0]).await.expect("the end"), 0);
        one.await.expect("a writer");
        two.await.expect("a writer");
    });
}

pub(crate) fn a_writer_waits_for_its_reader() {
    in_both(|| async {
        const TOTAL: usize = 4 << 20;
        let (mut a, mut b) = pair().await;
        let bytes = pattern(0, TOTAL);
        // Without a reader the writes stop.
        let mut sent = 0;
        while let Some(n) = poll_times(a.write(&bytes[sent..]), 1).await {
            sent += n.expect("write");
            assert!(sent < TOTAL, "no bound on what lies unread");
        }
        let rest = tokio::spawn(async move { a.write_all(&pattern(sent, TOTAL - sent)).await });
        receive(&mut b, TOTAL).await;
        rest.await.expect("no panic").expect("write");
    });
}

pub(crate) fn a_half_closed_stream_still_answers() {
    in_both(|| async {
        let (mut a, mut b) = pair().await;
        a.write_all(b"a question").await.expect("write");
        a.shutdown().await.expect("shutdown");
        let mut said = String::new();
        b.read_to_string(&mut said).await.expect("read");
        assert_eq!(said, "a question");
        b.write_all(b"an answer").await.expect("write");
        drop(b);
        let mut said = String::new();
        a.read_to_string(&mut said).await.expect("read");
        assert_eq!(said, "an answer");
        let after = a.write(b"more").await.expect_err("its own end came first");
        assert_eq!(after.kind(), ErrorKind::ConnectionReset);
    });
}

pub(crate) fn the_methods_of_tokios_stream_work() {
    in_both(|| async {
        let (mut a, mut b) = pair().await;
        assert_eq!(b.try_read(&mut [0]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
        a.writable().await.expect("writable");
        let n = a.try_write_vectored(&[IoSlice::new(b"one "), IoSlice::new(b"two")]);
        assert_eq!(n.expect("written"), 7);
        b.readable().await.expect("readable");
        let mut word = [0; 16];
        assert_eq!(b.peek(&mut word).await.expect("peek"), 7);
        assert_eq!(b.read(&mut word).await.expect("read"), 7);
        assert_eq!(&word[..7], b"one two");
        let ready = b.ready(Interest::READABLE | Interest::WRITABLE).await.expect("ready");
        assert!(ready.is_writable() && !ready.is_readable());
        a.set_nodelay(true).expect("nodelay");
        assert!(a.nodelay().expect("nodelay"));
        a.set_linger(Some(Duration::from_secs(3))).expect("linger");
        assert_eq!(a.linger().expect("linger"), Some(Duration::from_secs(3)));
        a.set_linger(None).expect("linger");
        assert_eq!(a.linger().expect("linger"), None);
        assert!(a.take_error().expect("asked").is_none());
        let (mut reading, mut writing) = b.split();
        writing.write_all(b"back").await.expect("write");
        a.write_all(b"forth").await.expect("write");
        assert_eq!(reading.read(&mut word).await.expect("read"), 5);
        assert_eq!(a.read(&mut word).await.expect("read"), 4);
        a.send(&mut Bytes::from_static(b"owned")).await.expect("send");
        assert_eq!(b.recv(100).await.expect("receive"), "owned");
    });
}

pub(crate) fn many_tasks_wait_for_one_stream_and_it_moves_between_them() {
    in_both(|| async {
        let (a, mut b) = pair().await;
        let a = Arc::new(a);
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let a = Arc::clone(&a);
                tokio::spawn(async move { a.readable().await })
            })
            .collect();
        tokio::task::yield_now().await;
        b.write_all(&[1]).await.expect("write");
        for task in waiting {
            task.await.expect("task").expect("readable");
        }
        assert_eq!(a.try_read(&mut [0; 4]).expect("there"), 1);
        let mut a = Arc::into_inner(a).expect("the only one");
        for i in 0..300 {
            // A read that is given up while it waits, in one task; the next one is another task's.
            let waiting = tokio::spawn(async move {
                assert!(poll_times(a.read(&mut [0; 8]), 1 + i % 3).await.is_none());
                a
            });
            a = waiting.await.expect("task");
            let reading = tokio::spawn(async move {
                let mut word = [0; 8];
                a.read_exact(&mut word).await.expect("read");
                (a, word)
            });
            tokio::task::yield_now().await;
            b.write_all(&pattern(i, 8)).await.expect("write");
            let word;
            (a, word) = reading.await.expect("task");
            assert_eq!(word[..], pattern(i, 8)[..]);
        }
    });
}

pub(crate) fn a_remote_write_is_seen_before_what_is_sent_later() {
    in_both(|| async {
        let settings = Builder::new().iomap_slots(2);
        let listener = settings.bind(any()).await.expect("bind");
        let to = listener.local_addr().expect("address");
        let (a, b) = tokio::join!(settings.connect(to), listener.accept());
        let (mut a, (mut b, _)) = (a.expect("connect"), b.expect("accept"));
        for i in 0..20 {
            drop(poll_times(a.expose(64, 5), i % 3).await);
        }
        let memory = a.expose(1 << 20, 5).await.expect("exposed");
        a.write_all(&[1]).await.expect("write");
        b.read_exact(&mut [0]).await.expect("read");
        let nowhere = b.write_remote(&[1], 9 << 30).await.expect_err("nothing is exposed there");
        assert_eq!(nowhere.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
        let data = pattern(0, 1 << 20);
        for i in 0..20 {
            drop(poll_times(b.write_remote(&data, 5), i % 4).await);
        }
        assert_eq!(b.write_remote(&data, 5).await.expect("written"), data.len());
        assert_eq!(
            b.write_remote(&data, 6).await.expect("written"),
            data.len() - 1,
            "to the end of it"
        );
        assert_eq!(b.write_remote(&data, 5).await.expect("written"), data.len());
        b.write_all(&[1]).await.expect("write");
        a.read_exact(&mut [0]).await.expect("read");
        let mut there = vec![0; data.len()];
        memory.read_at(0, &mut there);
        assert!(there == data);
    });
}

pub(crate) fn a_read_that_is_dropped_takes_nothing() {
    in_both(|| async {
        let (mut a, mut b) = pair().await;
        for polls in 0..4 {
            assert!(poll_times(b.read(&mut [0; 8]), polls).await.is_none(), "nothing has come");
        }
        a.write_all(b"all of it").await.expect("write");
        let mut start = [0; 3];
        assert_eq!(b.peek(&mut start).await.expect("peek"), 3);
        assert_eq!(&start, b"all");
        let mut whole = [0; 9];
        b.read_exact(&mut whole).await.expect("read");
        assert_eq!(&whole, b"all of it");
    });
}
