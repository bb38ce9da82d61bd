//! Members whose numbers come to name other files.

use super::*;
use rsock_core::accelerate::Side;
use rsock_core::closing::Descriptor;
use rustix::io::dup2;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// One end of a connection.
struct End {
    socket: OwnedFd,
    stream: AcceleratedStream,
}

impl End {
    fn new(socket: TcpStream, side: Side) -> Self {
        let stream = AcceleratedStream::adopt(socket.as_fd(), Some(side)).expect("memory");
        Self { socket: socket.into(), stream }
    }

    fn send(&self) {
        let (stream, by) = (StreamRef::Accelerated(&self.stream), self.socket.as_fd());
        let sent =
            stream.send_by(Descriptor::new(by, 0), &[IoSlice::new(&[1])], SendFlags::empty());
        assert_eq!(sent.expect("send"), 1);
    }

    fn receive(&self) {
        let (stream, by) = (StreamRef::Accelerated(&self.stream), self.socket.as_fd());
        let mut byte = [0];
        let bufs = &mut [IoSliceMut::new(&mut byte)];
        let n = stream.recv_by(Descriptor::new(by, 0), bufs, RecvFlags::empty()).expect("receive");
        assert_eq!((n, byte), (1, [1]));
    }
}

/// A connection whose bytes go by a ring.
fn ends() -> [End; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let connected = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (accepted, _) = listener.accept().expect("accept");
    let ends = [End::new(connected, Side::Connected), End::new(accepted, Side::Accepted)];
    for _ in 0..1_000 {
        for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            from.send();
            to.receive();
        }
    }
    ends
}

/// Which numbers the socket watch reports.
fn reported(members: &mut Members) -> Vec<u32> {
    members.take_socket_events();
    std::mem::take(&mut members.reported)
}

#[test]
fn a_member_whose_number_another_member_has_now_leaves_it_its_watch() {
    let [old, _old_peer] = ends();
    let [new, new_peer] = ends();
    let mut members = Members::new(0).expect("descriptors");
    let number = old.socket.as_raw_fd();
    let row = rows::row_or_map(number).expect("memory");
    let key = |generation| Key { index: 1_000_000, generation };
    assert!(members.add(number, key(1), &old.stream));
    let place = || Place::of(row.quiet_place.load(Ordering::Relaxed)).expect("a place");
    let first = place();
    // A signal handler closes the number, and another file gets it.
    Members::forget_row(number, first);
    let mut reused = old.socket;
    dup2(&new.socket, &mut reused).expect("a copy");
    assert!(members.add(number, key(2), &new.stream));
    let second = place();
    assert_ne!(first, second);
    members.reap(|_| None);
    assert_eq!(members.len(), 1);
    assert!(members.has(number, second, key(2)) && place() == second);
    // What the kernel reports of each new watch.
    let _ = reported(&mut members);
    rustix::net::shutdown(&new_peer.socket, rustix::net::Shutdown::Write).expect("shut down");
    assert_eq!(reported(&mut members), [second.number()]);
    assert!(members.remove(number, second, key(2), Some(&new.stream)));
    assert_eq!((members.len(), row.quiet_place.load(Ordering::Relaxed)), (0, 0));
}
