//! Memory: pages given back, and regions exposed to the peer.

use crate::accelerate::tests::*;

#[test]
fn idle_rings_give_their_pages_back_and_still_work() {
    watchdog(|| {
        const STREAMS: usize = 48;
        const EACH: usize = 1 << 20;
        let ends: Vec<_> = (0..STREAMS).map(|_| connect_on_ring()).collect();
        for round in 0..2 {
            for (i, (a, b)) in ends.iter().enumerate() {
                let seed = 1 + round * STREAMS + i;
                std::thread::scope(|s| {
                    s.spawn(|| send_pattern(a, EACH, seed));
                    s.spawn(|| recv_pattern(b, EACH, seed));
                });
            }
        }
        // Without page reclaim each stream would keep its whole ring of 768 KiB. Other
        // tests of this process share the budget, so the bound is a generous multiple of it. Pages
        // are given back when other rings grow.
        while crate::page_reclaim::total() >= STREAMS * (256 << 10) {
            let (a, b) = connect_on_ring();
            std::thread::scope(|s| {
                s.spawn(|| send_pattern(&a, EACH, 0));
                s.spawn(|| recv_pattern(&b, EACH, 0));
            });
        }
    });
}

#[test]
fn streams_at_rest_give_their_pages_back_while_a_thread_waits_for_them() {
    watchdog(|| {
        const STREAMS: usize = 12;
        const EACH: usize = 1 << 20;
        let ends: Vec<_> = (0..STREAMS).map(|_| connect_on_ring()).collect();
        let use_all = |seed| {
            for (a, b) in &ends {
                std::thread::scope(|s| {
                    s.spawn(|| send_pattern(a, EACH, seed));
                    s.spawn(|| recv_pattern(b, EACH, seed));
                });
            }
        };
        use_all(1);
        // Other tests of this process have streams in use.
        while crate::page_reclaim::total() >= STREAMS * (256 << 10) {
            let mut entries: Vec<_> =
                ends.iter().map(|(_, b)| b.poll_entry(PollFlags::IN)).collect();
            let limit = Some(Duration::from_secs(1));
            assert_eq!(poll(&mut entries, limit, None).expect("polled"), 0);
        }
        use_all(2);
    });
}

#[test]
fn light_streams_give_their_pages_back_and_still_work() {
    watchdog(|| {
        let trip = |(a, b): &(End, End), seed| {
            send_pattern(a, 40, seed);
            recv_pattern(b, 40, seed);
            send_pattern(b, 3000, seed);
            recv_pattern(a, 3000, seed);
        };
        let mut ends = Vec::new();
        while !crate::page_reclaim::are_light_rings_over_budget() {
            ends.push(connect_on_ring());
            trip(&ends[ends.len() - 1], 1);
        }
        // Pages are given back when other rings grow.
        while crate::page_reclaim::are_light_rings_over_budget() {
            trip(&connect_on_ring(), 2);
        }
        for (i, pair) in ends.iter().enumerate() {
            trip(pair, i);
        }
    });
}

#[test]
fn a_reader_that_keeps_up_from_the_first_message_on_is_served_from_little_memory() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let stream = b.stream.path().and_then(Path::soft).expect("on one host");
        let before = stream.n_dirty();
        let mut got = [0; 700];
        // More than the short buffers have together, and less than the large ones.
        for i in 0..400 {
            a.send(&pattern(i, 700)).expect("send");
            assert!(a.stream.channels().send.is_ring());
            b.recv_all(&mut got);
            assert!(got == pattern(i, 700)[..], "wrong bytes");
            let n_dirty = stream.n_dirty();
            assert!(i != 0 || n_dirty > before, "bytes are counted");
            assert!(n_dirty <= 100 << 10, "{n_dirty} bytes");
        }
    });
}

#[test]
fn bytes_are_in_order_while_a_stream_changes_over_between_short_and_large_buffers() {
    watchdog(|| {
        const MESSAGE: usize = 700;
        const LARGE: usize = 1 << 20;
        let (a, b) = connect_on_ring();
        for round in 0..3 {
            // Each as it comes, for longer than it takes to leave the large buffers.
            for i in 0..3000 {
                send_pattern(&a, MESSAGE, i);
                recv_pattern(&b, MESSAGE, i);
            }
            std::thread::scope(|s| {
                s.spawn(|| send_pattern(&a, LARGE, round));
                s.spawn(|| recv_pattern(&b, LARGE, round));
            });
        }
    });
}

#[test]
fn bytes_are_in_order_when_a_reader_that_stays_behind_gets_more_large_buffers() {
    watchdog(|| {
        const FURTHER: usize = 10 << 20;
        let (a, b) = connect_on_ring();
        let stream = b.stream.path().and_then(Path::soft).expect("on one host");
        let (mut sent, mut read, mut end) = (0, 0, usize::MAX);
        // Other tests of this process have many rings in use, now and then.
        while sent < end {
            while let Ok(n) = a.try_send(&pattern(sent, 60_000)) {
                sent += n;
            }
            let more = sent.min(read + 100_000);
            recv_pattern_between(&b, read, more, sent);
            read = more;
            if end == usize::MAX && stream.is_extended() {
                end = sent + FURTHER;
            }
        }
        recv_pattern_between(&b, read, sent, 1);
        // And back.
        for i in 0..30_000 {
            send_pattern(&a, 700, i);
            recv_pattern(&b, 700, i);
        }
        assert!(!stream.is_extended());
    });
}

#[test]
fn a_remote_write_lies_in_the_peers_memory_before_later_bytes() {
    watchdog(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let stream = AcceleratedStream::adopt_with(socket.as_fd(), None, 1).expect("family memory");
        let writer = End { socket, stream };
        let (socket, _) = listener.accept().expect("accept");
        let stream =
            Arc::new(AcceleratedStream::adopt(socket.as_fd(), None).expect("family memory"));

        let errno = |e: io::Error| e.raw_os_error().expect("of the system");
        assert_eq!(stream.expose(8, 0).map_err(errno).expect_err("not found yet"), libc::ENOTCONN);
        // Nothing has been sent: both ends search because they are asked to.
        let mut found = (false, false);
        while found != (true, true) {
            let one = writer.stream.find_peer(writer.socket.as_fd()).expect("on one host");
            found = (one, stream.find_peer(socket.as_fd()).expect("on one host"));
        }
        let write_remote =
            |bytes: &[u8], at| writer.stream.try_write_remote(bytes, at).map_err(errno);
        assert_eq!(write_remote(b"early", 7).expect_err("not exposed yet"), libc::EFAULT);
        let memory = stream.expose(8, 7).expect("exposed");
        assert_eq!(stream.expose(8, 99).map_err(errno).expect_err("one place only"), libc::ENOMEM);
        stream.try_announce().expect("announced");
        assert_eq!(write_remote(b"a message", 7), Ok(8), "as much as is exposed");
        assert_eq!(write_remote(b"!", 8), Ok(1));
        let mut there = [0; 8];
        memory.read_at(0, &mut there);
        assert_eq!(&there, b"a!messag");
        drop(memory);
        assert_eq!(write_remote(b"late", 7).expect_err("closed"), libc::EFAULT);
        // Its entry is free again.
        let memory = stream.expose(4, 7).expect("exposed");
        stream.try_announce().expect("announced");
        assert_eq!(write_remote(b"late", 7), Ok(4));
        assert_eq!(memory.len(), 4);
    });
}

#[test]
fn a_pinned_connection_reports_that_it_never_gets_a_path() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let end = End::new(socket);
    end.pin();
    let never = end.stream.find_peer(end.socket.as_fd()).expect_err("pinned");
    assert_eq!(never.raw_os_error(), Some(libc::EOPNOTSUPP));
}
