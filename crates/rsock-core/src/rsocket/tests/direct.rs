//! Direct writes into memory that the peer exposes.

use crate::rsocket::tests::*;
use std::io::{Read, Write};

/// A pair whose ends may expose `slots` regions to each other.
fn pair(slots: u16) -> (Arc<Socket>, Arc<Socket>) {
    let settings = SocketSettings::default().iomap_slots(slots);
    let listener = settings.listen(addr("127.0.0.1:0")).expect("listen");
    let to = listener.local_addr().expect("name");
    let client = settings.connect(to, None).expect("connect");
    let server = listener.accept().expect("accept");
    (Arc::new(client), Arc::new(server))
}

/// Sends a byte and receives it: regions exposed and bytes written before are there then.
fn sync(mut from: &Socket, mut to: &Socket) {
    from.write_all(b"!").expect("write");
    to.read_exact(&mut [0]).expect("read");
}

fn content(region: &ExposedRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes);
    bytes
}

#[test]
fn bytes_go_to_the_offset_given_and_nowhere_else() {
    let _watchdog = watchdog();
    let (client, server) = pair(4);
    let first = client.expose(100, 1000).expect("open");
    let second = client.expose(1 << 20, 1 << 40).expect("open");
    sync(&client, &server);
    assert_eq!(server.write_remote(b"abc", 1010, SendFlags::empty()).expect("put"), 3);
    let big: Vec<u8> = (0..1u32 << 20).map(|i| i.to_be_bytes()[2]).collect();
    assert_eq!(server.write_remote(&big, 1 << 40, SendFlags::empty()).expect("put"), big.len());
    // A write ends where the region ends.
    assert_eq!(server.write_remote(&[7; 50], 1090, SendFlags::empty()).expect("put"), 10);
    sync(&server, &client);
    let mut expected = vec![0; 100];
    expected[10..13].copy_from_slice(b"abc");
    expected[90..].fill(7);
    assert_eq!(content(&first), expected);
    assert!(content(&second) == big);
}

#[test]
fn a_write_where_no_region_is_exposed_is_efault() {
    let _watchdog = watchdog();
    let (client, server) = pair(1);
    assert_eq!(errno(server.write_remote(b"x", 0, SendFlags::empty())), libc::EFAULT);
    let opened = client.expose(64, 0).expect("open");
    sync(&client, &server);
    assert_eq!(errno(server.write_remote(b"x", 64, SendFlags::empty())), libc::EFAULT);
    assert_eq!(server.write_remote(b"x", 63, SendFlags::empty()).expect("put"), 1);
    drop(opened);
    sync(&client, &server);
    assert_eq!(errno(server.write_remote(b"x", 63, SendFlags::empty())), libc::EFAULT);
    sync(&server, &client);
}

#[test]
fn iomap_entries_run_out_and_come_back() {
    let _watchdog = watchdog();
    let (client, _server) = pair(2);
    let one = client.expose(8, 0).expect("open");
    let _two = client.expose(8, 8).expect("open");
    assert_eq!(errno(client.expose(8, 16).map(|_| ())), libc::ENOMEM);
    drop(one);
    client.expose(8, 16).expect("free again");
    let (closed, _peer) = pair(0);
    assert_eq!(errno(closed.expose(8, 0).map(|_| ())), libc::ENOMEM);
}

/// More mappings over the life of a connection than a C sender has credits for.
#[test]
fn mappings_cost_no_credit() {
    let _watchdog = watchdog();
    let (client, server) = pair(8);
    for round in 0..1000u64 {
        let opened = client.expose(16, round * 100).expect("open");
        sync(&client, &server);
        assert_eq!(
            server
                .write_remote(&round.to_ne_bytes(), round * 100, SendFlags::empty())
                .expect("put"),
            8
        );
        sync(&server, &client);
        assert_eq!(content(&opened)[..8], round.to_ne_bytes());
    }
}

#[test]
fn memory_of_the_caller_can_be_exposed_too() {
    let _watchdog = watchdog();
    let (client, server) = pair(2);
    let mut memory = vec![0u8; 10_000];
    let (at, len) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: `memory` outlives the mapping, and is read only after `iounmap`.
    let opened = unsafe { CallerMemory::new(at, len) };
    let offset = client.iomap(&opened, Some(5), RemoteAccess::Write).expect("iomap");
    assert_eq!(offset, 5);
    sync(&client, &server);
    assert_eq!(server.write_remote(&[9; 10_000], 5, SendFlags::empty()).expect("put"), len);
    sync(&server, &client);
    assert_eq!(errno(client.iounmap(at, len - 1)), libc::EINVAL);
    client.iounmap(at, len).expect("iounmap");
    assert_eq!(errno(client.iounmap(at, len)), libc::EINVAL);
    assert!(memory.iter().all(|b| *b == 9));
}
