//! The reader returns what the writer stored: in one process, across a fork, and nothing else.

use crate::metrics::*;
use proptest::prelude::*;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

fn open(local_port: u16) -> StreamSlot {
    let local = SocketAddr::from(([127, 0, 0, 1], local_port));
    let peer = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 7], 9));
    StreamSlot::open(local, peer, 4711)
}

fn find(pid: u32, local_port: u16) -> Option<StreamMetrics> {
    let process = read_process(pid).unwrap()?;
    process.connections.into_iter().find(|c| c.local.port() == local_port)
}

#[test]
fn a_connection_is_read_as_it_was_written() {
    let slot = open(11);
    slot.add_bytes(Direction::Send, Transport::Tcp, 10);
    slot.set_transport(Direction::Send, Transport::Soft);
    slot.add_bytes(Direction::Send, Transport::Soft, 32);
    slot.add_bytes(Direction::Send, Transport::Soft, 10);
    slot.add_bytes(Direction::Recv, Transport::Rdma, 1 << 40);
    slot.add_wakeup(Direction::Recv);
    slot.add_spin(Direction::Send);
    slot.set_fallback(FallbackReason::Remote);
    slot.set_peer_pid(77);
    slot.probes().unwrap().fetch_add(3, Ordering::Relaxed);
    let seen = find(std::process::id(), 11).unwrap();
    assert_eq!(
        seen,
        StreamMetrics {
            local: "127.0.0.1:11".parse().unwrap(),
            peer: "[fd00::7]:9".parse().unwrap(),
            peer_pid: Some(77),
            inode: 4711,
            tx_transport: Some(Transport::Soft),
            rx_transport: Some(Transport::Tcp),
            probes: 3,
            fallback: Some(FallbackReason::Remote),
            tx: DirectionCounters { bytes: [10, 42, 0], wakeups: 0, spins: 1 },
            rx: DirectionCounters { bytes: [0, 0, 1 << 40], wakeups: 1, spins: 0 },
        }
    );
}

#[test]
fn a_udp_socket_is_read_as_it_was_written_and_disappears() {
    let ends = ["127.0.0.1:15", "[fd00::7]:9", "[::1]:16"].map(|end| end.parse().unwrap());
    let [first, peer, local]: [SocketAddr; 3] = ends;
    let socket = UdpSlot::open(first, None, 4712);
    let find = || {
        let process = read_process(std::process::id()).unwrap()?;
        process.datagrams.into_iter().find(|socket| socket.inode == 4712)
    };
    let seen = find().unwrap();
    assert_eq!((seen.local, seen.peer), (first, None));
    assert_eq!(
        (seen.receives, seen.fallback),
        (Some(ReceivePath::Kernel), Some(FallbackReason::None))
    );
    socket.set_ends(local, Some(peer));
    socket.set_receives(ReceivePath::Queue);
    socket.set_fallback(FallbackReason::Fork);
    socket.set_peers(3, 1000);
    let all = [
        DatagramEvent::Sent,
        DatagramEvent::Dropped,
        DatagramEvent::Rescued,
        DatagramEvent::ByKernel,
        DatagramEvent::Received,
        DatagramEvent::Foreign,
        DatagramEvent::Malformed,
        DatagramEvent::ReceivedByKernel,
    ];
    for (n, what) in (1..).zip(all) {
        (0..n).for_each(|_| socket.count(what));
    }
    let seen = find().unwrap();
    assert_eq!((seen.local, seen.peer), (local, Some(peer)));
    assert_eq!(
        (seen.receives, seen.fallback),
        (Some(ReceivePath::Queue), Some(FallbackReason::Fork))
    );
    assert_eq!((seen.n_queue_peers, seen.n_kernel_peers), (3, 1000));
    assert_eq!(all.map(|what| seen.count(what)), [1, 2, 3, 4, 5, 6, 7, 8]);
    drop(socket);
    assert_eq!(find(), None);
}

#[test]
fn a_dropped_connection_disappears_and_its_slot_is_cleared_before_reuse() {
    for _ in 0..2 * N_SLOTS {
        let slot = open(12);
        slot.add_bytes(Direction::Recv, Transport::Soft, 1);
        drop(slot);
    }
    assert_eq!(find(std::process::id(), 12), None);
    let again = open(13);
    assert_eq!(find(std::process::id(), 13).unwrap().rx, DirectionCounters::default());
    drop(again);
}

#[test]
fn a_forked_child_shows_the_last_addresses_of_a_udp_socket() {
    let ends = ["127.0.0.1:17", "127.0.0.1:18", "[fd00::7]:9"].map(|end| end.parse().unwrap());
    let [first, local, peer]: [SocketAddr; 3] = ends;
    let socket = UdpSlot::open(first, None, 4713);
    socket.set_ends(local, Some(peer));
    let seen = beside_a_child(
        || socket.count(DatagramEvent::Sent),
        |child| read_process(child).unwrap().map(|process| process.datagrams),
    );
    let seen: Vec<_> = seen
        .unwrap()
        .into_iter()
        .map(|s| (s.local, s.peer, s.count(DatagramEvent::Sent)))
        .collect();
    assert_eq!(seen, [(local, Some(peer), 1)]);
}

/// Forks, and runs `f` with the child's id once the child has run `in_child`, before the child
/// ends.
fn beside_a_child<R>(in_child: impl FnOnce(), f: impl FnOnce(u32) -> R) -> R {
    let (mut ready, ready_child) = std::io::pipe().unwrap();
    let (end_child, mut end) = std::io::pipe().unwrap();
    // SAFETY: the child calls only what is safe after a fork in a threaded process: system calls
    // and atomics.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        in_child();
        let _ = rustix::io::write(&ready_child, b"x");
        drop(end);
        let _ = rustix::io::read(&end_child, &mut [0; 1]);
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(0) };
    }
    drop((ready_child, end_child));
    ready.read_exact(&mut [0; 1]).unwrap();
    let result = f(child.cast_unsigned());
    // A byte rather than a close: another test's child may have inherited the pipe.
    end.write_all(b"x").unwrap();
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is writable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    result
}

#[test]
fn a_forked_child_counts_in_a_table_of_its_own() {
    let slot = open(14);
    slot.add_bytes(Direction::Send, Transport::Tcp, 5);
    let in_child = || slot.add_bytes(Direction::Send, Transport::Tcp, 100);
    let (in_childs_table, in_own_table) = beside_a_child(in_child, |child| {
        slot.add_bytes(Direction::Send, Transport::Tcp, 1);
        [child, std::process::id()].map(|pid| find(pid, 14).map(|c| c.tx.bytes[0])).into()
    });
    assert_eq!((in_childs_table, in_own_table), (Some(100), Some(6)));
    drop(slot);
}

#[test]
fn a_process_without_a_table_has_none_and_a_missing_one_is_an_error() {
    let mut child =
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let none = read_process(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(none.unwrap(), None);
    let gone = read_process(child.id()).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_file_that_only_looks_like_a_table_is_refused() {
    let mut short = File::from(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
    short.write_all(&[0xff; 100]).unwrap();
    assert!(reader::read_table(&short).unwrap().is_none());
    short.set_len(TABLE_LEN as u64).unwrap();
    assert!(reader::read_table(&short).unwrap().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// A hostile process may show any bytes after a valid header.
    #[test]
    fn any_bytes_in_a_slot_are_read_without_panic(
        index in 0..u64::from(N_SLOTS),
        bytes in prop::collection::vec(any::<u8>(), SLOT_LEN),
    ) {
        let file = File::from(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(TABLE_LEN as u64).unwrap();
        file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
        file.write_all_at(&VERSION.to_ne_bytes(), 8).unwrap();
        file.write_all_at(&u32::try_from(SLOT_LEN).unwrap().to_ne_bytes(), 20).unwrap();
        file.write_all_at(&bytes, SLOTS_AT as u64 + index * SLOT_LEN as u64).unwrap();
        let table = reader::read_table(&file).unwrap().unwrap();
        let state = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & STATE_MASK;
        prop_assert_eq!(table.connections.len(), usize::from(state == STATE_LIVE));
        prop_assert_eq!(table.datagrams.len(), usize::from(state == STATE_DATAGRAMS));
    }
}
