//! Discovery while a thread waits: the thread answers the peer.

use crate::accelerate::discovery::limit;
use crate::accelerate::discovery::local::{Search, by_link};
use crate::accelerate::four_tuple::{FourTuple, Role};
use crate::accelerate::tests::*;
use rustix::event::{PollFd, Timespec};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg, socket_with, sockopt,
};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two ends of a connection, of which the first has `role`.
fn connect_as(role: Role) -> (End, End) {
    let (a, b) = connect();
    let tuple = FourTuple::of(a.socket.as_fd()).expect("addresses").expect("of TCP");
    if tuple.role() == Some(role) { (a, b) } else { (b, a) }
}

/// Peeks at `end` once: a call of its program.
fn peek(end: &End) {
    match end.recv_with(&mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok(n) => assert_eq!(n, 1),
        Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
    }
}

/// Peeks at `end` until `is_done` holds.
fn peek_until(end: &End, mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        peek(end);
    }
}

fn is_searching(end: &End) -> bool {
    end.stream.search_began.get().is_some()
}

/// Peeks at `end`, which has `role`, until it searches, and a publisher until the meeting point is
/// there.
fn peek_until_met(end: &End, role: Role) {
    peek_until(end, || match role {
        Role::Publisher => has_descriptors(end),
        Role::Finder => is_searching(end),
    });
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Publisher => Self::Finder,
            Self::Finder => Self::Publisher,
        }
    }
}

#[test]
fn a_writer_that_waits_for_room_answers_its_peer() {
    const PIECE: usize = 65_536;
    for role in [Role::Publisher, Role::Finder] {
        watchdog(|| {
            let (writer, reader) = connect_as(role);
            peek_until_met(&reader, role.other());
            let mut total = 0;
            let full = loop {
                match writer.try_send(&pattern(total, PIECE)) {
                    Ok(n) => total += n,
                    Err(e) => break e,
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
            assert!(has_descriptors(&writer) && !writer.stream.has_path());
            let sent = AtomicUsize::new(total);
            std::thread::scope(|s| {
                // The kernel may find room after it had none, so one more piece need not wait.
                let blocked = s.spawn(|| {
                    while !writer.stream.has_path() {
                        let at = sent.load(Ordering::Relaxed);
                        let n = writer.send(&pattern(at, PIECE)).expect("sent");
                        sent.store(at + n, Ordering::Release);
                    }
                });
                peek_until(&reader, || reader.stream.has_path() && writer.stream.has_path());
                let before = sent.load(Ordering::Acquire);
                recv_pattern_between(&reader, 0, before, 14);
                blocked.join().expect("no panic");
                recv_pattern_between(&reader, before, sent.load(Ordering::Acquire), 15);
            });
        });
    }
}

/// This is the reader's first wait: its calls have been sends so far.
#[test]
fn a_reader_that_waits_for_the_first_bytes_answers_its_peer() {
    for role in [Role::Publisher, Role::Finder] {
        watchdog(|| {
            let (reader, writer) = connect_as(role);
            peek_until_met(&writer, role.other());
            while !has_descriptors(&reader) {
                reader.send(&[1]).expect("send");
            }
            assert!(!reader.stream.has_path());
            std::thread::scope(|s| {
                let waiting = s.spawn(|| {
                    let mut byte = [0];
                    reader.recv_all(&mut byte);
                    byte
                });
                peek_until(&writer, || reader.stream.has_path() && writer.stream.has_path());
                writer.send(&[2]).expect("send");
                assert_eq!(waiting.join().expect("no panic"), [2]);
            });
        });
    }
}

#[test]
fn ends_that_both_search_find_each_other_within_a_few_calls() {
    watchdog(|| {
        // The link between the processes, here of this one to itself.
        let _others = connect_on_ring();
        for role in [Role::Publisher, Role::Finder] {
            let (asking, answering) = connect_as(role);
            let mut byte = [0];
            let has_path = |end: &End| end.stream.has_path();
            let n_trips = (1..100).find(|_| {
                for (from, to) in [(&asking, &answering), (&answering, &asking)] {
                    from.send(&[7]).expect("send");
                    to.recv_all(&mut byte);
                }
                has_path(&asking) && has_path(&answering)
            });
            let n_trips = n_trips.expect("found");
            assert!(n_trips <= 5, "{n_trips} calls of each kind at each end");
        }
    });
}

/// Two ends of a connection, of which the first has `role` and searches.
fn connect_searching(role: Role) -> (End, End) {
    let (end, other) = connect_as(role);
    peek_until(&end, || has_descriptors(&end));
    (end, other)
}

fn is_by_link(end: &End) -> bool {
    end.stream.search.lock().expect("no panic").is_by_link()
}

/// Two ends of a connection, of which the first has `role` and searches by the link of this process
/// to itself. Another test may have made that link just now: then the next connection does.
fn connect_by_link(role: Role) -> (End, End) {
    let _others = connect_on_ring();
    loop {
        let (end, other) = connect_as(role);
        if role == Role::Finder {
            peek_until(&other, || is_searching(&other));
        }
        peek_until(&end, || is_searching(&end));
        if is_by_link(&end) {
            return (end, other);
        }
    }
}

/// Another test may have made the link just now: then the next connection finds its peer over it.
#[test]
fn ends_in_linked_processes_find_each_other_without_descriptors() {
    watchdog(|| {
        let _others = connect_on_ring();
        for role in [Role::Publisher, Role::Finder] {
            let mut had_descriptors = true;
            while had_descriptors {
                let (end, other) = connect_as(role);
                had_descriptors = false;
                while !(end.stream.has_path() && other.stream.has_path()) {
                    for one in [&end, &other] {
                        peek(one);
                        had_descriptors |= has_descriptors(one);
                    }
                }
            }
        }
    });
}

/// The finder's request, or the publisher's reply, lies in the link before the thread waits.
#[test]
fn a_thread_that_waits_goes_on_by_a_link() {
    watchdog(|| {
        for role in [Role::Publisher, Role::Finder] {
            let (waiting, other) = loop {
                let (end, other) = connect_by_link(role);
                peek_until(&other, || is_by_link(&other) || has_descriptors(&other));
                if role == Role::Finder {
                    peek(&other);
                }
                if is_by_link(&end) && (is_by_link(&other) || other.stream.has_path()) {
                    break (end, other);
                }
            };
            std::thread::scope(|s| {
                s.spawn(|| waiting.recv_all(&mut [0]));
                while !waiting.stream.has_path() {
                    std::thread::yield_now();
                }
                other.send(&[2]).expect("send");
            });
        }
    });
}

#[test]
fn an_end_that_has_no_answer_by_a_link_goes_on_by_a_socket() {
    watchdog(|| {
        for role in [Role::Publisher, Role::Finder] {
            let (end, other) = connect_by_link(role);
            // The other end gives up what it has begun, as at a fork, and begins again.
            *other.stream.search.lock().expect("no panic") = Search::new();
            peek_until(&end, || !is_by_link(&end));
            assert!(!end.stream.has_path());
            while !(end.stream.has_path() && other.stream.has_path()) {
                peek(&other);
                peek(&end);
            }
        }
    });
}

#[test]
fn a_finder_waits_for_a_publisher_that_is_answering_and_no_longer() {
    watchdog(|| {
        let (finder, publisher) = connect_by_link(Role::Finder);
        let pretend = |answers| {
            publisher.stream.search.lock().expect("no panic").pretend_to_answer(answers);
        };
        pretend(true);
        let start = sys::now();
        peek_until(&finder, || start.elapsed() > 3 * by_link::PATIENCE);
        assert!(is_by_link(&finder));
        pretend(false);
        peek_until(&finder, || !is_by_link(&finder));
        assert!(!finder.stream.has_path());
    });
}

#[test]
fn a_request_that_was_taken_back_is_not_answered() {
    watchdog(|| {
        let (finder, publisher) = connect_by_link(Role::Finder);
        finder.stream.search.lock().expect("no panic").pretend_to_withdraw();
        peek_until(&publisher, || !is_by_link(&publisher));
        assert!(!publisher.stream.has_path());
    });
}

#[test]
fn an_end_that_stays_on_tcp_has_no_entry_in_a_link() {
    watchdog(|| {
        let (publisher, finder) = connect_by_link(Role::Publisher);
        publisher.pin();
        peek_until(&finder, || {
            assert!(!is_by_link(&finder));
            finder.stream.pin_reason() == FallbackReason::NoPeer
        });
    });
}

fn has_descriptors(end: &End) -> bool {
    end.stream.search.lock().expect("no panic").has_descriptors()
}

#[test]
fn a_search_takes_the_place_of_the_one_that_has_had_no_answer_for_longest() {
    watchdog(|| {
        let ends = [(); 3].map(|()| connect_searching(Role::Publisher));
        let [first, second, third] = [0, 1, 2].map(|n| &ends[n].0);
        let (mut places, began) = (limit::Places::default(), sys::now());
        let soon = began + Duration::from_millis(500);
        assert!(places.take(&first.stream.search, 2, began));
        assert!(places.take(&second.stream.search, 2, soon));
        assert!(!places.take(&third.stream.search, 2, soon));
        assert!(places.take(&third.stream.search, 2, began + Duration::from_secs(1)));
        assert_eq!([first, second, third].map(has_descriptors), [false, true, true]);
        // A search that is over needs no place any more.
        second.pin();
        assert!(places.take(&first.stream.search, 2, soon));
        // One that has lost its place begins again.
        peek_until(first, || has_descriptors(first));
    });
}

#[test]
fn the_place_of_a_search_that_is_gone_is_gone_with_the_next() {
    let [gone, next] = [(); 2].map(|()| Arc::new(Mutex::new(Search::new())));
    let mut places = limit::Places::default();
    assert!(places.take(&gone, 8, sys::now()));
    drop(gone);
    assert!(places.take(&next, 8, sys::now()));
    assert_eq!(places.len(), 1);
}

#[test]
fn a_search_that_has_had_an_answer_keeps_its_place_for_longer() {
    watchdog(|| {
        let (finder, publisher) = connect_searching(Role::Finder);
        peek_until(&publisher, || has_descriptors(&publisher));
        peek_until(&finder, || !finder.stream.search.lock().expect("no panic").is_unanswered());
        let other = connect_searching(Role::Publisher).0;
        let (mut places, began) = (limit::Places::default(), sys::now());
        assert!(places.take(&finder.stream.search, 1, began));
        assert!(!places.take(&other.stream.search, 1, began + Duration::from_secs(2)));
        assert!(has_descriptors(&finder));
        assert!(places.take(&other.stream.search, 1, began + Duration::from_secs(15)));
        assert!(!has_descriptors(&finder));
    });
}

/// A connection to the meeting point of `publisher`.
fn connect_to_meeting_point(publisher: &End) -> OwnedFd {
    let tuple = FourTuple::of(publisher.socket.as_fd()).expect("addresses").expect("of TCP");
    let name = SocketAddrUnix::new_abstract_name(tuple.meeting_name().as_bytes()).expect("a name");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    peek_until(publisher, || rustix::net::connect(&socket, &name).is_ok());
    socket
}

/// A socket whose last close waits for an hour, and its peer, whose close ends that wait.
fn lingering() -> (TcpStream, TcpStream) {
    let (waits, peer) = connect();
    let mut socket = waits.socket;
    socket.set_nonblocking(true).expect("nonblocking");
    while socket.write(&[0; 65536]).is_ok() {}
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).expect("linger");
    (socket, peer.socket)
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).expect("poll");
    fds[0].revents().contains(PollFlags::HUP)
}

/// The first message is refused, the second one stays unread; both carry a socket whose last close
/// waits.
#[test]
fn received_descriptors_whose_close_waits_do_not_delay_a_call() {
    watchdog(|| {
        let (publisher, _other) = connect_as(Role::Publisher);
        let finder = connect_to_meeting_point(&publisher);
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (socket, peer) = lingering();
            let fds = [socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [IoSlice::new(b"rubbish")];
            sendmsg(&finder, &bytes, &mut control, SendFlags::NOSIGNAL).expect("sent");
            peers.push(peer);
        }
        peek_until(&publisher, || has_hung_up(&finder));
        drop(peers);
    });
}
