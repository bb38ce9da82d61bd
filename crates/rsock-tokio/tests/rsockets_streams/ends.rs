//! How rsockets streams begin and end: connecting, accepting, blocking peers, resets,
//! runtimes that shut down.

use super::{any, pair};
use crate::common::{
    Watchdog, at_own_port, current_thread, in_both, is_rdma, multi_thread, pattern, poll_times,
    send,
};
use rsock_core::rsocket::{Socket, SocketSettings};
use rsock_tokio::rsockets::{Listener, Stream, connect, connect_timeout};
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) fn a_peer_that_goes_away_ends_reads_and_writes_that_wait() {
    in_both(|| async {
        let (a, b) = pair().await;
        let (mut reading, mut writing) = a.into_split();
        let reader = tokio::spawn(async move { reading.read(&mut [0]).await });
        let writer = tokio::spawn(async move {
            loop {
                if let Err(e) = writing.write_all(&[7; 65536]).await {
                    return e.kind();
                }
            }
        });
        tokio::task::yield_now().await;
        drop(b);
        assert_eq!(reader.await.expect("no panic").expect("the end"), 0);
        assert_eq!(writer.await.expect("no panic"), ErrorKind::ConnectionReset);
    });
}

pub(crate) fn a_blocking_peer_exchanges_bytes_and_its_reset_arrives() {
    in_both(|| async {
        let listener = Listener::bind(any()).await.expect("bind");
        let to = listener.local_addr().expect("address");
        let peer = thread::spawn(move || {
            let stream = SocketSettings::default().connect(to, None).expect("connect");
            (&stream).write_all(b"ping").expect("write");
            let mut word = [0; 4];
            (&stream).read_exact(&mut word).expect("read");
            assert_eq!(&word, b"pong");
            // No time to linger: a reset, which sends nothing in the stream itself.
            let stream = current_thread().block_on(async {
                let stream = Stream::from_blocking(Arc::new(stream)).expect("taken over");
                stream.set_linger(Some(Duration::ZERO)).expect("linger");
                assert_eq!(stream.linger().expect("linger"), Some(Duration::ZERO));
                stream.into_blocking()
            });
            drop(stream);
        });
        let (mut stream, _) = listener.accept().await.expect("accept");
        let mut word = [0; 4];
        stream.read_exact(&mut word).await.expect("read");
        assert_eq!(&word, b"ping");
        stream.write_all(b"pong").await.expect("write");
        match stream.read(&mut [0]).await {
            Err(end) => assert_eq!(end.kind(), ErrorKind::ConnectionReset),
            // An RDMA device shows no difference between a reset and an end.
            Ok(n) => assert_eq!((n, is_rdma()), (0, true)),
        }
        peer.join().expect("the peer");
    });
}

pub(crate) fn a_blocking_listener_accepts_a_task() {
    let _watchdog = Watchdog::new();
    let listener =
        SocketSettings::default().listen(any().parse().expect("an address")).expect("bind");
    let to = listener.local_addr().expect("address");
    let peer = thread::spawn(move || {
        let stream = listener.accept().expect("accept");
        let mut all = Vec::new();
        (&stream).read_to_end(&mut all).expect("read");
        assert!(all == pattern(0, 1 << 20));
    });
    current_thread().block_on(async {
        let mut stream = connect_timeout(to, Duration::from_secs(60)).await.expect("connect");
        send(&mut stream, 1 << 20).await;
    });
    peer.join().expect("the peer");
}

pub(crate) fn a_connect_without_a_listener_is_refused() {
    in_both(|| async {
        let to = at_own_port(any());
        let listener = Listener::bind(to).await.expect("bind");
        let taken = Listener::bind(to).await.expect_err("the port is taken");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(listener);
        let refused = connect(to).await.expect_err("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

pub(crate) fn abandoned_handshakes_leave_nothing_behind() {
    in_both(|| async {
        let listener = Listener::bind(any()).await.expect("bind");
        let to = listener.local_addr().expect("address");
        for polls in 0..4 {
            // Either may have made a connection, which is closed at once.
            drop(poll_times(listener.accept(), polls).await);
            drop(poll_times(connect(to), polls).await);
        }
        let (client, server) = tokio::join!(
            async {
                let mut client = connect(to).await.expect("connect");
                client.write_all(&[7]).await.expect("write");
                client
            },
            async {
                loop {
                    let (mut server, _) = listener.accept().await.expect("accept");
                    if let Ok(n @ 1..) = server.read(&mut [0; 4]).await {
                        assert_eq!(n, 1);
                        return server;
                    }
                }
            }
        );
        assert_eq!(client.local_addr().expect("local"), server.peer_addr().expect("peer"));
    });
}

pub(crate) fn a_runtime_that_shuts_down_drops_its_streams() {
    let _watchdog = Watchdog::new();
    let server = current_thread();
    let (enough, is_enough) = std::sync::mpsc::channel();
    let (to, accepted) = server.block_on(async {
        let listener = Listener::bind(any()).await.expect("bind");
        let to = listener.local_addr().expect("address");
        let accepted = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            enough.send(()).expect("it is waited for");
            stream.read(&mut [0]).await
        });
        (to, accepted)
    });
    let server = thread::spawn(move || {
        // Its task waits for bytes that do not come.
        server.block_on(async {
            let mut accepted = accepted;
            while is_enough.try_recv().is_err() {
                assert!(poll_times(&mut accepted, 1).await.is_none(), "it reads");
            }
        });
    });
    current_thread().block_on(async {
        let mut client = connect(to).await.expect("connect");
        assert_eq!(client.read(&mut [0]).await.expect("the end"), 0);
    });
    server.join().expect("no panic");
}

pub(crate) fn poll_accept_returns_what_accept_does() {
    in_both(|| async {
        let listener = Listener::bind(any()).await.expect("bind");
        let to = listener.local_addr().expect("address");
        let (client, server) = tokio::join!(connect(to), poll_fn(|cx| listener.poll_accept(cx)));
        let (client, (server, from)) = (client.expect("connect"), server.expect("accept"));
        assert_eq!(from, client.local_addr().expect("its address"));
        drop(server);
    });
}

pub(crate) fn a_stream_becomes_blocking_and_back() {
    in_both(|| async {
        let (mut a, b) = pair().await;
        a.write_all(b"not by TCP.").await.expect("write");
        let b = b.into_blocking();
        b.set_nonblocking(false);
        let there = tokio::task::spawn_blocking(move || {
            let (mut socket, mut word): (&Socket, _) = (&b, [0; 11]);
            socket.read_exact(&mut word).expect("read");
            socket.write_all(&word).expect("write");
            b
        });
        let mut b = Stream::from_blocking(there.await.expect("no panic")).expect("taken over");
        let mut word = [0; 11];
        a.read_exact(&mut word).await.expect("read");
        assert_eq!(&word, b"not by TCP.");
        a.write_all(b"again").await.expect("write");
        b.read_exact(&mut word[..5]).await.expect("read");
        drop(b);
        assert_eq!(a.read(&mut word).await.expect("the end"), 0);
    });
}

pub(crate) fn a_stream_whose_runtime_has_ended_reads_the_end() {
    let _watchdog = Watchdog::new();
    for _ in 0..10 {
        let (here, there) = (current_thread(), multi_thread());
        let (mut a, mut b) = there.block_on(pair());
        there.spawn(async move { a.read(&mut [0]).await });
        drop(there);
        // The peer's task was dropped with its stream; `b` belongs to a runtime that has ended.
        let read = here.block_on(async { b.read(&mut [0]).await });
        match read {
            Ok(n) => assert_eq!(n, 0),
            // The end may not have arrived, and the ended runtime wakes no task for it.
            Err(e) => assert!(is_rdma(), "{e}"),
        }
    }
}
