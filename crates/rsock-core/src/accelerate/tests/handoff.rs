//! Handoff of streams to a program without a ring, played by the kernel's sockets.

use crate::accelerate::kernel_only_waiter::KernelOnlyWaiter;
use crate::accelerate::tests::*;
use crate::closing::{Call, Descriptor};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The program's part of an end after a handoff: its descriptor continues as `proxy`, and its
/// stream belongs to another process.
fn continue_with(end: End, proxy: OwnedFd) -> TcpStream {
    drop(end.stream);
    TcpStream::from(proxy)
}

fn hand_off(end: &End, claim: Claim) -> Option<OwnedFd> {
    let socket = end.socket.as_fd();
    if end.stream.leave_ring(socket, Need::Both, FallbackReason::Passed) {
        return None;
    }
    end.stream.hand_off(socket, claim).expect("handed off")
}

#[test]
fn a_stream_that_never_left_tcp_is_handed_off_unchanged() {
    let (a, _b) = connect();
    assert!(hand_off(&a, Claim::Certain).is_none());
    assert!(a.stream.is_plain());
}

#[test]
fn a_peer_that_waits_for_input_leaves_the_ring_when_it_is_asked() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        std::thread::scope(|s| {
            let peer = s.spawn(|| {
                let mut byte = [0];
                b.recv_all(&mut byte);
                b.send(&pattern(0, 1000)).expect("send");
                byte[0]
            });
            a.pin();
            while b.stream.channels().send.is_ring() {
                std::thread::yield_now();
            }
            assert!(hand_off(&a, Claim::Certain).is_none());
            let mut program = &a.socket;
            program.write_all(&[9]).expect("write");
            let mut got = vec![0; 1000];
            program.read_exact(&mut got).expect("read");
            assert_eq!(peer.join().expect("the peer"), 9);
            assert!(got == pattern(0, 1000), "wrong bytes");
        });
    });
}

#[test]
fn a_peer_that_sleeps_on_tcp_is_woken_to_leave_the_ring() {
    watchdog(|| {
        for polls in [false, true] {
            let (a, b) = connect_on_ring();
            a.stream.move_down(a.socket.as_fd());
            // As with a thread in a wait of the kernel's: the peer is not invited again.
            let waiters = &b.stream.dirs.shared.0.kernel_only_waiters;
            let _waiter = KernelOnlyWaiter::new(waiters, &*b.stream.dirs.rx.0.lock());
            let nothing = b.recv_with(&mut [0], RecvFlags::DONTWAIT);
            assert_eq!(nothing.expect_err("nothing").kind(), ErrorKind::WouldBlock);
            assert!(b.stream.channels().send.is_ring() && !b.stream.channels().recv.is_ring());
            let (tell, told) = mpsc::channel();
            std::thread::scope(|s| {
                let peer = s.spawn(|| {
                    tell.send(rsock_verbs::family::thread_id()).expect("the test waits");
                    if polls {
                        let mut entries = [b.poll_entry(PollFlags::IN)];
                        assert_eq!(poll(&mut entries, None, None).expect("poll"), 1);
                    }
                    let mut byte = [0];
                    b.recv_all(&mut byte);
                    byte[0]
                });
                await_asleep(told.recv().expect("its id"));
                a.pin();
                while b.stream.channels().send.is_ring() {
                    std::thread::yield_now();
                }
                assert!(hand_off(&a, Claim::Certain).is_none());
                (&a.socket).write_all(&[9]).expect("write");
                assert_eq!(peer.join().expect("the peer"), 9);
            });
        }
    });
}

#[test]
fn a_handoff_for_writing_does_not_wait_for_bytes_of_the_peer() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(&pattern(0, 1000)).expect("send");
        let socket = a.socket.as_fd();
        assert!(a.stream.leave_ring(socket, Need::Write, FallbackReason::Stdio));
        (&a.socket).write_all(&[9]).expect("write");
        let mut byte = [0];
        b.recv_all(&mut byte);
        assert_eq!(byte, [9]);
        assert!(!a.stream.leave_ring(socket, Need::Both, FallbackReason::Stdio));
        let mut got = vec![0; 1000];
        a.recv_all(&mut got);
        assert!(got == pattern(0, 1000), "wrong bytes");
    });
}

#[test]
fn a_peer_that_has_left_needs_no_relay() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.pin();
        // One of its next sends sees that it was asked to leave.
        let mut sent = 0;
        while b.stream.channels().send.is_ring() {
            b.send(&pattern(sent, 1)).expect("send");
            sent += 1;
        }
        let mut got = vec![0; sent];
        a.recv_all(&mut got);
        assert!(got == pattern(0, sent), "wrong bytes");
        assert!(hand_off(&a, Claim::Certain).is_none());
        b.send(b"on TCP").expect("send");
        let mut got = [0; 6];
        (&a.socket).read_exact(&mut got).expect("read");
        assert_eq!(&got, b"on TCP");
    });
}

#[test]
fn unread_bytes_of_the_ring_and_later_ones_come_out_of_the_socket_proxy() {
    watchdog(|| {
        const TOTAL: usize = 12 << 20;
        let (a, b) = connect_on_ring();
        b.send(&pattern(0, 100_000)).expect("send");
        let proxy = hand_off(&a, Claim::Certain).expect("bytes are unread");
        let proxy = continue_with(a, proxy);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut at = 100_000;
                while at < TOTAL {
                    let len = 50_001.min(TOTAL - at);
                    b.send(&pattern(at, len)).expect("send");
                    at += len;
                }
                b.stream.shutdown(b.socket.as_fd(), Shutdown::Write).expect("shutdown");
            });
            s.spawn(|| recv_pattern(&b, TOTAL, 8));
            s.spawn(|| {
                (&proxy).write_all(&pattern(0, TOTAL)).expect("write");
                proxy.shutdown(std::net::Shutdown::Write).expect("shutdown");
            });
            let mut got = Vec::new();
            (&proxy).read_to_end(&mut got).expect("read");
            assert!(got == pattern(0, TOTAL), "wrong bytes");
        });
        assert_eq!(b.recv(&mut [0]).expect("the end"), 0);
    });
}

#[test]
fn a_program_that_closes_with_bytes_unread_resets_its_peer() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(&pattern(0, 100_000)).expect("send");
        let proxy = hand_off(&a, Claim::Certain).expect("bytes are unread");
        let mut proxy = continue_with(a, proxy);
        proxy.read_exact(&mut [0; 10]).expect("read");
        drop(proxy);
        let error = b.recv(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_peer_that_resets_resets_the_program() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(&pattern(0, 1000)).expect("send");
        let proxy = hand_off(&a, Claim::Certain).expect("bytes are unread");
        let mut proxy = continue_with(a, proxy);
        let mut got = vec![0; 1000];
        proxy.read_exact(&mut got).expect("read");
        sockopt::set_socket_linger(&b.socket, Some(Duration::ZERO)).expect("option");
        drop(b);
        let error = proxy.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn bytes_that_another_holder_may_read_stay_until_it_has_exited() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let mut other = Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        a.stream.dirs.holders.0.add(other.id());
        b.send(&pattern(0, 1000)).expect("send");
        let proxy = hand_off(&a, Claim::Last).expect("bytes are unread");
        // This process plays the other holder, and takes some of the bytes.
        let mut got = vec![0; 500];
        a.recv_all(&mut got);
        assert!(got == pattern(0, 500), "wrong bytes");
        other.kill().expect("kill");
        let mut proxy = continue_with(a, proxy);
        proxy.read_exact(&mut got).expect("read");
        assert!(got == pattern(500, 500), "wrong bytes");
        other.wait().expect("wait");
    });
}

#[test]
fn a_lingering_program_that_has_ended_in_order_does_not_reset_its_peer() {
    watchdog(|| {
        // The relay notices the program's end and its close in either order.
        for _ in 0..20 {
            let (a, b) = connect_on_ring();
            sockopt::set_socket_linger(&a.socket, Some(Duration::ZERO)).expect("option");
            b.send(&pattern(0, 1000)).expect("send");
            let proxy = hand_off(&a, Claim::Certain).expect("bytes are unread");
            let mut proxy = continue_with(a, proxy);
            b.stream.shutdown(b.socket.as_fd(), Shutdown::Write).expect("shutdown");
            proxy.write_all(&pattern(0, 1000)).expect("write");
            proxy.shutdown(std::net::Shutdown::Write).expect("shutdown");
            let mut got = Vec::new();
            proxy.read_to_end(&mut got).expect("read");
            drop(proxy);
            recv_pattern(&b, 1000, 8);
            assert_eq!(b.recv(&mut [0]).expect("the end"), 0);
        }
    });
}

#[test]
fn a_program_that_writes_to_a_stream_that_is_gone_is_not_kept_waiting() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        // A reader that is behind gets large buffers.
        for _ in 0..4 {
            b.send(&pattern(0, 40_000)).expect("send");
            a.recv_all(&mut vec![0; 40_000]);
        }
        // More than lies in a socket, so that the relay keeps some of it.
        const TOTAL: usize = 250_000;
        b.send(&pattern(0, TOTAL)).expect("send");
        assert!(b.stream.channels().send.is_ring(), "all of it lies on the ring");
        sockopt::set_socket_linger(&b.socket, Some(Duration::ZERO)).expect("option");
        drop(b);
        let proxy = hand_off(&a, Claim::Certain).expect("bytes are unread");
        let mut proxy = continue_with(a, proxy);
        let written = proxy.write_all(&pattern(0, 16 << 20));
        let kind = written.err().map(|e| e.kind());
        let gone = [None, Some(ErrorKind::BrokenPipe), Some(ErrorKind::ConnectionReset)];
        assert!(gone.contains(&kind), "{kind:?}");
        let mut got = vec![0; TOTAL];
        proxy.read_exact(&mut got).expect("read");
        assert!(got == pattern(0, TOTAL), "wrong bytes");
    });
}

/// Hands `end` off while one other call of this process is in progress on it.
fn hand_off_under_a_call(end: &End, is_in_call: &AtomicBool) -> OwnedFd {
    let others = || u64::from(is_in_call.load(Ordering::SeqCst));
    while !end.stream.stop_calls(others) {
        std::thread::yield_now();
    }
    assert!(is_in_call.load(Ordering::SeqCst), "the call has stopped, and not ended");
    let proxy = end.stream.hand_off(end.socket.as_fd(), Claim::Certain);
    let proxy = proxy.expect("handed off").expect("bytes are unread");
    end.stream.replace_for_calls(proxy.as_fd(), others);
    proxy
}

#[test]
fn a_call_that_waits_for_room_goes_on_behind_the_socket_proxy() {
    watchdog(|| {
        const TOTAL: usize = 12 << 20;
        let (a, b) = connect_on_ring();
        b.send(&pattern(0, 100_000)).expect("send");
        let is_in_call = AtomicBool::new(true);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                tell.send(rsock_verbs::family::thread_id()).expect("the test waits");
                let sent = a.send(&pattern(0, TOTAL));
                is_in_call.store(false, Ordering::SeqCst);
                assert_eq!(sent.expect("send"), TOTAL);
            });
            await_asleep(told.recv().expect("its id"));
            let mut proxy = TcpStream::from(hand_off_under_a_call(&a, &is_in_call));
            let mut got = vec![0; 100_000];
            proxy.read_exact(&mut got).expect("read");
            assert!(got == pattern(0, 100_000), "wrong bytes");
            recv_pattern(&b, TOTAL, 8);
        });
    });
}

#[test]
fn a_call_that_receives_goes_on_behind_the_socket_proxy() {
    watchdog(|| {
        for polls in [false, true] {
            let (a, b) = connect_on_ring();
            let is_in_call = AtomicBool::new(true);
            let (tell, told) = mpsc::channel();
            std::thread::scope(|s| {
                let reader = s.spawn(|| {
                    tell.send(rsock_verbs::family::thread_id()).expect("the test waits");
                    if polls {
                        let closings = a.stream.closings();
                        let named = Descriptor::new(a.socket.as_fd(), closings.count());
                        let call = Some(Call::begin(closings, named));
                        let mut entries = [PollDescriptor { call, ..a.poll_entry(PollFlags::IN) }];
                        assert_eq!(poll(&mut entries, None, None).expect("poll"), 1);
                        is_in_call.store(false, Ordering::SeqCst);
                        return Vec::new();
                    }
                    let mut got = vec![0; 1000];
                    let n = a.recv_with(&mut got, RecvFlags::WAITALL);
                    is_in_call.store(false, Ordering::SeqCst);
                    assert_eq!(n.expect("received"), 1000);
                    got
                });
                await_asleep(told.recv().expect("its id"));
                let proxy = hand_off_under_a_call(&a, &is_in_call);
                b.send(&pattern(0, 1000)).expect("send");
                let got = reader.join().expect("the reader");
                assert!(polls || got == pattern(0, 1000), "wrong bytes");
                drop(proxy);
            });
        }
    });
}

#[test]
fn a_call_that_has_stopped_for_a_handoff_that_fails_goes_on_as_before() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let is_in_call = AtomicBool::new(true);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|s| {
            let reader = s.spawn(|| {
                tell.send(rsock_verbs::family::thread_id()).expect("the test waits");
                let mut got = vec![0; 1000];
                a.recv_all(&mut got);
                is_in_call.store(false, Ordering::SeqCst);
                got
            });
            await_asleep(told.recv().expect("its id"));
            for _ in 0..20 {
                let others = || u64::from(is_in_call.load(Ordering::SeqCst));
                while !a.stream.stop_calls(others) {
                    std::thread::yield_now();
                }
                a.stream.resume_calls();
            }
            b.send(&pattern(0, 1000)).expect("send");
            assert!(reader.join().expect("the reader") == pattern(0, 1000), "wrong bytes");
        });
        assert!(a.stream.channels().are_accelerated());
    });
}
