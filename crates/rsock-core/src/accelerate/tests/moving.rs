//! Moves between TCP and the ring, in either direction.

use crate::accelerate::tests::*;

#[test]
fn both_directions_move_to_the_ring_and_no_byte_is_lost() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        const TOTAL: usize = 24 << 20;
        std::thread::scope(|s| {
            s.spawn(|| send_pattern(&a, TOTAL, 1));
            s.spawn(|| send_pattern(&b, TOTAL, 2));
            s.spawn(|| recv_pattern(&a, TOTAL, 3));
            s.spawn(|| recv_pattern(&b, TOTAL, 4));
        });
    });
}

#[test]
fn a_stream_in_one_direction_moves_while_it_flows() {
    watchdog(|| {
        let (a, b) = connect();
        const TOTAL: usize = 24 << 20;
        std::thread::scope(|s| {
            s.spawn(|| send_pattern(&a, TOTAL, 5));
            s.spawn(|| recv_pattern(&b, TOTAL, 6));
        });
        assert!(b.stream.dirs.rx.0.lock().switch.ring_bytes() != 0, "the ring was never used");
    });
}

#[test]
fn bytes_that_the_kernel_holds_back_for_more_are_sent_before_a_sender_moves() {
    watchdog(|| {
        let (a, b) = connect();
        while !(a.stream.path().is_some() && b.stream.path().is_some()) {
            [&a, &b].iter().for_each(|end| end.stream.step_uncounted(end.socket.as_fd()));
        }
        let more = a.stream.send(a.socket.as_fd(), &[IoSlice::new(&[1])], SendFlags::MORE);
        assert_eq!(more.expect("send"), 1);
        assert!(!a.stream.channels().send.is_ring(), "it has not been invited");
        let mut buf = [0; 2];
        let early = b.recv_with(&mut buf, RecvFlags::DONTWAIT | RecvFlags::PEEK);
        let early = early.map_err(|e| e.kind());
        assert!(matches!(early, Err(ErrorKind::WouldBlock) | Ok(1)), "{early:?}");
        a.send(&[2]).expect("send");
        assert!(a.stream.channels().send.is_ring(), "the receive has invited it");
        let written = offsets::written(a.socket.as_fd()).expect("info").expect("open");
        assert_eq!(written.unsent, 0);
        assert!(!a.socket.nodelay().expect("option"), "as the program has it");
        b.recv_all(&mut buf);
        assert_eq!(buf, [1, 2]);
    });
}

#[test]
fn pinning_at_any_moment_keeps_every_byte_in_order() {
    watchdog(|| {
        for seed in 1..24usize {
            let (a, b) = connect();
            let total = 100_000 + (seed * 77_777) % 3_000_000;
            std::thread::scope(|s| {
                s.spawn(|| send_pattern(&a, total, seed));
                s.spawn(|| recv_pattern(&b, total, seed + 100));
                s.spawn(|| send_pattern(&b, total, seed + 200));
                s.spawn(|| recv_pattern(&a, total, seed + 300));
                s.spawn(|| {
                    // At different times: before, while and after the path is found.
                    for _ in 0..seed * 3_000 {
                        std::hint::spin_loop();
                    }
                    if seed % 2 == 0 { a.pin() } else { b.pin() }
                });
            });
            // Makes the calls that a move needs of either end; then both directions are the
            // kernel's.
            let mut byte = [0];
            for _ in 0..40 {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    from.send(&[1]).expect("send");
                    to.recv_all(&mut byte);
                }
            }
            let pinned = if seed % 2 == 0 { &a } else { &b };
            assert!(pinned.stream.is_plain(), "seed {seed} {:?}", pinned.stream.dirs);
        }
    });
}

#[test]
fn two_ends_that_write_before_they_read_do_not_block() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let data = pattern(0, 2 << 20);
        std::thread::scope(|s| {
            for end in [&a, &b] {
                let data = &data;
                s.spawn(move || {
                    assert_eq!(end.send(data).expect("send"), data.len());
                    recv_pattern(end, data.len(), 9);
                });
            }
        });
    });
}

#[test]
fn a_writer_without_reader_gets_as_far_as_on_tcp() {
    watchdog(|| {
        let (a, _b) = connect_on_ring();
        let (c, _d) = connect();
        c.pin();
        let fill = |end: &End| {
            let chunk = vec![1u8; 65_536];
            let (mut total, mut waited) = (0, 0);
            loop {
                match end.try_send(&chunk) {
                    Ok(n) => (total, waited) = (total + n, 0),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        let entry = end.poll_entry(PollFlags::OUT);
                        let n = poll(&mut [entry], Some(Duration::from_millis(20)), None);
                        waited += usize::from(n.expect("poll") == 0);
                        if waited == 5 {
                            return total;
                        }
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let (ring, tcp) = (fill(&a), fill(&c));
        assert!(ring >= tcp, "{ring} bytes against {tcp} on TCP");
    });
}

#[test]
fn a_call_that_must_not_wait_finds_room_as_on_tcp_at_once() {
    watchdog(|| {
        for (len, asks_for_room) in [(13, false), (13, true), (20_000, false), (20_000, true)] {
            let (a, b) = connect_on_ring();
            a.stream.note_poll(asks_for_room);
            // Less than TCP takes.
            let data = pattern(0, 1 << 20);
            let mut at = 0;
            while at < data.len() {
                let end = data.len().min(at + len);
                at += a.try_send(&data[at..end]).unwrap_or_else(|e| panic!("at {at}: {e}"));
            }
            assert!(!a.stream.channels().send.is_ring());
            recv_pattern(&b, data.len(), 12);
        }
    });
}

#[test]
fn a_full_ring_spills_to_tcp_and_comes_back() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let data = pattern(0, 1 << 20);
        for _ in 0..3 {
            // More than the ring holds, and the peer does not read: the rest goes to TCP.
            assert_eq!(a.send(&data).expect("send"), data.len());
            assert!(!a.stream.channels().send.is_ring());
            recv_pattern(&b, data.len(), 11);
            let mut byte = [0];
            for _ in 0..10 {
                a.send(&[3]).expect("send");
                b.recv_all(&mut byte);
            }
            assert!(a.stream.channels().send.is_ring(), "did not come back");
        }
    });
}

#[test]
fn a_foreign_writer_is_a_fault_not_a_reordering() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        // Past the accelerated stream, as a raw system call would.
        rustix::net::send(&a.socket, b"foreign", SendFlags::empty()).expect("send");
        a.stream.close(a.socket.as_fd());
        let socket = a.socket;
        drop(socket);
        let mut buf = [0; 16];
        let error = b.recv(&mut buf).expect_err("reported");
        assert_eq!(error.raw_os_error(), Some(libc::EPROTO));
    });
}

#[test]
fn a_foreign_writer_before_the_move_keeps_the_stream_on_tcp() {
    watchdog(|| {
        let (a, b) = connect();
        rustix::net::send(&a.socket, b"x", SendFlags::empty()).expect("send");
        let mut byte = [0];
        b.recv_all(&mut byte);
        for _ in 0..200 {
            a.send(&[7]).expect("send");
            b.recv_all(&mut byte);
            b.send(&[8]).expect("send");
            a.recv_all(&mut byte);
        }
        assert_eq!(a.stream.pin_reason(), FallbackReason::ForeignWriter);
        assert!(!a.stream.channels().send.is_ring());
    });
}
