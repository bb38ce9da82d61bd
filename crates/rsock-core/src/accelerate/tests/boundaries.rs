//! The boundaries at which a stream moves between TCP and the ring, and ends that only one of the
//! two shows: a program must not notice either.

use crate::accelerate::tests::*;
use crate::closing::Descriptor;
use rustix::event::{PollFd, PollFlags, poll};

/// `b` has six bytes on TCP, three behind them on the ring, and two on TCP again: bytes 4 to 15 of
/// the pattern.
fn connect_across_boundaries() -> (End, End) {
    let (a, b) = connect_on_ring();
    a.socket.set_nodelay(true).expect("option");
    move_down(&a);
    a.send(&pattern(0, 10)).expect("send");
    // This also invites again.
    recv_pattern_at(&b, 0, 4);
    a.send(&pattern(10, 3)).expect("send");
    assert!(a.stream.channels().send.is_ring(), "did not move up");
    move_down(&a);
    a.send(&pattern(13, 2)).expect("send");
    while queued(b.socket.as_fd()).expect("ioctl") != 8 {
        std::hint::spin_loop();
    }
    (a, b)
}

fn move_down(end: &End) {
    end.stream.move_down(end.socket.as_fd());
}

fn recv_pattern_at(end: &End, at: usize, n: usize) {
    let mut buf = vec![0; n];
    assert_eq!(end.recv(&mut buf).expect("receive"), n);
    assert_eq!(buf, pattern(at, n));
}

/// Waits for the tick of the clock after which a writer checks the socket.
fn await_tick() {
    let first = sys::tick();
    while sys::tick() == first {
        std::hint::spin_loop();
    }
}

/// Waits until the kernel has taken in that the peer has reset the connection.
fn await_end(end: &End) {
    // What is not asked for is reported too if it is an error.
    let mut fds = [PollFd::new(&end.socket, PollFlags::empty())];
    assert_eq!(poll(&mut fds, None).expect("poll"), 1);
}

fn errno(result: io::Result<usize>) -> Option<i32> {
    result.expect_err("fails").raw_os_error()
}

#[test]
fn one_read_returns_what_tcp_and_the_ring_hold() {
    watchdog(|| {
        let (_a, b) = connect_across_boundaries();
        let mut buf = [0; 100];
        assert_eq!(b.recv(&mut buf).expect("receive"), 11);
        assert_eq!(buf[..11], pattern(4, 11));
        assert_eq!(errno(b.recv_with(&mut buf, RecvFlags::DONTWAIT)), Some(libc::EAGAIN));
    });
}

#[test]
fn a_read_that_ends_at_a_boundary_leaves_the_rest() {
    watchdog(|| {
        for first in 1..11 {
            let (_a, b) = connect_across_boundaries();
            recv_pattern_at(&b, 4, first);
            recv_pattern_at(&b, 4 + first, 11 - first);
        }
    });
}

#[test]
fn a_peek_crosses_boundaries_and_takes_nothing() {
    watchdog(|| {
        let (_a, b) = connect_across_boundaries();
        for n in [1, 6, 7, 9, 10, 11, 50] {
            let mut pieces = [[0; 5]; 10];
            let mut left = n;
            let mut bufs: Vec<_> = pieces
                .iter_mut()
                .map(|piece| {
                    let len = left.min(piece.len());
                    left -= len;
                    IoSliceMut::new(&mut piece[..len])
                })
                .collect();
            let seen = b.stream.recv(b.socket.as_fd(), &mut bufs, RecvFlags::PEEK).expect("peek");
            assert_eq!(seen, n.min(11));
            assert_eq!(pieces.concat()[..seen], pattern(4, seen));
        }
        recv_pattern_at(&b, 4, 11);
    });
}

#[test]
fn the_readable_bytes_are_those_of_tcp_and_the_ring() {
    watchdog(|| {
        let (_a, b) = connect_across_boundaries();
        let readable = || b.stream.bytes_readable(b.socket.as_fd()).expect("ioctl");
        for left in (1..=11).rev() {
            assert_eq!(readable(), left);
            recv_pattern_at(&b, 15 - left, 1);
        }
        assert_eq!(readable(), 0);
    });
}

#[test]
fn many_pieces_are_sent_and_received_in_one_call() {
    watchdog(|| {
        for is_plain in [true, false] {
            let (a, b) = if is_plain { connect() } else { connect_on_ring() };
            let bytes = pattern(0, 400);
            let pieces: Vec<_> = bytes.chunks(10).map(IoSlice::new).collect();
            let sent = a.stream.send(a.socket.as_fd(), &pieces, SendFlags::empty());
            assert_eq!(sent.expect("send"), 400);
            let mut got = [[0; 10]; 40];
            let mut bufs: Vec<_> = got.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            let n = b.stream.recv(b.socket.as_fd(), &mut bufs, RecvFlags::empty());
            assert_eq!(n.expect("receive"), 400);
            assert_eq!(got.concat(), bytes);
        }
    });
}

#[test]
fn sending_to_a_peer_that_has_shut_down_both_directions_resets() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(&pattern(0, 5)).expect("send");
        a.stream.shutdown(a.socket.as_fd(), Shutdown::Read).expect("shutdown");
        a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
        await_tick();
        assert_eq!(b.send(&[1]).expect("as on TCP, the first is taken"), 1);
        assert_eq!(errno(b.send(&[1])), Some(libc::EPIPE));
        recv_pattern_at(&a, 0, 5);
        assert_eq!(errno(a.recv(&mut [0])), Some(libc::ECONNRESET));
    });
}

#[test]
fn two_half_closes_are_no_reset_whatever_is_unread() {
    watchdog(|| {
        // The first half-close comes from TCP, or from the ring.
        for is_down in [true, false] {
            let (a, b) = connect_on_ring();
            if is_down {
                move_down(&b);
            }
            b.stream.shutdown(b.socket.as_fd(), Shutdown::Write).expect("shutdown");
            assert_eq!(a.recv(&mut [0]).expect("end"), 0);
            a.send(&pattern(0, 5)).expect("send");
            assert!(
                a.stream.channels().send.is_ring(),
                "a half-close is no reason to leave the ring"
            );
            a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
            assert_eq!(a.recv(&mut [0]).expect("end"), 0);
            recv_pattern_at(&b, 0, 5);
            assert_eq!(b.recv(&mut [0]).expect("end"), 0);
        }
    });
}

#[test]
fn bytes_on_tcp_come_before_an_end_that_the_ring_shows() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&pattern(0, 3)).expect("send");
        move_down(&a);
        a.send(&pattern(3, 4)).expect("send");
        a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
        for at in 0..7 {
            recv_pattern_at(&b, at, 1);
        }
        assert_eq!(b.recv(&mut [0]).expect("end"), 0);
    });
}

#[test]
fn unread_bytes_make_a_close_a_reset_once_a_child_has_gone() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(b"never read").expect("send");
        a.stream.before_fork(a.socket.as_fd());
        assert!(a.stream.is_shared(), "a child may hold it before it is known");
        let mut child = std::process::Command::new("true").spawn().expect("true");
        a.stream.dirs.holders.0.add_child(child.id());
        child.wait().expect("wait");
        a.stream.close(a.socket.as_fd());
        drop(a);
        assert_eq!(errno(b.recv(&mut [0])), Some(libc::ECONNRESET));
    });
}

#[test]
fn a_read_that_waits_for_all_leaves_the_error_to_the_next_call() {
    watchdog(|| {
        let (a, b) = connect_across_boundaries();
        sockopt::set_socket_linger(&a.socket, Some(Duration::ZERO)).expect("option");
        drop(a);
        let mut buf = [0; 12];
        assert_eq!(b.recv_with(&mut buf, RecvFlags::WAITALL).expect("receive"), 11);
        assert_eq!(buf[..11], pattern(4, 11));
        assert_eq!(errno(b.recv(&mut buf)), Some(libc::ECONNRESET));
    });
}

#[test]
fn a_read_that_has_received_from_the_ring_leaves_the_error_to_the_next_call() {
    watchdog(|| {
        for flags in [RecvFlags::WAITALL, RecvFlags::WAITALL | RecvFlags::DONTWAIT] {
            let (a, b) = connect_on_ring();
            a.send(&pattern(0, 3)).expect("send");
            sockopt::set_socket_linger(&a.socket, Some(Duration::ZERO)).expect("option");
            drop(a);
            let mut buf = [0; 12];
            assert_eq!(b.recv_with(&mut buf, flags).expect("receive"), 3);
            assert_eq!(errno(b.recv(&mut buf)), Some(libc::ECONNRESET));
        }
    });
}

#[test]
fn a_reset_connection_does_not_move_up() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        move_down(&a);
        a.send(&pattern(0, 10)).expect("send");
        // This invites again.
        recv_pattern_at(&b, 0, 10);
        sockopt::set_socket_linger(&b.socket, Some(Duration::ZERO)).expect("option");
        drop(b);
        await_end(&a);
        assert_eq!(errno(a.send(&[1])), Some(libc::ECONNRESET));
    });
}

/// `b` has three bytes on the ring, an urgent one on TCP, and `behind` bytes after it.
fn connect_before_mark(behind: usize) -> (End, End) {
    let (a, b) = connect_on_ring();
    a.send(&pattern(0, 3)).expect("send");
    move_down(&a);
    let urgent = [IoSlice::new(b"!")];
    assert_eq!(a.stream.send(a.socket.as_fd(), &urgent, SendFlags::OOB).expect("send"), 1);
    a.send(&pattern(3, behind)).expect("send");
    while !sys::is_at_mark(b.socket.as_fd()) {
        std::hint::spin_loop();
    }
    (a, b)
}

#[test]
fn a_read_stops_before_an_urgent_byte() {
    watchdog(|| {
        for flags in [RecvFlags::DONTWAIT, RecvFlags::DONTWAIT | RecvFlags::WAITALL] {
            for inline in [false, true] {
                let (_a, b) = connect_before_mark(2);
                sockopt::set_socket_oobinline(&b.socket, inline).expect("option");
                assert!(!b.stream.is_at_mark(b.socket.as_fd()));
                let mut buf = [0; 50];
                assert_eq!(b.recv_with(&mut buf, flags).expect("receive"), 3);
                assert!(b.stream.is_at_mark(b.socket.as_fd()));
                let kept = b.stream.recv_more(
                    Descriptor::new(b.socket.as_fd(), b.stream.closings.count()),
                    &mut [IoSliceMut::new(&mut buf)],
                );
                assert_eq!(kept, 0);
                let behind = b.recv_with(&mut buf, flags).expect("receive");
                assert_eq!(behind, if inline { 3 } else { 2 });
                assert_eq!(buf[behind - 2..behind], pattern(3, 2));
            }
        }
    });
}

#[test]
fn an_urgent_byte_alone_ends_an_empty_read() {
    watchdog(|| {
        let (_a, b) = connect_before_mark(0);
        recv_pattern_at(&b, 0, 3);
        assert_eq!(b.recv_with(&mut [], RecvFlags::DONTWAIT).expect("receive"), 0);
        assert_eq!(errno(b.recv_with(&mut [0], RecvFlags::DONTWAIT)), Some(libc::EAGAIN));
    });
}
