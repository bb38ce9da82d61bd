//! Finding the peer while a thread waits: it answers.

use crate::accelerate::four_tuple::{Role, Tuple};
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

/// Two ends of a connection, of which the first plays `role`.
fn connect_as(role: Role) -> (End, End) {
    let (a, b) = connect();
    let tuple = Tuple::of(a.socket.as_fd()).expect("addresses").expect("of TCP");
    if tuple.role() == Some(role) { (a, b) } else { (b, a) }
}

/// Looks at what has come until `is_meant` holds, and takes none of it.
fn look_until(end: &End, mut is_meant: impl FnMut() -> bool) {
    let mut byte = [0];
    while !is_meant() {
        match end.recv_with(&mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(n) => assert_eq!(n, 1),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn is_looking(end: &End) -> bool {
    end.twin.looking_since.get().is_some()
}

#[test]
fn a_writer_that_waits_for_room_answers_its_peer() {
    const PIECE: usize = 65_536;
    for role in [Role::Publisher, Role::Finder] {
        watchdog(|| {
            let (writer, reader) = connect_as(role);
            look_until(&reader, || is_looking(&reader));
            let mut total = 0;
            let full = loop {
                match writer.try_send(&pattern(total, PIECE)) {
                    Ok(n) => total += n,
                    Err(e) => break e,
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
            assert!(is_looking(&writer) && !writer.twin.is_paired());
            let sent = AtomicUsize::new(total);
            std::thread::scope(|s| {
                // The kernel may find room after it had none, so one more piece need not wait.
                let blocked = s.spawn(|| {
                    while !writer.twin.is_paired() {
                        let at = sent.load(Ordering::Relaxed);
                        let n = writer.send(&pattern(at, PIECE)).expect("sent");
                        sent.store(at + n, Ordering::Release);
                    }
                });
                look_until(&reader, || reader.twin.is_paired() && writer.twin.is_paired());
                let before = sent.load(Ordering::Acquire);
                recv_pattern_between(&reader, 0, before, 14);
                blocked.join().expect("no panic");
                recv_pattern_between(&reader, before, sent.load(Ordering::Acquire), 15);
            });
        });
    }
}

/// Although it is the first time that it waits: its calls have been sends so far.
#[test]
fn a_reader_that_waits_for_the_first_bytes_answers_its_peer() {
    for role in [Role::Publisher, Role::Finder] {
        watchdog(|| {
            let (reader, writer) = connect_as(role);
            look_until(&writer, || is_looking(&writer));
            while !is_looking(&reader) {
                reader.send(&[1]).expect("send");
            }
            assert!(!reader.twin.is_paired());
            std::thread::scope(|s| {
                let waiting = s.spawn(|| {
                    let mut byte = [0];
                    reader.recv_all(&mut byte);
                    byte
                });
                look_until(&writer, || reader.twin.is_paired() && writer.twin.is_paired());
                writer.send(&[2]).expect("send");
                assert_eq!(waiting.join().expect("no panic"), [2]);
            });
        });
    }
}

/// A visitor of the name that `publisher` has put out.
fn visit(publisher: &End) -> OwnedFd {
    let tuple = Tuple::of(publisher.socket.as_fd()).expect("addresses").expect("of TCP");
    let name = SocketAddrUnix::new_abstract_name(tuple.meeting_name().as_bytes()).expect("a name");
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    look_until(publisher, || rustix::net::connect(&socket, &name).is_ok());
    socket
}

/// A socket whose last close waits for an hour, and its peer, whose end ends the wait.
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

/// The first message is refused, the second one lies there unread; both bring a socket whose last close
/// waits.
#[test]
fn a_visitor_with_descriptors_whose_close_waits_keeps_no_call_waiting() {
    watchdog(|| {
        let (publisher, _other) = connect_as(Role::Publisher);
        let visitor = visit(&publisher);
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (socket, peer) = lingering();
            let fds = [socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [IoSlice::new(b"rubbish")];
            sendmsg(&visitor, &bytes, &mut control, SendFlags::NOSIGNAL).expect("sent");
            peers.push(peer);
        }
        look_until(&publisher, || has_hung_up(&visitor));
        drop(peers);
    });
}
