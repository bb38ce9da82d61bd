//! Native streams. The soft device carries them here: they use what both devices have.

use crate::accelerate::socket_proxy;
use crate::accelerate::tests::*;
use crate::closing::Descriptor;
use rustix::fd::OwnedFd;
use rustix::net::AddressFamily;

/// A native stream, and the placeholder that its program holds.
struct NativeEnd {
    placeholder: OwnedFd,
    stream: NativeStream,
    /// The TCP socket of the accelerated stream that it was: open, so that its peer does not find
    /// an end there.
    _socket: TcpStream,
}

impl NativeEnd {
    /// Goes on with the ring of `end`, without its TCP socket.
    fn new(end: End) -> Self {
        let End { socket, stream } = end;
        let [local, peer] = [socket.local_addr(), socket.peer_addr()].map(|a| a.expect("address"));
        let (placeholder, kept) =
            socket_proxy::placeholder(AddressFamily::INET, local.ip()).expect("a placeholder");
        // A program's socket blocks unless it says otherwise.
        rustix::io::ioctl_fionbio(&placeholder, false).expect("a socket");
        let stream = NativeStream::new(placeholder.as_fd(), kept, stream.path, (local, peer));
        Self { placeholder, stream: stream.expect("family memory"), _socket: socket }
    }

    fn descriptor(&self) -> Descriptor<'_> {
        Descriptor::new(self.placeholder.as_fd(), self.stream.closings().count())
    }

    fn recv_with(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        self.stream.recv_by(self.descriptor(), &mut [IoSliceMut::new(buf)], flags)
    }

    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send_by(self.descriptor(), &[IoSlice::new(bytes)], SendFlags::DONTWAIT)
    }
}

/// The peer of a native stream, and the stream.
fn connect_native() -> (End, NativeEnd) {
    let (a, b) = connect_on_ring();
    (a, NativeEnd::new(b))
}

const PEEK_ALL: RecvFlags = RecvFlags::PEEK.union(RecvFlags::WAITALL);

#[test]
fn a_peek_at_more_than_the_peer_has_sent_returns_at_the_end_of_the_stream() {
    watchdog(|| {
        let (a, b) = connect_native();
        a.send(b"all").expect("send");
        a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
        let mut buf = [0; 20];
        assert_eq!(b.recv_with(&mut buf, PEEK_ALL).expect("peek"), 3);
        assert_eq!(&buf[..3], b"all");
        assert_eq!(b.recv_with(&mut buf, RecvFlags::WAITALL).expect("receive"), 3);
        assert_eq!(b.recv_with(&mut buf, PEEK_ALL).expect("the end"), 0);
    });
}

/// The end comes while the call waits.
#[test]
fn a_waiting_peek_ends_when_the_peer_ends() {
    watchdog(|| {
        let (a, b) = &connect_native();
        a.send(b"all").expect("send");
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let peeking = scope.spawn(move || {
                tell.send(rsock_verbs::family::thread_id()).expect("the test waits");
                b.recv_with(&mut [0; 20], PEEK_ALL)
            });
            await_asleep(told.recv().expect("its id"));
            a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
            assert_eq!(peeking.join().expect("no panic").expect("peek"), 3);
        });
    });
}

#[test]
fn a_waiting_peek_returns_once_all_bytes_are_there() {
    watchdog(|| {
        let (a, b) = connect_native();
        a.send(b"first").expect("send");
        std::thread::scope(|scope| {
            let peeking = scope.spawn(|| b.recv_with(&mut [0; 9], PEEK_ALL));
            a.send(b", then more").expect("send");
            assert_eq!(peeking.join().expect("no panic").expect("peek"), 9);
        });
        let mut buf = [0; 16];
        assert_eq!(b.recv_with(&mut buf, RecvFlags::WAITALL).expect("receive"), 16);
        assert_eq!(&buf, b"first, then more");
    });
}

#[test]
fn a_call_on_a_native_stream_that_must_not_wait_says_so() {
    watchdog(|| {
        let (a, b) = connect_native();
        let received = b.recv_with(&mut [0; 9], RecvFlags::DONTWAIT);
        assert_eq!(received.expect_err("nothing").kind(), ErrorKind::WouldBlock);
        let error = loop {
            if let Err(e) = b.try_send(&[7; 65_536]) {
                break e;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_ne!(a.recv(&mut [0; 65_536]).expect("receive"), 0);
        while b.try_send(&[7]).is_err() {
            assert_ne!(a.recv(&mut [0; 65_536]).expect("receive"), 0);
        }
    });
}
