//! Blocking streams of Rust programs between two hosts. They are in this process, which keeps the
//! device from being removed from then on: the tests that do that have names that come before.

use rsock::{Listener, Stream};
use rsock_tests::Watchdog;
use rsock_tests::hosts::{Guest, Role};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

const PORT: u16 = 7504;
const LEN: usize = 40_000;
/// Blocks that are exchanged on RDMA.
const BLOCKS: u32 = 50;

fn block(number: u32) -> Vec<u8> {
    number.to_be_bytes().into_iter().cycle().take(LEN).collect()
}

/// Sends each block back; whether it was on RDMA both ways at the end.
fn echo(mut stream: &Stream) -> bool {
    let mut got = vec![0; LEN];
    loop {
        let is_on_rdma = stream.channels().are_accelerated();
        match stream.read_exact(&mut got) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return is_on_rdma,
            end => end.expect("a block"),
        }
        stream.write_all(&got).expect("sent back");
    }
}

/// Exchanges blocks until both directions have moved, and then `BLOCKS` more.
fn ask(mut stream: &Stream) {
    let mut left = BLOCKS;
    let mut got = vec![0; LEN];
    let mut number = 0;
    while left != 0 {
        let sent = block(number);
        stream.write_all(&sent).expect("sent");
        stream.read_exact(&mut got).expect("received");
        assert!(got == sent, "block {number} is another");
        if stream.channels().are_accelerated() {
            left -= 1;
        }
        assert_eq!(stream.fallback_reason(), None);
        number += 1;
    }
}

#[test]
fn blocking_streams_move_to_rdma_as_those_of_the_shim_do() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("threads");
    // Read once by a process: what the other test with streams of its own writes is the same.
    fs::write("/etc/rsock.toml", "trust_fabric = [\"10.9.0.0/24\"]\n").expect("a configuration");
    match guest.role {
        Role::A => {
            let listener = Listener::bind((guest.ip(), PORT)).expect("bind");
            guest.meet("listening");
            for _ in 0..2 {
                let (stream, _) = listener.accept().expect("a client");
                assert!(echo(&stream));
            }
            guest.meet("over");
        }
        Role::B => {
            guest.meet("listening");
            let to = SocketAddr::new(guest.peer_ip(), PORT);
            let limit = Duration::from_secs(60);
            for stream in [Stream::connect(to), Stream::connect_timeout(&to, limit)] {
                let mut stream = stream.expect("connect");
                ask(&stream);
                stream.shutdown(Shutdown::Write).expect("shut down");
                assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            }
            guest.meet("over");
        }
    }
}
