//! Bytes, moves and ends of accelerated streams, in runtimes of both kinds.

use crate::common::{
    Watchdog, accelerated_pair, connect, connect_with, current_thread, in_both, multi_thread,
    pattern, send, settle, waiting,
};
use rsock_tokio::{Builder, Channels, Listener, Stream};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

/// Reads it back.
async fn receive(mut from: impl AsyncReadExt + Unpin, total: usize) {
    let mut buf = vec![0; 70_000];
    let (mut at, mut size) = (0, 1);
    while at < total {
        size = (size * 5 + 11) % buf.len() + 1;
        let want = size.min(total - at);
        let n = from.read(&mut buf[..want]).await.expect("read");
        assert_ne!(n, 0, "early end at {at}");
        assert!(buf[..n] == pattern(at, n)[..], "wrong bytes near {at}");
        at += n;
    }
}

#[test]
fn both_directions_carry_every_byte_while_they_move() {
    in_both(|| async {
        const TOTAL: usize = 8 << 20;
        let (a, b) = connect().await;
        let (mut ar, mut aw) = a.into_split();
        let (mut br, mut bw) = b.into_split();
        let one = tokio::spawn(async move {
            send(&mut aw, TOTAL).await;
            aw
        });
        let two = tokio::spawn(async move {
            send(&mut bw, TOTAL).await;
            bw
        });
        tokio::join!(receive(&mut ar, TOTAL), receive(&mut br, TOTAL));
        let mut a = ar.reunite(one.await.expect("writer")).expect("one stream");
        let mut b = br.reunite(two.await.expect("writer")).expect("one stream");
        // Wherever the directions were at the end, both can move.
        settle(&mut a, &mut b).await;
    });
}

#[test]
fn without_spinning_nothing_is_lost_either() {
    in_both(|| async {
        let (mut a, mut b) = connect_with(Builder::new().spin(Duration::ZERO)).await;
        settle(&mut a, &mut b).await;
        let echo = tokio::spawn(async move {
            let mut word = [0; 64];
            for _ in 0..5_000 {
                b.read_exact(&mut word).await.expect("read");
                b.write_all(&word).await.expect("write");
            }
            b
        });
        for i in 0..5_000 {
            let sent = pattern(i, 64);
            a.write_all(&sent).await.expect("write");
            let mut word = [0; 64];
            a.read_exact(&mut word).await.expect("read");
            assert_eq!(word[..], sent[..]);
        }
        echo.await.expect("echo");
    });
}

#[test]
fn two_runtimes_in_two_threads_ping_and_pong() {
    let _watchdog = Watchdog::new();
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        current_thread().block_on(async {
            let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
            tell.send(listener.local_addr().expect("address")).expect("the client listens");
            let (mut stream, _) = listener.accept().await.expect("accept");
            let mut word = [0; 64];
            while stream.read_exact(&mut word).await.is_ok() {
                stream.write_all(&word).await.expect("write");
            }
        });
    });
    let addr = told.recv().expect("an address");
    current_thread().block_on(async {
        let mut stream = Stream::connect(addr).await.expect("connect");
        for i in 0..20_000 {
            let sent = pattern(i, 64);
            stream.write_all(&sent).await.expect("write");
            let mut word = [0; 64];
            stream.read_exact(&mut word).await.expect("read");
            assert_eq!(word[..], sent[..]);
        }
        assert!(stream.channels().are_accelerated(), "{:?}", stream.fallback_reason());
    });
    server.join().expect("server");
}

#[test]
fn a_plain_tcp_peer_is_served_too() {
    let _watchdog = Watchdog::new();
    multi_thread().block_on(async {
        let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        let peer = std::thread::spawn(move || {
            let mut peer = std::net::TcpStream::connect(addr).expect("connect");
            let sent = pattern(0, 3_000_000);
            let mut reading = peer.try_clone().expect("clone");
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                reading.read_to_end(&mut all).expect("read");
                all
            });
            peer.write_all(&sent).expect("write");
            peer.shutdown(std::net::Shutdown::Write).expect("shutdown");
            assert!(reader.join().expect("reader") == sent);
        });
        let (stream, _) = listener.accept().await.expect("accept");
        let (mut reading, mut writing) = stream.into_split();
        tokio::io::copy(&mut reading, &mut writing).await.expect("copy");
        drop(writing);
        assert_eq!(reading.as_ref().channels(), Channels::TCP);
        peer.join().expect("peer");
    });
}

#[test]
fn a_half_closed_stream_still_carries_the_other_direction() {
    in_both(|| async {
        let (mut a, mut b) = accelerated_pair().await;
        a.write_all(b"the last words").await.expect("write");
        a.shutdown().await.expect("shutdown");
        let mut said = Vec::new();
        b.read_to_end(&mut said).await.expect("read");
        assert_eq!(said, b"the last words");
        assert_eq!(b.read(&mut [0]).await.expect("read"), 0);
        // Longer than the receive buffer, so that the writer waits after the end of its input.
        let task = tokio::spawn(async move {
            send(&mut b, 4 << 20).await;
            b
        });
        receive(&mut a, 4 << 20).await;
        drop(task.await.expect("writer"));
        assert_eq!(a.read(&mut [0]).await.expect("read"), 0);
    });
}

#[test]
fn a_dropped_peer_ends_a_pending_read() {
    in_both(|| async {
        let (mut a, b) = accelerated_pair().await;
        let read = tokio::spawn(async move { a.read(&mut [0]).await });
        tokio::task::yield_now().await;
        drop(b);
        assert_eq!(read.await.expect("task").expect("end of stream"), 0);
    });
}

#[test]
fn a_reset_ends_pending_reads_and_writes() {
    in_both(|| async {
        let (a, b) = accelerated_pair().await;
        // Something is unread, so that dropping resets.
        while a.try_write(&[1; 1 << 16]).is_ok() {}
        let (mut ar, mut aw) = a.into_split();
        let write = waiting(async move { aw.write_all(&vec![1; 64 << 20]).await }).await;
        let read = waiting(async move { ar.read(&mut [0]).await }).await;
        drop(b);
        let write = write.await.expect("writer").expect_err("the peer has closed").kind();
        let read = read.await.expect("reader").map_err(|e| e.kind());
        // As on TCP, the first call reports the reset.
        match read {
            Err(kind) => {
                assert_eq!((kind, write), (ErrorKind::ConnectionReset, ErrorKind::BrokenPipe));
            }
            Ok(n) => assert_eq!((n, write), (0, ErrorKind::ConnectionReset)),
        }
    });
}

#[test]
fn a_writer_whose_peer_does_not_read_waits() {
    in_both(|| async {
        let (a, mut b) = accelerated_pair().await;
        let block = vec![1; 64 << 10];
        let mut sent = 0;
        // As much as the receive buffer and the kernel take: less than 64 MiB.
        loop {
            match a.try_write(&block) {
                Ok(n) => sent += n,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    let room = tokio::time::timeout(Duration::from_millis(200), a.writable());
                    if room.await.is_err() {
                        break;
                    }
                }
            }
            assert!(sent < 64 << 20, "never held back");
        }
        let task = tokio::spawn(async move {
            let mut a = a;
            a.write_all(&[2]).await.expect("write");
            a
        });
        let mut buf = vec![0; 1 << 20];
        let mut got = 0;
        while got <= sent {
            got += b.read(&mut buf).await.expect("read");
        }
        assert_eq!(got, sent + 1);
        task.await.expect("writer");
    });
}

#[test]
fn two_ends_of_one_thread_that_write_before_they_read_do_not_block() {
    in_both(|| async {
        let (mut a, mut b) = accelerated_pair().await;
        let data = pattern(0, 2 << 20);
        let (one, two) = tokio::join!(a.write_all(&data), b.write_all(&data));
        one.and(two).expect("write");
        receive(&mut a, data.len()).await;
        receive(&mut b, data.len()).await;
    });
}

#[test]
fn streams_move_between_tasks_while_they_wait() {
    in_both(|| async {
        let (mut a, mut b) = accelerated_pair().await;
        for i in 0..300 {
            // One task drops a pending read; another task reads next.
            let waiting = tokio::spawn(async move {
                let mut word = [0; 8];
                let given_up = tokio::time::timeout(Duration::ZERO, a.read(&mut word)).await;
                assert!(given_up.is_err());
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

#[test]
fn the_methods_of_tokios_stream_work() {
    in_both(|| async {
        let (mut a, mut b) = accelerated_pair().await;
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
        assert_eq!(a.local_addr().expect("local"), b.peer_addr().expect("peer"));
        let (mut reading, mut writing) = b.split();
        writing.write_all(b"back").await.expect("write");
        a.write_all(b"forth").await.expect("write");
        assert_eq!(reading.read(&mut word).await.expect("read"), 5);
        assert_eq!(a.read(&mut word).await.expect("read"), 4);
    });
}

#[test]
fn many_tasks_wait_for_one_stream() {
    in_both(|| async {
        let (a, mut b) = accelerated_pair().await;
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
    });
}

#[test]
fn a_blocking_stream_continues_where_the_async_one_was() {
    let _watchdog = Watchdog::new();
    multi_thread().block_on(async {
        let (a, mut b) = accelerated_pair().await;
        b.write_all(b"not by TCP.").await.expect("write");
        let blocking = a.into_std().expect("handed over");
        blocking.socket().set_nonblocking(false).expect("blocking");
        assert_eq!(blocking.channels(), Channels::RING);
        let answered = tokio::task::spawn_blocking(move || {
            let mut word = [0; 11];
            (&blocking).read_exact(&mut word).expect("read");
            (&blocking).write_all(&word).expect("write");
        });
        let mut word = [0; 11];
        b.read_exact(&mut word).await.expect("read");
        assert_eq!(&word, b"not by TCP.");
        answered.await.expect("answered");
        assert_eq!(b.read(&mut word).await.expect("end"), 0);
    });
}

#[test]
fn a_connect_without_a_listener_is_refused() {
    in_both(|| async {
        let addr = SocketAddr::from(([127, 0, 0, 1], rsock_test_ports::reserved()));
        let refused = Stream::connect(addr).await.expect_err("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let late = Stream::connect_timeout(addr, Duration::from_secs(60)).await;
        assert_eq!(late.expect_err("no listener").kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_runtime_ends_with_streams_open() {
    let _watchdog = Watchdog::new();
    for _ in 0..20 {
        let other = current_thread();
        let runtime = multi_thread();
        let (mut a, b) = runtime.block_on(accelerated_pair());
        runtime.spawn(async move { a.read(&mut [0]).await });
        let mut b = b;
        drop(runtime);
        // The peer's task was dropped with its stream; `b` belongs to a runtime that has ended.
        let read = other.block_on(async { b.read(&mut [0]).await });
        assert_eq!(read.expect("the end has arrived, though no task is woken for it"), 0);
    }
}
