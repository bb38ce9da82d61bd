//! Streams of `rsock-tokio` between two hosts. They are in this process, which keeps the device
//! from being removed from then on: the tests that do that come before.

use rsock_tests::Watchdog;
use rsock_tests::hosts::{Guest, Role};
use rsock_tokio::{Channels, Listener, Stream};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime;

const PORT: u16 = 7503;
const LEN: usize = 40_000;
/// Blocks that are exchanged on RDMA.
const BLOCKS: u32 = 200;

fn block(number: u32) -> Vec<u8> {
    number.to_be_bytes().into_iter().cycle().take(LEN).collect()
}

/// Runs `f` in a runtime with one thread, on a host that trusts the other. The configuration is
/// read once by a process, and this is the only test here that has streams in its own.
fn run<F: Future>(f: F) -> F::Output {
    fs::write("/etc/rsock.toml", "trust_fabric = [\"10.9.0.0/24\"]\n").expect("a configuration");
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(f)
}

/// Sends each block back; how the stream ended, and whether it was on RDMA both ways at the end.
async fn echo(mut stream: Stream) -> (io::Result<()>, Channels) {
    let mut got = vec![0; LEN];
    let mut channels;
    let end = loop {
        channels = stream.channels();
        match stream.read_exact(&mut got).await {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break Ok(()),
            Err(e) => break Err(e),
            Ok(_) => {}
        }
        if let Err(e) = stream.write_all(&got).await {
            break Err(e);
        }
    };
    (end, channels)
}

/// Exchanges blocks until both directions have moved, and then `BLOCKS` more.
async fn ask(stream: &mut Stream) {
    let mut left = BLOCKS;
    let mut got = vec![0; LEN];
    let mut number = 0;
    while left != 0 {
        let sent = block(number);
        stream.write_all(&sent).await.expect("sent");
        stream.read_exact(&mut got).await.expect("received");
        assert!(got == sent, "block {number} is another");
        number += 1;
        if stream.channels().are_accelerated() {
            left -= 1;
        }
    }
}

#[test]
fn streams_of_tasks_move_to_rdma_and_end_as_on_tcp() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("tokio");
    run(async {
        match guest.role {
            Role::A => {
                let listener = Listener::bind((guest.ip(), PORT)).await.expect("bind");
                guest.meet("listening");
                let (stream, _) = listener.accept().await.expect("a client");
                let (end, channels) = echo(stream).await;
                end.expect("an end in good order");
                assert!(channels.are_accelerated(), "{channels:?}");
                // A client that ends only its socket, as one that dies does: what it had not
                // brought to this host is lost, so that is no end.
                let (stream, _) = listener.accept().await.expect("a client");
                let (end, _) = echo(stream).await;
                let e = end.expect_err("no end");
                assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
                guest.meet("over");
            }
            Role::B => {
                guest.meet("listening");
                let to = SocketAddr::new(guest.peer_ip(), PORT);
                let mut stream = Stream::connect(to).await.expect("connect");
                ask(&mut stream).await;
                stream.shutdown().await.expect("shut down");
                assert_eq!(stream.read(&mut [0]).await.expect("the end"), 0);
                let mut stream = Stream::connect(to).await.expect("connect");
                ask(&mut stream).await;
                rustix::net::shutdown(&stream, rustix::net::Shutdown::Both).expect("shut down");
                guest.meet("over");
            }
        }
    });
}
