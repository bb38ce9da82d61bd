//! Direct writes into memory that the peer opened.

use crate::rsocket::tests::rsockets::{Builder, Opened, Stream};
use crate::rsocket::tests::*;
use std::io::{Read, Write};

/// A pair whose ends may open `slots` buffers to each other.
fn pair(slots: u16) -> (Stream, Stream) {
    let builder = Builder::default().iomap_slots(slots);
    let listener = builder.listen(addr("127.0.0.1:0")).expect("listen");
    let client = builder.connect(listener.local_addr().expect("name")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (client, server)
}

/// Sends a byte and waits for it: what was opened or written before is there then.
fn sync(mut from: &Stream, mut to: &Stream) {
    from.write_all(b"!").expect("write");
    to.read_exact(&mut [0]).expect("read");
}

fn content(opened: &Opened) -> Vec<u8> {
    let mut bytes = vec![0; opened.len()];
    opened.read_at(0, &mut bytes);
    bytes
}

#[test]
fn bytes_go_where_they_are_put_and_nowhere_else() {
    let _watchdog = watchdog();
    let (client, server) = pair(4);
    let first = client.open(100, 1000).expect("open");
    let second = client.open(1 << 20, 1 << 40).expect("open");
    sync(&client, &server);
    assert_eq!(server.put(b"abc", 1010).expect("put"), 3);
    let big: Vec<u8> = (0..1u32 << 20).map(|i| i.to_be_bytes()[2]).collect();
    assert_eq!(server.put(&big, 1 << 40).expect("put"), big.len());
    // The end of a buffer is the end of a put.
    assert_eq!(server.put(&[7; 50], 1090).expect("put"), 10);
    sync(&server, &client);
    let mut expected = vec![0; 100];
    expected[10..13].copy_from_slice(b"abc");
    expected[90..].fill(7);
    assert_eq!(content(&first), expected);
    assert!(content(&second) == big);
}

#[test]
fn nothing_is_written_where_nothing_is_open() {
    let _watchdog = watchdog();
    let (client, server) = pair(1);
    assert_eq!(errno(server.put(b"x", 0)), libc::EFAULT);
    let opened = client.open(64, 0).expect("open");
    sync(&client, &server);
    assert_eq!(errno(server.put(b"x", 64)), libc::EFAULT);
    assert_eq!(server.put(b"x", 63).expect("put"), 1);
    drop(opened);
    sync(&client, &server);
    assert_eq!(errno(server.put(b"x", 63)), libc::EFAULT);
    sync(&server, &client);
}

#[test]
fn entries_run_out_and_come_back() {
    let _watchdog = watchdog();
    let (client, _server) = pair(2);
    let one = client.open(8, 0).expect("open");
    let _two = client.open(8, 8).expect("open");
    assert_eq!(errno(client.open(8, 16).map(|_| ())), libc::ENOMEM);
    drop(one);
    client.open(8, 16).expect("free again");
    let (closed, _peer) = pair(0);
    assert_eq!(errno(closed.open(8, 0).map(|_| ())), libc::ENOMEM);
}

/// More mappings over the life of a connection than a C sender has credits for.
#[test]
fn mappings_cost_no_credit() {
    let _watchdog = watchdog();
    let (client, server) = pair(8);
    for round in 0..1000u64 {
        let opened = client.open(16, round * 100).expect("open");
        sync(&client, &server);
        assert_eq!(server.put(&round.to_ne_bytes(), round * 100).expect("put"), 8);
        sync(&server, &client);
        assert_eq!(content(&opened)[..8], round.to_ne_bytes());
    }
}

#[test]
fn the_callers_own_memory_can_be_opened_too() {
    let _watchdog = watchdog();
    let (client, server) = pair(2);
    let mut memory = vec![0u8; 10_000];
    let (at, len) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: `memory` outlives the mapping, and is looked at only after `iounmap`.
    let opened = unsafe { CallerMemory::new(at, len) };
    let offset = client.socket().iomap(&opened, Some(5), true).expect("iomap");
    assert_eq!(offset, 5);
    sync(&client, &server);
    assert_eq!(server.put(&[9; 10_000], 5).expect("put"), len);
    sync(&server, &client);
    assert_eq!(errno(client.socket().iounmap(at, len - 1)), libc::EINVAL);
    client.socket().iounmap(at, len).expect("iounmap");
    assert_eq!(errno(client.socket().iounmap(at, len)), libc::EINVAL);
    assert!(memory.iter().all(|b| *b == 9));
}
