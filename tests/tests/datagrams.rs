//! Datagram sockets of one process with each other, through UDP and shared memory, and with peers
//! that lie.

mod datagrams_hostile;

use rsock_core::datagram::{Datagram, MessageFlags, Received};
use rsock_tests::Watchdog;
use rsock_tests::datagrams::{bound, ping_pong, recv, send, talk_past_udp, try_recv};
use rustix::event::PollFlags;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];

fn watchdog() -> Watchdog {
    Watchdog::new(Duration::from_secs(60))
}

#[test]
fn the_first_datagram_arrives_although_nothing_is_known() {
    let _dog = watchdog();
    for addr in ADDRESSES {
        let ((a, at_a), (b, at_b)) = (bound(addr), bound(addr));
        send(&a, at_b, b"first");
        assert_eq!(recv(&b), (b"first".to_vec(), at_a));
        assert!(try_recv(&b).is_none(), "twice");
        let (sent, got) = (a.counters(), b.counters());
        assert_eq!((sent.n_by_udp, sent.local.n_sent, got.n_received_by_udp), (1, 0, 1));
    }
}

#[test]
fn a_conversation_moves_to_memory() {
    let _dog = watchdog();
    for addr in ADDRESSES {
        let ((a, at_a), (b, at_b)) = (bound(addr), bound(addr));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        let by_udp = [a.counters().n_by_udp, b.counters().n_by_udp];
        for len in [0, 1, 39, 40, 41, 100, 1400, 8000] {
            send(&a, at_b, &vec![7; len]);
            assert_eq!(recv(&b), (vec![7; len], at_a));
        }
        assert_eq!(by_udp, [a.counters().n_by_udp, b.counters().n_by_udp]);
    }
}

#[test]
fn sockets_that_sleep_wake_for_what_comes_either_way() {
    const ROUNDS: u32 = 300;
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    ping_pong([(&a, at_a), (&b, at_b)], ROUNDS, || {
        let (got, from) = recv(&a);
        assert_eq!(from, at_b);
        got
    });
    let sent = a.counters();
    assert_eq!(sent.n_by_udp + sent.local.n_sent, ROUNDS.into());
    assert_eq!((sent.local.n_full, sent.n_bad_packets), (0, 0));
}

#[test]
fn an_ipv6_socket_talks_to_an_ipv4_one() {
    let _dog = watchdog();
    let (four, at_four) = bound("127.0.0.1");
    let (six, at_six) = bound("::");
    let to_six = SocketAddr::from(([127, 0, 0, 1], at_six.port()));
    let mapped = SocketAddr::new("::ffff:127.0.0.1".parse().expect("ip"), at_four.port());
    while four.counters().local.n_sent == 0 || six.counters().local.n_sent == 0 {
        send(&four, to_six, b"to six");
        assert_eq!(recv(&six), (b"to six".to_vec(), mapped));
        send(&six, mapped, b"to four");
        assert_eq!(recv(&four), (b"to four".to_vec(), to_six));
    }
}

#[test]
fn long_datagrams_go_by_udp_and_longer_ones_are_refused() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    let most = 65_507 - 16;
    for len in [8185, 20_000, most] {
        let sent: Vec<u8> = (0u8..251).cycle().take(len).collect();
        send(&a, at_b, &sent);
        assert_eq!(recv(&b), (sent, at_a));
    }
    let long = vec![0; most + 1];
    let refused = a.send_to(&[IoSlice::new(&long)], Some(at_b), MessageFlags::empty());
    assert_eq!(refused.expect_err("too long").raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn pieces_are_gathered_and_scattered_and_what_does_not_fit_is_cut() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    for is_local in [false, true] {
        if is_local {
            talk_past_udp([(&a, at_a), (&b, at_b)]);
        }
        let pieces = [&b"abc"[..], b"", b"defgh"].map(IoSlice::new);
        let exchange = |sizes: [usize; 2]| {
            assert_eq!(a.send_to(&pieces, Some(at_b), MessageFlags::empty()).expect("sent"), 8);
            let (mut first, mut second) = (vec![0; sizes[0]], vec![0; sizes[1]]);
            let bufs = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            let received = b.recv_from(bufs, MessageFlags::empty()).expect("received");
            ([first, second].concat(), received)
        };
        let whole = Received { len: 8, full_len: 8, from: at_a };
        assert_eq!(exchange([2, 6]), (b"abcdefgh".to_vec(), whole));
        let cut = Received { len: 5, full_len: 8, from: at_a };
        assert_eq!(exchange([2, 3]), (b"abcde".to_vec(), cut));
        // The rest of a datagram that was cut is gone.
        assert!(try_recv(&b).is_none());
    }
}

#[test]
fn peeking_leaves_the_datagram_where_it_is() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    for is_local in [false, true] {
        if is_local {
            talk_past_udp([(&a, at_a), (&b, at_b)]);
        }
        send(&a, at_b, b"one");
        send(&a, at_b, b"two");
        for _ in 0..3 {
            let mut buf = [0; 2];
            let seen =
                b.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::PEEK).expect("peek");
            assert_eq!((seen, &buf), (Received { len: 2, full_len: 3, from: at_a }, b"on"));
        }
        assert_eq!((recv(&b).0, recv(&b).0), (b"one".to_vec(), b"two".to_vec()));
    }
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let _dog = watchdog();
    let [(a, at_a), (b, at_b), (c, at_c)] = std::array::from_fn(|_| bound("127.0.0.1"));
    // Both know b's queue before it connects.
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    talk_past_udp([(&c, at_c), (&b, at_b)]);
    b.connect(at_a).expect("connect");
    assert_eq!(b.peer_addr().expect("peer"), at_a);
    for _ in 0..5 {
        send(&c, at_b, b"not for you");
        send(&a, at_b, b"for you");
        assert_eq!(recv(&b), (b"for you".to_vec(), at_a));
        b.send_to(&[IoSlice::new(b"thanks")], None, MessageFlags::empty()).expect("sent");
        assert_eq!(recv(&a), (b"thanks".to_vec(), at_b));
    }
    assert!(try_recv(&b).is_none());
    assert_eq!(b.counters().n_foreign, 5);
}

#[test]
fn a_socket_without_a_destination_says_so() {
    let (a, _) = bound("127.0.0.1");
    let nowhere =
        a.send_to(&[IoSlice::new(b"x")], None, MessageFlags::empty()).expect_err("no address");
    assert_eq!(nowhere.raw_os_error(), Some(libc::EDESTADDRREQ));
    assert_eq!(a.peer_addr().expect_err("no peer").raw_os_error(), Some(libc::ENOTCONN));
}

#[test]
fn a_closed_port_of_a_connected_peer_is_reported() {
    let _dog = watchdog();
    let (a, _) = bound("127.0.0.1");
    let (b, at_b) = bound("127.0.0.1");
    drop(b);
    a.connect(at_b).expect("connect");
    a.send_to(&[IoSlice::new(b"refused?")], None, MessageFlags::empty()).expect("sent");
    let mut buf = [0; 8];
    let refused = a.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::empty());
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_peer_that_restarts_on_its_port_is_reached_again() {
    let _dog = watchdog();
    let (a, at_a) = bound("127.0.0.1");
    let (b, at_b) = bound("127.0.0.1");
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    drop(b);
    for _ in 0..3 {
        let b = Datagram::bound(at_b).expect("the port is free");
        // What is on its way to the old queue may be lost.
        while try_recv(&b).is_none() {
            send(&a, at_b, b"still there?");
        }
        while try_recv(&b).is_some() {}
        talk_past_udp([(&a, at_a), (&b, at_b)]);
    }
}

#[test]
fn nothing_is_missing_but_what_was_counted() {
    const N: u32 = 30_000;
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    let (sent, got) = (a.counters(), b.counters());
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..N {
                send(&a, at_b, &[&i.to_ne_bytes()[..], &[0; 60]].concat());
            }
            // The last word must not be lost: it goes by UDP, behind an empty queue.
            while b.counters().local.n_received - got.local.n_received
                < a.counters().local.n_sent - sent.local.n_sent - a.counters().local.n_full
            {
                std::thread::yield_now();
            }
            send(&a, at_b, &vec![0; 10_000]);
        });
        let mut next = 0;
        loop {
            let bytes = recv(&b).0;
            if bytes.len() == 10_000 {
                break;
            }
            let i = u32::from_ne_bytes(bytes[..4].try_into().expect("number"));
            assert!(i >= next, "{i} after {next}");
            next = i + 1;
        }
    });
    let (sent, got) = (a.counters().local, b.counters().local);
    assert_eq!((sent.n_sent, got.n_malformed), (got.n_received + sent.n_full, 0));
}

#[test]
fn batches_arrive_as_they_were_sent() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    for is_local in [false, true] {
        if is_local {
            talk_past_udp([(&a, at_a), (&b, at_b)]);
        }
        let batch: Vec<_> = [&b"one"[..], b"", b"three"].into_iter().map(IoSlice::new).collect();
        assert_eq!(a.send_batch(&batch, Some(at_b)).expect("sent"), 3);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let mut bufs = [[0; 8]; 2];
            let mut out = [None; 2];
            let n = {
                let mut bufs: Vec<_> = bufs.iter_mut().map(|b| IoSliceMut::new(b)).collect();
                b.recv_batch(&mut bufs, &mut out).expect("received")
            };
            for (buf, received) in bufs.iter().zip(&out[..n]) {
                let received = received.expect("received");
                assert_eq!(received.from, at_a);
                seen.push(buf[..received.len].to_vec());
            }
        }
        assert_eq!(seen, [b"one".to_vec(), vec![], b"three".to_vec()]);
    }
}

#[test]
fn a_batch_has_what_comes_by_udp_and_lacks_what_is_for_others() {
    let _dog = watchdog();
    let [(a, at_a), (b, at_b), (c, at_c)] = [(); 3].map(|()| bound("127.0.0.1"));
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    talk_past_udp([(&c, at_c), (&b, at_b)]);
    b.connect(at_a).expect("connect");
    let long = [b'5'; 20_000];
    let sent = [&b"1"[..], b"2", &long, b"3", b"4"];
    let batch: Vec<_> = sent.into_iter().map(IoSlice::new).collect();
    assert_eq!(c.send_batch(&batch[..2], Some(at_b)).expect("sent"), 2);
    assert_eq!(a.send_batch(&batch, Some(at_b)).expect("sent"), 5);
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let mut room = vec![[0; 20_000]; 3];
        let mut out = [None; 4];
        let mut bufs: Vec<_> = room.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        let n = b.recv_batch(&mut bufs, &mut out).expect("received");
        assert!((1..=3).contains(&n) && out[n..].iter().all(Option::is_none));
        for (buf, received) in room.iter().zip(&out[..n]) {
            let received = received.expect("received");
            assert_eq!((received.from, received.len), (at_a, received.full_len));
            seen.push(buf[..received.len].to_vec());
        }
    }
    // What went by UDP, being long, may have overtaken the others or come after them.
    seen.sort();
    assert!(seen == [&b"1"[..], b"2", b"3", b"4", &long]);
    assert_eq!(b.counters().n_foreign, 2);
    assert_eq!(b.recv_batch(&mut [], &mut [None]).expect("nothing asked"), 0);
}

#[test]
fn an_empty_socket_fails_at_once_or_after_the_time_limit() {
    let _dog = watchdog();
    let (a, _) = bound("127.0.0.1");
    assert!(try_recv(&a).is_none());
    a.set_nonblocking(true);
    let mut buf = [0; 8];
    let mut recv = || a.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::empty());
    assert_eq!(recv().expect_err("nothing").kind(), ErrorKind::WouldBlock);
    a.set_nonblocking(false);
    a.set_recv_timeout(Some(Duration::from_millis(20))).expect("option");
    assert_eq!(recv().expect_err("nothing").kind(), ErrorKind::WouldBlock);
}

#[test]
fn closing_ends_a_wait_in_another_thread() {
    let _dog = watchdog();
    for is_local in [false, true] {
        let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
        if is_local {
            talk_past_udp([(&a, at_a), (&b, at_b)]);
        }
        std::thread::scope(|s| {
            let waiting = s.spawn(|| {
                let mut buf = [0; 8];
                a.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::empty())
            });
            a.close();
            let ended: io::Result<Received> = waiting.join().expect("thread");
            assert_eq!(ended.expect_err("closed").raw_os_error(), Some(libc::EBADF));
        });
    }
}

#[test]
fn readiness_is_seen_either_way() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    let both = PollFlags::IN | PollFlags::OUT;
    assert_eq!(b.events(both), PollFlags::OUT);
    send(&a, at_b, b"by UDP");
    while b.events(both) != both {}
    assert_eq!(recv(&b).0, b"by UDP");
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    assert_eq!(b.events(both), PollFlags::OUT);
    send(&a, at_b, b"through memory");
    assert_eq!(b.events(both), both);
    assert_eq!(recv(&b).0, b"through memory");
}

#[test]
fn a_shared_port_stays_on_udp() {
    let _dog = watchdog();
    let (a, at_a) = bound("127.0.0.1");
    let b = Datagram::new(false).expect("socket");
    rustix::net::sockopt::set_socket_reuseport(b.as_fd(), true).expect("option");
    b.bind("127.0.0.1:0".parse().expect("address")).expect("bind");
    let at_b = b.local_addr().expect("address");
    for _ in 0..20 {
        send(&a, at_b, b"there");
        assert_eq!(recv(&b), (b"there".to_vec(), at_a));
        send(&b, at_a, b"back");
        assert_eq!(recv(&a), (b"back".to_vec(), at_b));
    }
    assert_eq!((a.counters().local.n_sent, b.counters().local.n_sent), (0, 0));
}

#[test]
fn what_udp_has_no_room_for_is_counted() {
    const SENT: u64 = 2000;
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    rustix::net::sockopt::set_socket_recv_buffer_size(b.as_fd(), 64 << 10).expect("option");
    // No call on b's socket answers meanwhile, so all go by UDP.
    (0..SENT).for_each(|_| send(&a, at_b, &[3; 1000]));
    let n_received = std::iter::from_fn(|| try_recv(&b)).count() as u64;
    let (sent, got) = (a.counters(), b.counters());
    assert_eq!((sent.n_by_udp, got.n_received_by_udp), (SENT, n_received), "{at_a}");
    assert!(got.n_dropped_by_udp > 0);
    assert_eq!(n_received + got.n_dropped_by_udp, SENT);
}
