use super::*;
use crate::conformance::Watchdog;
use crate::soft::SoftBell;
use crate::soft::testing::lingering;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, sendmsg,
    sendmsg_addr, socket_with, socketpair,
};
use std::io::{ErrorKind, IoSlice};

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair")
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

#[test]
fn dropping_a_lingering_socket_does_not_wait() {
    let _dog = Watchdog::new("a lingering socket");
    let (socket, peer) = lingering();
    drop(UntrustedFd::from(socket));
    drop(peer);
}

/// Where a socket comes from.
#[derive(Clone, Copy)]
enum Made {
    Here,
    /// It refused descriptors first, as that of a finder which is sent the memory of a link.
    HereRefusing,
    ByPeer,
}

impl Made {
    /// What closes such a socket.
    fn closing(self, socket: OwnedFd) -> Box<dyn FnOnce()> {
        match self {
            Self::Here => Box::new(|| drop(PeerSocket::new(socket))),
            Self::HereRefusing => {
                let mut socket = PeerSocket::new(socket);
                socket.refuse_descriptors();
                socket.accept_descriptors();
                Box::new(|| drop(socket))
            }
            Self::ByPeer => {
                Box::new(|| drop(UntrustedFd::from(socket).into_socket().expect("such a socket")))
            }
        }
    }
}

#[test]
fn closing_a_socket_does_not_wait_for_what_lies_in_its_queue() {
    let _dog = Watchdog::new("a lingering socket in a queue");
    // The sender lives on, or has ended; the message has bytes, or none.
    for (ends, bytes) in [(false, &b"x"[..]), (true, b"x"), (true, b""), (false, b"")] {
        for of in [Made::Here, Made::HereRefusing, Made::ByPeer] {
            let (ours, theirs) = pair(SocketType::SEQPACKET);
            let close = of.closing(ours);
            let (socket, peer) = lingering();
            send(&theirs, bytes, &[socket.as_fd()]).expect("sent");
            drop(socket);
            let end = if ends {
                drop(theirs);
                None
            } else {
                Some(theirs)
            };
            close();
            drop((end, peer));
        }
    }
}

#[test]
fn a_socket_that_nothing_was_sent_to_is_closed_at_once() {
    for ends in [false, true] {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        send(&theirs, b"read", &[]).expect("sent");
        send(&theirs, b"unread", &[]).expect("sent");
        let socket = PeerSocket::new(ours);
        assert_eq!(receive(socket.as_fd(), &mut [0; 8]).expect("received").len, 4);
        let rest = (!ends).then_some(theirs);
        assert!(!socket.holds_descriptors());
        drop(socket);
        if let Some(theirs) = rest {
            let mut fds = [PollFd::new(&theirs, PollFlags::empty())];
            poll(&mut fds, Some(&Timespec::default())).expect("poll");
            assert!(fds[0].revents().contains(PollFlags::HUP));
        }
    }
}

#[test]
fn a_socket_that_refuses_descriptors_gets_none_until_it_accepts_them() {
    let (ours, theirs) = pair(SocketType::SEQPACKET);
    let mut socket = PeerSocket::new(ours);
    let (other, _) = pair(SocketType::STREAM);
    socket.refuse_descriptors();
    // A kernel before 6.16 cannot refuse them; then the queue is inspected before the close.
    let sent = send(&theirs, b"refused", &[other.as_fd()]);
    assert_eq!(sent.is_err(), socket.refuses_descriptors());
    socket.accept_descriptors();
    assert!(!socket.refuses_descriptors());
    send(&theirs, b"accepted", &[other.as_fd()]).expect("sent");
    assert!(socket.holds_descriptors());
}

#[test]
fn a_bell_rung_with_a_lingering_socket_does_not_wait() {
    let _dog = Watchdog::new("a bell");
    for refuses in [true, false] {
        let bell = if refuses {
            SoftBell::new().expect("bell")
        } else {
            SoftBell::new_of_old_kernel().expect("bell")
        };
        let name = format!("rsock-bell-{:016x}", bell.id());
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("name");
        let from = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .expect("socket");
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (socket, peer) = lingering();
            let fds = [socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let bytes = [IoSlice::new(&[1])];
            let rung = sendmsg_addr(&from, &name, &bytes, &mut control, SendFlags::NOSIGNAL);
            assert!(rung.is_ok() || refuses && rung == Err(rustix::io::Errno::PERM), "{rung:?}");
            // If the kernel refused it, its last close is here.
            drop(UntrustedFd::from(socket));
            peers.push(peer);
        }
        // One ring is taken; the other still lies there when the bell goes.
        let _ = receive(bell.as_fd(), &mut [0; 1]);
        drop(bell);
        drop(peers);
    }
}

#[test]
fn all_descriptors_of_a_message_arrive_from_any_sender() {
    let (ours, theirs) = pair(SocketType::SEQPACKET);
    sockopt::set_socket_passcred(&ours, true).expect("credentials");
    let fds = [theirs.as_fd(); 9];
    send(&theirs, b"hello", &fds).expect("sent");
    let mut buf = [0; 3];
    let got = receive(ours.as_fd(), &mut buf).expect("received");
    assert_eq!((got.len, got.fds.len(), got.is_cut), (5, 9, false));
    assert_eq!((&buf, got.sender), (b"hel", Some(PeerCred::own())));
    let nothing = receive(ours.as_fd(), &mut buf).expect_err("nothing more");
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
}
