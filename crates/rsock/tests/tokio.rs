//! Conversions between blocking sockets and those of `rsock::tokio`.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use rsock::{Datagram, Stream, rsockets};
use std::io::{ErrorKind, Read, Write};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_stream_of_tokio_becomes_a_blocking_one() {
    runtime().block_on(async {
        let listener = rsock::tokio::Listener::bind("127.0.0.1:0").await.unwrap();
        let mut client =
            rsock::tokio::Stream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(b"one").await.unwrap();
        server.read_exact(&mut [0; 3]).await.unwrap();

        let (client, server) =
            (Stream::try_from(client).unwrap(), Stream::try_from(server).unwrap());
        client.set_nonblocking(false).unwrap();
        server.set_nonblocking(false).unwrap();
        (&client).write_all(b"two").unwrap();
        let mut word = [0; 3];
        (&server).read_exact(&mut word).unwrap();
        assert_eq!(&word, b"two");
    });
}

#[test]
fn a_blocking_rsockets_stream_becomes_one_of_tokio() {
    let listener = rsockets::Listener::bind("127.0.0.1:0").unwrap();
    let client = rsockets::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"early").unwrap();
    runtime().block_on(async {
        let mut client = rsock::tokio::rsockets::Stream::try_from(client).unwrap();
        let mut word = [0; 5];
        client.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"early");
        client.write_all(b"late").await.unwrap();
    });
    let mut word = [0; 4];
    server.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"late");
}

#[test]
fn a_datagram_socket_without_clones_becomes_one_of_tokio() {
    let (a, b) = (Datagram::bind("127.0.0.1:0").unwrap(), Datagram::bind("127.0.0.1:0").unwrap());
    let to = b.local_addr().unwrap();
    let clone = b.try_clone().unwrap();
    runtime().block_on(async {
        let refused = rsock::tokio::Datagram::try_from(clone).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceBusy);
        let b = rsock::tokio::Datagram::try_from(b).unwrap();
        a.send_to(b"hello", to).unwrap();
        let mut buf = [0; 16];
        assert_eq!(b.recv_from(&mut buf).await.unwrap(), (5, a.local_addr().unwrap()));
    });
}
