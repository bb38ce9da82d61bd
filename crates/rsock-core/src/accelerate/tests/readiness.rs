//! Readiness: peeks, polls, epoll proxies, doorbells.

use crate::accelerate::tests::*;

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
        assert_eq!(b.stream.bytes_readable(b.socket.as_fd()).expect("bytes"), 3);
        b.recv_all(&mut buf);
        assert_eq!(
            b.recv_with(&mut buf, RecvFlags::DONTWAIT).expect_err("empty").kind(),
            ErrorKind::WouldBlock
        );
    });
}

#[test]
fn poll_sees_the_ring_the_kernel_and_the_end() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let wait = |end: &End, events, timeout| {
            let mut entries = [end.poll_entry(events)];
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
    watchdog(|| {
        let (a, b) = connect();
        let mut byte = [0];
        // A byte is always unread, so also when `b` invites.
        a.send(&[2]).expect("send");
        let invited = (0..10_000).any(|_| {
            a.send(&[2]).expect("send");
            b.recv_all(&mut byte);
            let is_invited = b.stream.dirs.rx.0.lock().switch.is_inviting();
            if !is_invited {
                b.send(&[3]).expect("send");
                a.recv_all(&mut byte);
            }
            is_invited
        });
        assert!(invited, "{:?} {:?}", a.stream.pin_reason(), b.stream.pin_reason());
        a.send(&[4]).expect("send");
        assert!(a.stream.channels().send.is_ring());
        let mut entries = [b.poll_entry(PollFlags::IN)];
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
fn an_epoll_proxy_shows_the_ring_to_an_epoll_set_until_the_ring_is_empty() {
    use rustix::event::{Timespec, epoll};
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(b"on the ring").expect("send");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let data = epoll::EventData::new_u64(42);
        epoll::add(&set, &b.socket, data, epoll::EventFlags::IN).expect("add");
        b.pin();
        let epoll_proxy =
            b.stream.epoll_proxy(b.socket.as_fd()).expect("made").expect("the ring is in use");
        // SAFETY: the stream keeps it open as long as it is needed.
        let epoll_proxy = unsafe { BorrowedFd::borrow_raw(epoll_proxy) };
        epoll::add(&set, epoll_proxy, data, epoll::EventFlags::IN).expect("add");
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
        // Whether the peer still writes to the ring or to TCP already, the set shows it.
        for _ in 0..100 {
            a.send(b"x").expect("send");
            assert!(is_ready(None));
            b.recv_all(&mut buf[..1]);
            let empty = b.recv_with(&mut buf, RecvFlags::DONTWAIT).expect_err("empty");
            assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        }
        assert!(b.stream.is_plain());
        assert_eq!(b.stream.epoll_proxy(b.socket.as_fd()).expect("asked"), None);
    });
}

/// The call that finds the stream back on TCP for good is not a receive.
#[test]
fn an_epoll_set_is_quiet_once_a_poll_has_found_the_stream_on_tcp() {
    use rustix::event::{Timespec, epoll};
    fn counts(end: &End) {
        assert_eq!(end.stream.bytes_readable(end.socket.as_fd()).expect("bytes"), 0);
    }
    fn polls(end: &End) {
        let mut entries = [end.poll_entry(PollFlags::IN)];
        poll(&mut entries, Some(Duration::ZERO), None).expect("poll");
        assert_eq!(entries[0].revents, PollFlags::empty());
    }
    for check in [counts, polls] {
        watchdog(|| {
            let (a, b) = connect_on_ring();
            b.pin();
            let proxy = b.stream.epoll_proxy(b.socket.as_fd()).expect("made").expect("on the ring");
            // SAFETY: the stream keeps it open as long as it is needed.
            let proxy = unsafe { BorrowedFd::borrow_raw(proxy) };
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
            epoll::add(&set, proxy, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .expect("add");
            // This end announces that it goes to TCP, and sends nothing there.
            a.pin();
            let is_settled = || b.stream.dirs.has(FLAG_RX_PLAIN);
            while !is_settled() {
                check(&b);
            }
            let mut events = Vec::with_capacity(1);
            let room = rustix::buffer::spare_capacity(&mut events);
            let n = epoll::wait(&set, room, Some(&Timespec::default())).expect("wait");
            assert_eq!(n, 0, "readable, although nothing is there and no call will empty it");
        });
    }
}

#[test]
fn an_armed_doorbell_rings_and_an_old_mark_arms_nothing() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let bell = b.stream.create_doorbell().expect("a doorbell");
        let is_rung = || {
            let fd = bell.as_raw_fd();
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            sys::ppoll(&mut fds, Some(Duration::ZERO), None).expect("poll") == 1
        };
        let mut byte = [0];
        for _ in 0..100 {
            let mark = loop {
                let mark = b.stream.mark();
                let empty = b.recv_with(&mut byte, RecvFlags::DONTWAIT).expect_err("nothing yet");
                assert_eq!(empty.kind(), ErrorKind::WouldBlock);
                if b.stream.arm(&bell, mark) {
                    break mark;
                }
            };
            assert_eq!(Mark::from_bits(mark.to_bits()), mark);
            a.send(&[1]).expect("send");
            assert!(is_rung() && b.stream.has_changed(mark));
            b.stream.disarm(&bell);
            bell.drain();
            assert!(!b.stream.arm(&bell, mark), "something has come since");
            b.recv_all(&mut byte);
            assert!(!is_rung(), "disarmed, it stays quiet while the bytes are read");
        }
    });
}
