//! How streams end, and what the other end learns of it.

use crate::accelerate::path::Path;
use crate::accelerate::state::FLAG_RESET;
use crate::accelerate::tests::*;
use std::sync::Barrier;

#[test]
fn an_end_that_is_sent_while_the_peer_gives_pages_back_arrives_on_the_ring() {
    watchdog(|| {
        for _ in 0..100 {
            let (a, b) = connect_on_ring();
            let Some(Path::Soft(path)) = b.stream.path() else { panic!("not in memory") };
            let paused = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    paused.wait();
                    a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
                });
                path.stream.while_peer_is_paused(&mut || {
                    paused.wait();
                    (0..5).for_each(|_| std::thread::yield_now());
                });
            });
            assert_eq!(b.recv(&mut [0]).expect("end"), 0);
            // The other direction goes on.
            b.send(&[5]).expect("send");
            assert!(b.stream.channels().send.is_ring());
            a.recv_all(&mut [0]);
            b.stream.shutdown(b.socket.as_fd(), Shutdown::Write).expect("shutdown");
            assert_eq!(a.recv(&mut [0]).expect("end"), 0);
        }
    });
}

#[test]
fn the_end_of_the_stream_comes_after_the_last_byte() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&pattern(0, 5_000)).expect("send");
        a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
        recv_pattern(&b, 5_000, 12);
        let mut byte = [0];
        assert_eq!(b.recv(&mut byte).expect("end"), 0);
        assert_eq!(a.send(&[1]).expect_err("closed").raw_os_error(), Some(libc::EPIPE));
        // The other direction goes on.
        b.send(&pattern(0, 5_000)).expect("send");
        recv_pattern(&a, 5_000, 13);
        drop(b.socket);
        assert_eq!(a.recv(&mut byte).expect("end"), 0);
    });
}

#[test]
fn a_blocked_reader_sees_the_peer_close() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut byte = [0];
                assert_eq!(b.recv(&mut byte).expect("end"), 0);
            });
            s.spawn(move || {
                a.stream.close(a.socket.as_fd());
                drop(a);
            });
        });
    });
}

#[test]
fn unread_bytes_make_a_close_a_reset() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(b"never read").expect("send");
        a.stream.close(a.socket.as_fd());
        drop(a);
        let mut byte = [0];
        assert_eq!(b.recv(&mut byte).expect_err("reset").raw_os_error(), Some(libc::ECONNRESET));
    });
}

#[test]
fn unread_bytes_are_no_reset_while_the_peer_only_shuts_down() {
    watchdog(|| {
        let (a, b) = connect();
        let mut byte = [0];
        // One direction leaves TCP; the other, which is not used, has its end on the socket alone.
        while !a.stream.channels().send.is_ring() {
            a.send(&[7]).expect("send");
            b.recv_all(&mut byte);
        }
        assert!(!b.stream.channels().send.is_ring());
        a.send(&pattern(0, 5_000)).expect("send");
        for end in [&a, &b] {
            end.stream.shutdown(end.socket.as_fd(), Shutdown::Write).expect("shutdown");
        }
        // The kernel has forgotten the connection by now, but both ends are open.
        assert_eq!(a.recv(&mut byte).expect("end"), 0);
        recv_pattern(&b, 5_000, 12);
        assert_eq!(b.recv(&mut byte).expect("end"), 0);
    });
}

#[test]
fn sending_to_a_peer_that_has_gone_is_a_broken_pipe_not_a_reset() {
    watchdog(|| {
        // Sometimes this comes before the writer checks the socket again, so that the ring still
        // takes what it sends.
        for is_closed in [true, false].repeat(20) {
            let (a, b) = connect_on_ring();
            b.send(&[1]).expect("send");
            assert_eq!(a.recv(&mut [0]).expect("read"), 1);
            // A killed process does not close.
            if is_closed {
                a.stream.close(a.socket.as_fd());
            }
            drop(a);
            // As on TCP, the first may be taken.
            let error = (0..).find_map(|_| b.send(&[1]).err()).expect("the peer has gone");
            // At the time of a kill, which the ring does not announce, a program may see a reset
            // (docs/limits.md): here while another test's fork holds a copy of the socket.
            let error = error.raw_os_error();
            let is_after_kill = !is_closed && error == Some(libc::ECONNRESET);
            assert!(error == Some(libc::EPIPE) || is_after_kill, "{error:?}");
            if is_closed {
                assert_eq!(b.recv(&mut [0]).expect("end"), 0);
            }
        }
    });
}

/// The writer has looked at its socket a moment before, and the ring is still open.
#[test]
fn a_write_after_a_reset_that_a_read_has_reported_fails() {
    watchdog(|| {
        for _ in 0..50 {
            let (a, b) = connect_on_ring();
            sockopt::set_socket_linger(&a.socket, Some(Duration::ZERO)).expect("linger");
            drop(a.socket);
            let error = b.recv(&mut [0]).expect_err("a reset");
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
            b.stream.dirs.tx.0.lock().socket_checked_at = sys::tick();
            let error = b.send(&[1]).expect_err("the peer has reset the connection");
            assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        }
    });
}

#[test]
fn a_read_after_a_reset_that_a_write_has_reported_finds_the_end_at_once() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&[1]).expect("send");
        // The peer resets TCP, as it leaves a byte unread, and has not ended the ring yet.
        b.stream.close(b.socket.as_fd());
        let error = loop {
            match a.try_send(&[2]).map_err(|e| e.kind()) {
                Ok(_) | Err(ErrorKind::WouldBlock) => std::thread::yield_now(),
                Err(e) => break e,
            }
        };
        assert_eq!(error, ErrorKind::ConnectionReset);
        for _ in 0..3 {
            assert_eq!(a.recv_with(&mut [0], RecvFlags::DONTWAIT).expect("end"), 0);
        }
    });
}

/// The broken pipe says nothing about the other direction.
#[test]
fn reads_go_on_by_the_ring_after_a_write_that_this_end_has_shut_down() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.stream.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
        let error = a.send(&[1]).expect_err("shut down");
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        assert!(!a.stream.has(FLAG_RESET));
        b.send(&[2]).expect("send");
        assert_eq!(a.recv(&mut [0]).expect("receive"), 1);
    });
}

/// Sends a byte in a tick of its own. Returns whether the sender has checked its socket.
fn send_in_new_tick(end: &End) -> bool {
    end.stream.dirs.tx.0.lock().socket_checked_at = sys::tick().wrapping_sub(1);
    let before = end.stream.dirs.tx.0.lock().ring_bytes_checked;
    end.send(&[1]).expect("send");
    assert!(end.stream.channels().send.is_ring());
    end.stream.dirs.tx.0.lock().ring_bytes_checked != before
}

#[test]
fn a_sender_checks_its_socket_unless_the_peer_has_read_all() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let mut byte = [0];
        a.send(&[1]).expect("send");
        for _ in 0..10 {
            b.recv_all(&mut byte);
            assert!(!send_in_new_tick(&a));
        }
        assert!(send_in_new_tick(&a), "two bytes are unread");
        b.recv_all(&mut [0; 2]);
        assert!(!send_in_new_tick(&a));
        b.recv_all(&mut byte);
        // A peer that has read all, and has ended, may have gone.
        let has_read_all = || {
            let sent = a.stream.dirs.tx.0.lock().switch.ring_bytes();
            a.stream.path().is_some_and(|path| path.has_read_all(sent))
        };
        assert!(has_read_all());
        b.stream.shutdown(b.socket.as_fd(), Shutdown::Write).expect("shutdown");
        assert!(!has_read_all(), "its end has arrived");
        assert_eq!(a.recv(&mut byte).expect("end"), 0);
        assert!(!has_read_all(), "its end was received");
    });
}

#[test]
fn a_killed_peer_ends_the_stream() {
    watchdog(|| {
        let (a, b) = connect();
        rsock_verbs::family::note_fork();
        a.stream.before_fork(a.socket.as_fd());
        b.stream.before_fork(b.socket.as_fd());
        // SAFETY: the child uses only the two ends, and leaves without running exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            a.stream.note_inherited();
            b.stream.note_inherited();
            b.stream.note_released();
            drop(b);
            let mut byte = [0];
            loop {
                if a.send(&[1]).is_err() || a.recv(&mut byte).is_err() {
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(1) };
                }
            }
        }
        a.stream.note_released();
        drop(a);
        let mut byte = [0];
        for _ in 0..2_000 {
            b.recv_all(&mut byte);
            b.send(&[2]).expect("send");
        }
        assert_eq!(b.stream.channels(), Channels::RING, "{:?}", b.stream);
        // SAFETY: signals the child made above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let end = loop {
            match b.recv(&mut byte) {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(e) => break Err(e),
            }
        };
        if let Err(e) = end {
            assert_eq!(e.raw_os_error(), Some(libc::ECONNRESET));
        }
        // A writer notices too, at the latest when the ring is full.
        let error = loop {
            if let Err(e) = b.send(&[0; 65_536]) {
                break e;
            }
        };
        assert!(matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{error}");
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    });
}

/// A poll of the queue that finds a message does not look whether the peer has closed behind it.
#[test]
fn a_receive_finds_the_end_behind_a_message_of_the_switch() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        assert!(b.stream.path().is_some_and(|path| path.send_message(Message::Leave)));
        b.stream.close(b.socket.as_fd());
        drop(b);
        assert_eq!(a.recv_with(&mut [0], RecvFlags::DONTWAIT).expect("the end, at once"), 0);
    });
}
