//! Bytes, their order, and the ends of streams.

use crate::rsocket::tests::*;

/// A byte for every position of a stream, without a period that buffers could hide.
fn pattern(at: usize) -> u8 {
    let x = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x.to_be_bytes()[0] ^ x.to_be_bytes()[3]
}

/// Sizes that wander over all magnitudes up to `most`.
struct Sizes {
    state: u64,
    most: usize,
}

impl Sizes {
    fn next(&mut self) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bits = (self.state >> 59) % 19;
        let size = usize::try_from((self.state >> 20) & ((1 << bits) - 1)).unwrap_or(0);
        size.clamp(1, self.most)
    }
}

fn write_stream(socket: &Socket, total: usize, seed: u64) {
    let mut sizes = Sizes { state: seed, most: 200_000 };
    let mut at = 0;
    while at < total {
        let n = sizes.next().min(total - at);
        let bytes: Vec<u8> = (at..at + n).map(pattern).collect();
        // In three pieces, of which one may be empty.
        let (a, rest) = bytes.split_at(n / 3);
        let pieces = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(rest)];
        assert_eq!(
            socket.send(&pieces, SendFlags::empty()).expect("send"),
            n,
            "a blocking send sends all"
        );
        at += n;
    }
}

fn read_stream(socket: &Socket, total: usize, seed: u64) {
    let mut sizes = Sizes { state: seed, most: 300_000 };
    let mut at = 0;
    while at < total {
        let want = sizes.next();
        let (mut a, mut b) = (vec![0; want / 2], vec![0; want - want / 2]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        let n = socket.recv(&mut bufs, RecvFlags::empty()).expect("recv");
        assert_ne!(n, 0, "the stream ended at {at}");
        for (i, byte) in a.iter().chain(&b).take(n).enumerate() {
            assert_eq!(*byte, pattern(at + i), "at {}", at + i);
        }
        at += n;
    }
    assert_eq!(at, total);
}

#[test]
fn streams_arrive_in_order_in_both_directions_at_once() {
    let _watchdog = watchdog();
    const TOTAL: usize = 5 << 20;
    for (rcvbuf, rqsize) in [(0, 0), (1000, 24), (32 << 10, 40)] {
        let (client, server) = pair_with(|socket| {
            if rcvbuf != 0 {
                set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, rcvbuf);
                set(socket, SOL_RDMA, RDMA_RQSIZE, rqsize);
            }
        });
        let total = if rcvbuf == 1000 { TOTAL / 16 } else { TOTAL };
        std::thread::scope(|s| {
            s.spawn(|| write_stream(&client, total, 1));
            s.spawn(|| write_stream(&server, total, 2));
            s.spawn(|| read_stream(&client, total, 3));
            s.spawn(|| read_stream(&server, total, 4));
        });
    }
}

#[test]
fn peeking_leaves_bytes_and_waiting_for_all_gets_all() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    send(&client, b"hello").expect("send");
    assert_eq!(recv_with(&server, 3, RecvFlags::PEEK).expect("peek"), b"hel");
    assert_eq!(recv_with(&server, 99, RecvFlags::PEEK).expect("peek"), b"hello");
    std::thread::scope(|s| {
        let all = s.spawn(|| recv_with(&server, 10, RecvFlags::WAITALL).expect("recv"));
        send(&client, b", wor").expect("send");
        assert_eq!(all.join().expect("thread"), b"hello, wor");
    });
    send(&client, b"ld").expect("send");
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(recv_with(&server, 10, RecvFlags::WAITALL).expect("recv"), b"ld");
}

#[test]
fn calls_that_cannot_go_on_are_eagain() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    assert_eq!(errno(recv_with(&server, 1, RecvFlags::DONTWAIT)), libc::EAGAIN);
    server.set_nonblocking(true);
    assert_eq!(errno(recv(&server, 1)), libc::EAGAIN);
    client.set_nonblocking(true);
    let block = vec![7; 100_000];
    let mut sent = 0;
    loop {
        match send(&client, &block) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EAGAIN));
                break;
            }
        }
    }
    // As much as the receive memory holds, and not a byte is lost.
    let mut got = 0;
    while got < sent {
        got += recv(&server, 1 << 20).expect("recv").len();
    }
    assert_eq!((got, errno(recv(&server, 1))), (sent, libc::EAGAIN));
    assert!(send(&client, &block).is_ok(), "there is room again");
}

#[test]
fn timeouts_end_blocking_calls() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    let limit = [0i64.to_ne_bytes(), 30_000i64.to_ne_bytes()].concat();
    server.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit).expect("option");
    client.set_option(libc::SOL_SOCKET, libc::SO_SNDTIMEO, &limit).expect("option");
    let before = std::time::Instant::now();
    assert_eq!(errno(recv(&server, 1)), libc::EAGAIN);
    assert!(before.elapsed() >= Duration::from_millis(30));
    let block = vec![7; 8 << 20];
    let sent = send(&client, &block).expect("what there was room for");
    assert!(sent < block.len());
    assert_eq!(errno(send(&client, &block)), libc::EAGAIN);
}

#[test]
fn half_a_stream_ends_and_the_other_half_goes_on() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    send(&client, b"last words").expect("send");
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(errno(send(&client, b"more")), libc::ECONNRESET);
    assert_eq!(recv(&server, 99).expect("recv"), b"last words");
    assert_eq!(recv(&server, 99).expect("end"), b"");
    assert_eq!(recv(&server, 99).expect("still the end"), b"");
    send(&server, b"answer").expect("send");
    assert_eq!(recv(&client, 99).expect("recv"), b"answer");
    server.shutdown(Shutdown::Both).expect("shutdown");
    assert_eq!(recv(&client, 99).expect("end"), b"");
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    let bytes: Vec<u8> = (0..100_000).map(pattern).collect();
    assert_eq!(send(&client, &bytes).expect("send"), bytes.len());
    drop(client);
    let got = recv_with(&server, bytes.len(), RecvFlags::WAITALL).expect("recv");
    assert!(got == bytes);
    assert_eq!(recv(&server, 1).expect("end"), b"");
    assert_eq!(errno(send(&server, b"x")), libc::ECONNRESET);
    assert!(server.take_error().is_none());
}

#[test]
fn closing_with_linger_zero_resets() {
    let _watchdog = watchdog();
    for waiting in [false, true] {
        let (client, server) = pair();
        let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
        client.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &linger).expect("option");
        std::thread::scope(|s| {
            let receiver = waiting.then(|| s.spawn(|| errno(recv(&server, 1))));
            client.close();
            if let Some(receiver) = receiver {
                assert_eq!(receiver.join().expect("thread"), libc::ECONNRESET);
            }
        });
        let events = poll_one(&server, PollFlags::IN, None);
        assert!(events.contains(PollFlags::ERR | PollFlags::HUP), "{events:?}");
        assert_eq!(errno(recv(&server, 1)), libc::ECONNRESET);
        let error = server.take_error().and_then(|e| e.raw_os_error());
        assert_eq!((error, server.take_error().is_none()), (Some(libc::ECONNRESET), true));
    }
}

#[test]
fn closing_ends_calls_that_wait_in_other_threads() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    std::thread::scope(|s| {
        let reader = s.spawn(|| recv(&server, 1).expect("end"));
        server.close();
        assert_eq!(reader.join().expect("thread"), b"");
    });
    drop(client);
}

#[test]
fn a_blocked_writer_learns_that_its_peer_closed() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let block = vec![1; 1 << 20];
            loop {
                match send(&client, &block) {
                    Ok(n) if n == block.len() => {}
                    // Cut short by the end, which the next call tells.
                    Ok(_) => {}
                    Err(e) => return e.raw_os_error(),
                }
            }
        });
        assert!(!recv(&server, 1).expect("recv").is_empty());
        drop(server);
        assert_eq!(writer.join().expect("thread"), Some(libc::ECONNRESET));
    });
}

#[test]
fn a_writer_with_room_left_learns_that_its_peer_closed() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    drop(server);
    // Fewer than the peer had room for, so that none of them waits for room.
    let end = (0..20).find_map(|_| send(&client, b"x").err());
    assert_eq!(end.and_then(|e| e.raw_os_error()), Some(libc::ECONNRESET));
}

/// A client process that dies by SIGKILL, reading or writing or neither.
#[test]
fn a_killed_peer_ends_the_stream_after_its_last_bytes() {
    let _watchdog = watchdog();
    let listener = listening("127.0.0.1:0");
    let to = listener.local_addr().expect("name");
    // SAFETY: the child runs on a copy of this thread alone and never returns from here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: asks for a signal at our parent's end; a hanging test must not leave us behind.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let talk = || -> io::Result<()> {
            let client = Socket::new(Family::V4)?;
            client.connect(to, None)?;
            send(&client, b"last words")?;
            recv(&client, 1)?;
            send(&client, b"never sent")?;
            Ok(())
        };
        let _ = talk();
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(1) };
    }
    let server = listener.accept().expect("accept");
    assert_eq!(recv_with(&server, 10, RecvFlags::WAITALL).expect("recv"), b"last words");
    std::thread::scope(|s| {
        let reader = s.spawn(|| recv(&server, 1).expect("end"));
        // SAFETY: a child of this process that has not been waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(reader.join().expect("thread"), b"");
    });
    assert_eq!(errno(send(&server, b"x")), libc::ECONNRESET);
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, libc::SIGKILL);
}

#[test]
fn a_connection_to_a_socket_of_the_same_thread_carries_bytes() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    for round in 0..1000u32 {
        send(&client, &round.to_ne_bytes()).expect("send");
        let got = recv(&server, 4).expect("recv");
        send(&server, &got).expect("send");
        assert_eq!(recv(&client, 4).expect("recv"), round.to_ne_bytes());
    }
}

/// What `rsock stat` reads.
#[test]
fn streams_and_their_bytes_can_be_seen_from_outside() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    let local = client.local_addr().expect("name");
    send(&client, &[1; 1234]).expect("send");
    recv_with(&server, 1234, RecvFlags::WAITALL).expect("recv");
    send(&server, &[1; 77]).expect("send");
    recv_with(&client, 77, RecvFlags::WAITALL).expect("recv");
    let seen = || {
        let pid = std::process::id();
        let process = crate::metrics::read_process(pid).expect("readable").expect("a table");
        process.connections.into_iter().find(|c| c.local == local)
    };
    let line = seen().expect("the connection's line");
    assert_eq!(Some(line.peer), client.peer_addr().ok());
    let soft = crate::metrics::Transport::Soft;
    assert_eq!((line.tx_transport, line.rx_transport), (Some(soft), Some(soft)));
    let soft = soft as usize;
    assert_eq!((line.tx.bytes[soft], line.rx.bytes[soft]), (1234, 77));
    assert_eq!(line.peer_pid, Some(std::process::id()));
    drop(client);
    assert!(seen().is_none());
}
