//! Sockets of the standard library and of Tokio that become streams and listeners, and back; and
//! methods that no other test uses.

use crate::common::{accelerated_pair, connect, in_both, settle};
use rsock_tokio::{Builder, Channels, Listener, Stream};
use std::future::poll_fn;
use std::io::{IoSliceMut, Read, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

/// Two ends of a connection, non-blocking.
fn std_pair() -> [std::net::TcpStream; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let client = std::net::TcpStream::connect(addr).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    for end in [&client, &server] {
        end.set_nonblocking(true).expect("option");
    }
    [client, server]
}

#[test]
fn sockets_of_the_standard_library_become_streams() {
    in_both(|| async {
        let [a, b] = std_pair();
        let mut a = Stream::from_std(a).expect("a stream");
        let b = tokio::net::TcpStream::from_std(b).expect("a socket");
        let mut b = Stream::from(b);
        settle(&mut a, &mut b).await;
        let [c, d] = std_pair().map(|end| tokio::net::TcpStream::from_std(end).expect("a socket"));
        let builder = Builder::new().nodelay(true);
        let mut c = builder.wrap(c).expect("a stream");
        let mut d = builder.wrap(d).expect("a stream");
        assert!(c.nodelay().expect("option") && d.nodelay().expect("option"));
        settle(&mut c, &mut d).await;
    });
}

#[test]
fn a_socket_that_has_been_used_works_and_stays_on_tcp() {
    in_both(|| async {
        let [mut a, mut b] = std_pair();
        a.write_all(b"before").expect("write");
        b.set_nonblocking(false).expect("option");
        b.read_exact(&mut [0; 6]).expect("read");
        b.set_nonblocking(true).expect("option");
        let mut a = Stream::from_std(a).expect("a stream");
        let mut b = Stream::from_std(b).expect("a stream");
        let mut word = [0; 64];
        for i in 0..200 {
            a.write_all(&[i; 64]).await.expect("write");
            b.read_exact(&mut word).await.expect("read");
            assert_eq!(word, [i; 64]);
        }
        assert_eq!((a.channels(), b.channels()), (Channels::TCP, Channels::TCP));
    });
}

#[test]
fn a_listener_is_made_of_a_socket_and_given_back() {
    in_both(|| async {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        socket.set_nonblocking(true).expect("option");
        let addr = socket.local_addr().expect("address");
        let listener = Listener::from_std(socket).expect("a listener");
        let mut a = Stream::connect(addr).await.expect("connect");
        let (mut b, from) = listener.accept().await.expect("accept");
        assert_eq!(from, a.local_addr().expect("address"));
        settle(&mut a, &mut b).await;
        let socket = listener.into_std().expect("the socket");
        assert_eq!(socket.local_addr().expect("address"), addr);
        let listener = tokio::net::TcpListener::from_std(socket).expect("a listener");
        let mut c = Stream::connect(addr).await.expect("connect");
        let (mut d, _) = Listener::from(listener).accept().await.expect("accept");
        settle(&mut c, &mut d).await;
    });
}

#[test]
fn several_buffers_are_read_into_in_their_order() {
    in_both(|| async {
        let (mut a, b) = accelerated_pair().await;
        a.write_all(b"abcdefg").await.expect("write");
        b.readable().await.expect("readable");
        let (mut first, mut second) = ([0; 3], [0; 6]);
        let bufs = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(b.try_read_vectored(bufs).expect("read"), 7);
        assert_eq!((&first, &second[..4]), (b"abc", &b"defg"[..]));
    });
}

#[test]
fn the_poll_methods_return_what_the_futures_do() {
    in_both(|| async {
        let (mut a, mut b) = accelerated_pair().await;
        poll_fn(|cx| a.poll_write_ready(cx)).await.expect("room");
        a.write_all(b"word").await.expect("write");
        poll_fn(|cx| b.poll_read_ready(cx)).await.expect("input");
        let mut space = [0; 8];
        let mut buf = ReadBuf::new(&mut space);
        let n = poll_fn(|cx| b.poll_peek(cx, &mut buf)).await.expect("a look");
        assert_eq!((n, buf.filled()), (4, &b"word"[..]));
        let mut word = [0; 4];
        b.read_exact(&mut word).await.expect("read");
        assert_eq!(&word, b"word");
    });
}

#[test]
fn a_half_that_is_forgotten_leaves_its_direction_open() {
    in_both(|| async {
        let (a, b) = connect().await;
        let (reading, writing) = a.into_split();
        writing.forget();
        let (mut b_reading, mut b_writing) = b.into_split();
        b_writing.write_all(b"x").await.expect("write");
        let mut reading = reading;
        reading.read_exact(&mut [0]).await.expect("read");
        let mut byte = [0];
        let end = tokio::select! {
            biased;
            end = b_reading.read(&mut byte) => Some(end),
            () = tokio::task::yield_now() => None,
        };
        assert!(end.is_none(), "{end:?}");
        // Dropping the last half closes the stream.
        drop(reading);
        assert_eq!(b_reading.read(&mut byte).await.expect("the end"), 0);
    });
}

#[test]
fn options_of_the_socket_are_set_and_asked() {
    in_both(|| async {
        let (a, _b) = connect().await;
        a.set_ttl(17).expect("option");
        assert_eq!(a.ttl().expect("option"), 17);
        assert!(a.take_error().expect("option").is_none());
    });
}
