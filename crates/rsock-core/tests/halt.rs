//! A halt concerns all streams of a process, so its test has a process of its own.

use rsock_core::accelerate::{AcceleratedStream, Channels, Halt};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

/// More than it takes to find the peer and to move both directions.
const MANY: u32 = 2_000;

struct End {
    socket: TcpStream,
    stream: AcceleratedStream,
}

impl End {
    fn new(socket: TcpStream) -> Self {
        let stream = AcceleratedStream::adopt(socket.as_fd(), None).expect("family memory");
        Self { socket, stream }
    }

    fn send(&self, byte: u8) {
        let sent =
            self.stream.send(self.socket.as_fd(), &[IoSlice::new(&[byte])], SendFlags::empty());
        assert_eq!(sent.expect("send"), 1);
    }

    fn receive(&self) -> u8 {
        let mut byte = [0];
        let mut room = [IoSliceMut::new(&mut byte)];
        let n = self.stream.recv(self.socket.as_fd(), &mut room, RecvFlags::empty());
        assert_eq!(n.expect("receive"), 1);
        byte[0]
    }
}

fn connect() -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (End::new(client), End::new(server))
}

/// Sends bytes to and fro; whether any direction has moved.
fn exchange((a, b): &(End, End)) -> bool {
    let mut has_moved = false;
    for i in 0..MANY {
        let byte = i.to_le_bytes()[0];
        a.send(byte);
        assert_eq!(b.receive(), byte);
        b.send(!byte);
        assert_eq!(a.receive(), !byte);
        has_moved |= [a, b].iter().any(|end| end.stream.channels() != Channels::TCP);
    }
    has_moved
}

#[test]
fn no_stream_moves_to_the_ring_before_the_last_halt_has_ended() {
    let halts = [Halt::begin(), Halt::begin()];
    let streams = connect();
    assert!(!exchange(&streams));
    let [first, second] = halts;
    drop(first);
    assert!(!exchange(&streams));
    drop(second);
    assert!(exchange(&streams));

    let halt = Halt::begin();
    assert!(exchange(&streams), "a stream on the ring stays there");
    let others = connect();
    Halt::forget_all();
    assert!(exchange(&others), "a forked child does not wait for the halts of its parent");
    drop(halt);
}
