//! Twins over real TCP connections and the real device, both ends in one process or in two.
//!
//! The kernel decides what is right: each scenario checks the bytes, and that the ring was used (or
//! was not). Nothing here sleeps to wait for something; a test that hangs is ended by `watchdog`.

mod handover;

use super::*;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};

/// One end of a connection.
struct End {
    socket: TcpStream,
    twin: Twin,
}

impl End {
    fn new(socket: TcpStream) -> Self {
        let twin = Twin::adopt(socket.as_fd(), None).expect("family memory");
        Self { socket, twin }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.twin.send(self.socket.as_fd(), &[IoSlice::new(bytes)], SendFlags::empty())
    }

    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.twin.send(self.socket.as_fd(), &[IoSlice::new(bytes)], SendFlags::DONTWAIT)
    }

    fn recv_with(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        self.twin.recv(self.socket.as_fd(), &mut [IoSliceMut::new(buf)], flags)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_with(buf, RecvFlags::empty())
    }

    fn recv_all(&self, buf: &mut [u8]) {
        let n = self.recv_with(buf, RecvFlags::WAITALL).expect("receive");
        assert_eq!(n, buf.len());
    }

    fn pin(&self) {
        self.twin.pin(self.socket.as_fd(), PinReason::Configured);
    }
}

fn connect() -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (End::new(client), End::new(server))
}

/// Small messages to and fro until both directions are on the ring.
fn connect_on_ring() -> (End, End) {
    let (a, b) = connect();
    let mut byte = [0];
    for _ in 0..10_000 {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send(&[7]).expect("send");
            to.recv_all(&mut byte);
        }
        let all_up = [&a, &b].iter().all(|e| e.twin.on_ring() == (true, true));
        if all_up {
            return (a, b);
        }
    }
    panic!("not on the ring: {:?} {:?}", a.twin.pin_reason(), b.twin.pin_reason());
}

/// Ends the test process if `f` takes unreasonably long: a hang must fail, not block.
fn watchdog<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let (done, waits) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            let limit = Duration::from_secs(120);
            if waits.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("hung");
                std::process::abort();
            }
        });
        let result = f();
        drop(done);
        result
    })
}

/// Reproducible bytes: position `i` of a stream has one value.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

/// A small generator for sizes, seeded by the test.
struct Sizes(usize);

impl Sizes {
    fn next(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // Small ones often, large ones now and then.
        let limit = [1, 16, 200, 5_000, most][(self.0 >> 60) % 5];
        1 + (self.0 >> 8) % limit
    }
}

fn send_pattern(end: &End, total: usize, seed: usize) {
    let mut sizes = Sizes(seed);
    let mut at = 0;
    while at < total {
        let len = sizes.next(300_000).min(total - at);
        assert_eq!(end.send(&pattern(at, len)).expect("send"), len);
        at += len;
    }
}

fn recv_pattern(end: &End, total: usize, seed: usize) {
    let mut sizes = Sizes(seed);
    let mut buf = vec![0; 300_000];
    let mut at = 0;
    while at < total {
        let want = sizes.next(buf.len()).min(total - at);
        let n = end.recv(&mut buf[..want]).expect("receive");
        assert_ne!(n, 0, "early end at {at}");
        assert!(buf[..n] == pattern(at, n)[..], "wrong bytes near {at}");
        at += n;
    }
}

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
        assert!(b.twin.dirs.rx.0.lock().ring_bytes != 0, "the ring was never used");
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
                    // Different moments: before, while and after pairing.
                    for _ in 0..seed * 3_000 {
                        std::hint::spin_loop();
                    }
                    if seed % 2 == 0 { a.pin() } else { b.pin() }
                });
            });
            // Settle what needs a call of either end, then both directions are the kernel's.
            let mut byte = [0];
            for _ in 0..40 {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    from.send(&[1]).expect("send");
                    to.recv_all(&mut byte);
                }
            }
            let pinned = if seed % 2 == 0 { &a } else { &b };
            assert!(pinned.twin.is_plain(), "seed {seed} {:?}", pinned.twin.dirs);
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
                        let entry = PollEntry {
                            fd: std::os::fd::AsRawFd::as_raw_fd(&end.socket),
                            twin: Some(&end.twin),
                            door: None,
                            udp: None,
                            events: rustix::event::PollFlags::OUT,
                            revents: rustix::event::PollFlags::empty(),
                        };
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
fn a_full_ring_spills_to_tcp_and_comes_back() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let data = pattern(0, 1 << 20);
        for _ in 0..3 {
            // More than the ring, with nobody reading: the rest goes to TCP.
            assert_eq!(a.send(&data).expect("send"), data.len());
            assert!(!a.twin.on_ring().0);
            recv_pattern(&b, data.len(), 11);
            let mut byte = [0];
            for _ in 0..10 {
                a.send(&[3]).expect("send");
                b.recv_all(&mut byte);
            }
            assert!(a.twin.on_ring().0, "did not come back");
        }
    });
}

#[test]
fn the_end_of_the_stream_comes_after_the_last_byte() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&pattern(0, 5_000)).expect("send");
        a.twin.shutdown(a.socket.as_fd(), Shutdown::Write).expect("shutdown");
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
                a.twin.close(a.socket.as_fd());
                drop(a);
            });
        });
    });
}

#[test]
fn unread_bytes_make_a_close_a_reset() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        b.send(b"nobody reads this").expect("send");
        a.twin.close(a.socket.as_fd());
        drop(a);
        let mut byte = [0];
        assert_eq!(b.recv(&mut byte).expect_err("reset").raw_os_error(), Some(libc::ECONNRESET));
    });
}

#[test]
fn a_foreign_writer_is_a_fault_not_a_reordering() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        // Past the twin, as a raw system call would.
        rustix::net::send(&a.socket, b"foreign", SendFlags::empty()).expect("send");
        a.twin.close(a.socket.as_fd());
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
        assert_eq!(a.twin.pin_reason(), PinReason::ForeignWriter);
        assert!(!a.twin.on_ring().0);
    });
}

#[test]
fn peeking_takes_nothing() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(b"abc").expect("send");
        let mut buf = [0; 3];
        for _ in 0..3 {
            buf.fill(0);
            assert_eq!(b.recv_with(&mut buf, RecvFlags::PEEK).expect("peek"), 3);
            assert_eq!(&buf, b"abc");
        }
        assert_eq!(b.twin.bytes_readable(b.socket.as_fd()).expect("bytes"), 3);
        b.recv_all(&mut buf);
        assert_eq!(
            b.recv_with(&mut buf, RecvFlags::DONTWAIT).expect_err("empty").kind(),
            ErrorKind::WouldBlock
        );
    });
}

#[test]
fn poll_sees_the_ring_the_kernel_and_the_end() {
    use rustix::event::PollFlags;
    use std::os::fd::AsRawFd;
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let wait = |end: &End, events, timeout| {
            let mut entries = [PollEntry {
                fd: end.socket.as_raw_fd(),
                twin: Some(&end.twin),
                door: None,
                udp: None,
                events,
                revents: PollFlags::empty(),
            }];
            poll(&mut entries, timeout, None).expect("poll");
            entries[0].revents
        };
        assert_eq!(wait(&b, PollFlags::IN, Some(Duration::ZERO)), PollFlags::empty());
        assert_eq!(wait(&b, PollFlags::OUT, None), PollFlags::OUT);
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(wait(&b, PollFlags::IN, None), PollFlags::IN));
            s.spawn(|| a.send(b"x"));
        });
        let mut byte = [0];
        b.recv_all(&mut byte);
        std::thread::scope(|s| {
            s.spawn(|| {
                let found = wait(&b, PollFlags::IN | PollFlags::RDHUP, None);
                assert_eq!(found, PollFlags::IN | PollFlags::RDHUP);
            });
            s.spawn(|| drop(a.socket));
        });
    });
}

#[test]
fn poll_sees_the_rest_of_tcp_although_the_ring_has_more() {
    use rustix::event::PollFlags;
    use std::os::fd::AsRawFd;
    watchdog(|| {
        let (a, b) = connect();
        let mut byte = [0];
        // Each round leaves a byte unread when `b` invites.
        let invited = (0..10_000).any(|_| {
            a.send(&[1, 2]).expect("send");
            b.recv_all(&mut byte);
            let is_invited = b.twin.dirs.rx.0.lock().mode == RxMode::Invited;
            if !is_invited {
                b.recv_all(&mut byte);
                b.send(&[3]).expect("send");
                a.recv_all(&mut byte);
            }
            is_invited
        });
        assert!(invited, "{:?} {:?}", a.twin.pin_reason(), b.twin.pin_reason());
        a.send(&[4]).expect("send");
        assert!(a.twin.on_ring().0);
        let mut entries = [PollEntry {
            fd: b.socket.as_raw_fd(),
            twin: Some(&b.twin),
            door: None,
            udp: None,
            events: PollFlags::IN,
            revents: PollFlags::empty(),
        }];
        for expected in [2, 4, 4] {
            // The first round of the first wait learns where TCP ends; then the ring gets more.
            for _ in 0..2 {
                poll(&mut entries, None, None).expect("poll");
                assert_eq!(entries[0].revents, PollFlags::IN);
                a.send(&[4]).expect("send");
            }
            b.recv_all(&mut byte);
            assert_eq!(byte, [expected]);
        }
    });
}

#[test]
fn a_killed_peer_ends_the_stream() {
    watchdog(|| {
        let (a, b) = connect();
        rsock_verbs::family::note_fork();
        a.twin.before_fork(a.socket.as_fd());
        b.twin.before_fork(b.socket.as_fd());
        // SAFETY: the child uses only the two ends, and leaves without running exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            a.twin.note_inherited();
            b.twin.note_inherited();
            b.twin.note_released();
            drop(b);
            let mut byte = [0];
            loop {
                if a.send(&[1]).is_err() || a.recv(&mut byte).is_err() {
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(1) };
                }
            }
        }
        a.twin.note_released();
        drop(a);
        let mut byte = [0];
        for _ in 0..2_000 {
            b.recv_all(&mut byte);
            b.send(&[2]).expect("send");
        }
        assert_eq!(b.twin.on_ring(), (true, true), "{:?}", b.twin);
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
        // A writer notices too, when the ring is full at the latest.
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
        // Without trimming each stream would keep its whole ring of half a megabyte. Other tests
        // of this process share the budget, so the bound is a generous multiple of it.
        let total = crate::engine::resident_total();
        assert!(total < STREAMS * (256 << 10), "{total} bytes are kept");
    });
}

#[test]
fn a_stand_in_shows_the_ring_to_an_epoll_set_until_it_is_empty() {
    use rustix::event::{Timespec, epoll};
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(b"on the ring").expect("send");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let data = epoll::EventData::new_u64(42);
        epoll::add(&set, &b.socket, data, epoll::EventFlags::IN).expect("add");
        b.pin();
        let stand_in =
            b.twin.stand_in(b.socket.as_fd()).expect("made").expect("the ring is in use");
        // SAFETY: the twin keeps it open as long as it is needed.
        let stand_in = unsafe { BorrowedFd::borrow_raw(stand_in) };
        epoll::add(&set, stand_in, data, epoll::EventFlags::IN).expect("add");
        let is_ready = |timeout: Option<&Timespec>| {
            let mut events = Vec::with_capacity(4);
            let n = epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), timeout);
            n.expect("wait") != 0
        };
        let now = Timespec::default();
        let mut buf = [0; 64];
        assert!(is_ready(Some(&now)));
        assert_eq!(b.recv(&mut buf).expect("receive"), 11);
        let empty = b.recv_with(&mut buf, RecvFlags::DONTWAIT).expect_err("empty");
        assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        assert!(!is_ready(Some(&now)));
        // Whether the peer still writes to the ring or to TCP already, the set hears of it.
        for _ in 0..100 {
            a.send(b"x").expect("send");
            assert!(is_ready(None));
            b.recv_all(&mut buf[..1]);
            let empty = b.recv_with(&mut buf, RecvFlags::DONTWAIT).expect_err("empty");
            assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        }
        assert!(b.twin.is_plain());
        assert_eq!(b.twin.stand_in(b.socket.as_fd()).expect("asked"), None);
    });
}

#[test]
fn an_armed_doorbell_rings_and_an_old_mark_arms_nothing() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let bell = b.twin.create_doorbell().expect("a doorbell");
        let is_rung = || {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&bell);
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            sys::ppoll(&mut fds, Some(Duration::ZERO), None).expect("poll") == 1
        };
        let mut byte = [0];
        for _ in 0..100 {
            let mark = loop {
                let mark = b.twin.mark();
                let empty = b.recv_with(&mut byte, RecvFlags::DONTWAIT).expect_err("nothing yet");
                assert_eq!(empty.kind(), ErrorKind::WouldBlock);
                if b.twin.arm(&bell, mark) {
                    break mark;
                }
            };
            assert_eq!(Mark::from_bits(mark.to_bits()), mark);
            a.send(&[1]).expect("send");
            assert!(is_rung() && b.twin.has_changed(mark));
            b.twin.disarm(&bell);
            bell.drain();
            assert!(!b.twin.arm(&bell, mark), "something has come since");
            b.recv_all(&mut byte);
            assert!(!is_rung(), "disarmed, it stays quiet while we take what came");
        }
    });
}

#[test]
fn what_is_put_lies_in_the_peers_memory_before_later_bytes() {
    watchdog(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let twin = Twin::adopt_with(socket.as_fd(), None, 1).expect("family memory");
        let putter = End { socket, twin };
        let (socket, _) = listener.accept().expect("accept");
        let twin = Arc::new(Twin::adopt(socket.as_fd(), None).expect("family memory"));

        let errno = |e: io::Error| e.raw_os_error().expect("of the system");
        assert_eq!(twin.open(8, 0).map_err(errno).expect_err("not found yet"), libc::ENOTCONN);
        // Nothing has been sent: both look because they are told to.
        let mut found = (false, false);
        while found != (true, true) {
            let one = putter.twin.seek(putter.socket.as_fd()).expect("on one host");
            found = (one, twin.seek(socket.as_fd()).expect("on one host"));
        }
        let put = |bytes: &[u8], at| putter.twin.try_put(bytes, at).map_err(errno);
        assert_eq!(put(b"early", 7).expect_err("not open yet"), libc::EFAULT);
        let memory = twin.open(8, 7).expect("opened");
        assert_eq!(twin.open(8, 99).map_err(errno).expect_err("one place only"), libc::ENOMEM);
        twin.try_announce().expect("announced");
        assert_eq!(put(b"a message", 7), Ok(8), "as much as is open");
        assert_eq!(put(b"!", 8), Ok(1));
        let mut there = [0; 8];
        memory.read_at(0, &mut there);
        assert_eq!(&there, b"a!messag");
        drop(memory);
        assert_eq!(put(b"late", 7).expect_err("closed"), libc::EFAULT);
        // Its place is free again.
        let memory = twin.open(4, 7).expect("opened");
        twin.try_announce().expect("announced");
        assert_eq!(put(b"late", 7), Ok(4));
        assert_eq!(memory.len(), 4);
    });
}

#[test]
fn a_pinned_connection_says_that_it_will_never_have_iomaps() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let end = End::new(socket);
    end.pin();
    let never = end.twin.seek(end.socket.as_fd()).expect_err("pinned");
    assert_eq!(never.raw_os_error(), Some(libc::EOPNOTSUPP));
}
