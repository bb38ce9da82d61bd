//! `FIONREAD` tells the length of the datagram that the next receive returns.

use crate::datagram::kernel_udp::tests::{End, accelerated_pair};
use rustix::net::RecvFlags;
use std::os::fd::AsFd;

/// What `FIONREAD` tells a program.
fn bytes_readable(at: &End) -> usize {
    let by_queue = at.udp.bytes_readable(at.socket.as_fd());
    by_queue.unwrap_or_else(|| {
        let n = rustix::io::ioctl_fionread(&at.socket).expect("the kernel's answer");
        usize::try_from(n).expect("a length")
    })
}

/// Receives everything, of which each datagram was told before.
fn take_all(at: &End) -> Vec<usize> {
    let mut lens = Vec::new();
    loop {
        let told = bytes_readable(at);
        let Ok((_, data, _)) = at.recv(RecvFlags::DONTWAIT) else {
            assert_eq!(told, 0, "after {lens:?}");
            return lens;
        };
        assert_eq!(told, data.len(), "after {lens:?}");
        lens.push(data.len());
    }
}

#[test]
fn datagrams_of_the_queue_are_told_one_after_the_other() {
    let (a, b) = accelerated_pair();
    assert!(a.send(b"one", b.addr()) && a.send(b"three", b.addr()));
    assert_eq!((bytes_readable(&b), bytes_readable(&b)), (3, 3));
    assert_eq!(b.recv(RecvFlags::PEEK).expect("a peek").1, b"one");
    assert_eq!(take_all(&b), [3, 5]);
    assert_eq!(bytes_readable(&b), 0);
}

#[test]
fn a_datagram_that_went_by_the_kernel_is_told_before_those_behind_it() {
    let (a, b) = accelerated_pair();
    for peek in [false, true] {
        assert!(!a.send(&[7; 9000], b.addr()));
        let mut n = 1;
        while !a.send(b"last", b.addr()) {
            n += 1;
        }
        if peek {
            assert_eq!(b.recv(RecvFlags::PEEK).expect("a peek").1.len(), 9000);
        }
        let lens = take_all(&b);
        assert_eq!((lens[0], lens.len(), &lens[1..]), (9000, n + 1, &vec![4; n][..]));
    }
}

#[test]
fn a_datagram_behind_one_that_the_kernel_has_handed_out_is_told() {
    let (a, b) = accelerated_pair();
    assert!(!a.send(&[7; 9000], b.addr()));
    while !a.send(b"last", b.addr()) {}
    // By a call that rsock does not see.
    let mut buf = vec![0; 10_000];
    while rustix::net::recv(&b.socket, &mut buf[..], RecvFlags::DONTWAIT).is_ok() {}
    assert_eq!(take_all(&b), [4]);
}
