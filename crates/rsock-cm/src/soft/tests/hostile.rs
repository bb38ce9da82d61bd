//! Peers that violate the handshake: raw sockets against a listener, and a raw listener against a
//! connector.

use super::super::wire::{Bare, Hello, LinkHalf, Reply, RequestMessage, VERSION, Welcome};
use super::super::{message_socket, wire};
use super::*;
use crate::Violation;
use crate::addr::{connect_names, listen_name};
use rsock_verbs::soft::{HELLO_LEN, LinkId};
use rsock_verbs::untrusted::PeerSocket;
use rustix::net::{self, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use zerocopy::IntoBytes;

/// A socket connected to `listener` that has sent nothing.
pub(super) fn raw_client(listener: &SoftListener) -> PeerSocket {
    let socket = message_socket::socket().expect("socket");
    let name = &connect_names(PortSpace::Tcp, listener.local_addr())[0];
    net::connect(&socket, &message_socket::name(name).expect("name")).expect("connect");
    socket
}

fn send(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).expect("send");
}

fn hello(to: SocketAddr) -> Hello {
    let mut hello = Hello::new(PortSpace::Tcp as u16, addr("127.0.0.1:9"), to);
    hello.set_link(Some(LinkId([7; 16])));
    hello
}

fn next(listener: &mut SoftListener) -> SoftEvent {
    loop {
        if let Some(event) = listener.try_next(Instant::now()).expect("listener") {
            return event;
        }
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
    }
}

/// Lets the listener take what is there, without an event.
pub(super) fn settle(listener: &mut SoftListener) {
    assert!(listener.try_next(Instant::now()).expect("listener").is_none());
}

pub(super) fn refusal(listener: &mut SoftListener) -> Error {
    match next(listener) {
        SoftEvent::Refused(error) | SoftEvent::Abandoned { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

fn violation(error: Error) -> Violation {
    match error {
        Error::PeerViolation(violation) => violation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_bad_first_message_is_refused_for_its_own_reason() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    let good = hello(listener.local_addr());
    let altered = |at: usize, value: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = value;
        bytes
    };
    let other_port = hello(addr("127.0.0.1:1"));
    let other_ip = hello(addr(&format!("127.0.0.2:{}", listener.local_addr().port())));
    let null = std::fs::File::open("/dev/null").expect("null");
    let one = [null.as_fd()];
    let many = [null.as_fd(); 9];
    let ready = Bare::new(Kind::Ready);
    let cases: &[(&[u8], &[BorrowedFd<'_>], Violation)] = &[
        (b"x", &[], Violation::Length),
        (&good.as_bytes()[..7], &[], Violation::Length),
        (&good.as_bytes()[..20], &[], Violation::Length),
        (&[good.as_bytes(), b"!"].concat(), &[], Violation::Length),
        (&[0x55; 4000], &[], Violation::Length),
        (&[0x55; 100], &[], Violation::Magic),
        (ready.as_bytes(), &[], Violation::Kind(Kind::Ready as u16)),
        (good.as_bytes(), &one, Violation::Descriptors),
        (good.as_bytes(), &many, Violation::Descriptors),
        // Port space, then the family of the source address.
        (&altered(8, 0x11), &[], Violation::Address),
        (&altered(12, 5), &[], Violation::Address),
        (other_port.as_bytes(), &[], Violation::Address),
        (other_ip.as_bytes(), &[], Violation::Address),
    ];
    for (i, (bytes, fds, expected)) in cases.iter().enumerate() {
        let client = raw_client(&listener);
        send(&client, bytes, fds);
        assert_eq!(violation(refusal(&mut listener)), *expected, "case {i}");
        assert_eq!(listener.n_pending(), 0);
    }
    let client = connect(listener.local_addr());
    let _ = establish(&mut listener, client);
}

#[test]
fn a_client_of_another_version_gets_the_listeners_version() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    let client = raw_client(&listener);
    let mut bytes = hello(listener.local_addr()).as_bytes().to_vec();
    bytes[4] = 0xFE;
    send(&client, &bytes, &[]);
    assert!(matches!(refusal(&mut listener), Error::PeerVersion { version: 0xFE }));
    let mut answer = [0; 256];
    let (_, len) = net::recv(&client, &mut answer, net::RecvFlags::empty()).expect("answer");
    assert_eq!(wire::kind(&answer[..len]).expect("header"), Kind::Reject as u16);
    assert_eq!(u16::from_le_bytes([answer[4], answer[5]]), VERSION);
}

#[test]
fn messages_out_of_order_and_false_claims_are_refused() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    let request = RequestMessage::new(QpNum(1), &[]).expect("fits");
    let after_welcome = |listener: &mut SoftListener| {
        let client = raw_client(listener);
        send(&client, hello(listener.local_addr()).as_bytes(), &[]);
        settle(listener);
        client
    };

    let client = after_welcome(&mut listener);
    send(&client, request.as_bytes(), &[]);
    let kind = Violation::Kind(Kind::Request as u16);
    assert_eq!(violation(refusal(&mut listener)), kind, "no link was made");

    let client = after_welcome(&mut listener);
    send(&client, LinkHalf::new(Kind::Offer, [0; HELLO_LEN]).as_bytes(), &[]);
    assert!(matches!(refusal(&mut listener), Error::Device(_)), "a link without memory");

    let client = after_welcome(&mut listener);
    let null = std::fs::File::open("/dev/null").expect("null");
    let offer = LinkHalf::new(Kind::Offer, [0xAA; HELLO_LEN]);
    send(&client, offer.as_bytes(), &[null.as_fd(), null.as_fd(), null.as_fd()]);
    assert!(matches!(refusal(&mut listener), Error::Device(_)), "one descriptor too many");

    let client = after_welcome(&mut listener);
    drop(client);
    assert!(matches!(refusal(&mut listener), Error::PeerGone));
    assert_eq!(listener.n_pending(), 0);
}

#[test]
fn silent_clients_delay_no_other_and_lose_their_place_when_it_is_needed() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 64);
    let silent: Vec<_> = (0..63).map(|_| raw_client(&listener)).collect();
    settle(&mut listener);
    let client = connect(listener.local_addr());
    let _ = establish(&mut listener, client);
    assert_eq!(listener.n_pending(), silent.len());

    // Now every place is taken, and one more client connects.
    let _last = raw_client(&listener);
    settle(&mut listener);
    let mut client = connect(listener.local_addr());
    assert_eq!(listener.n_pending(), 64);
    settle(&mut listener);
    assert!(matches!(client.progress(Instant::now()), Ok(SoftProgress::Pending)));
    // The listener's own timer ends the wait.
    assert!(matches!(refusal(&mut listener), Error::TimedOut));
    let _ = establish(&mut listener, client);
}

/// A client that is accepted and never sends READY.
#[test]
fn accepted_clients_that_never_go_on_lose_their_place_too() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 64);
    let mut stuck = Vec::new();
    for _ in 0..64 {
        let mut client = connect(listener.local_addr());
        loop {
            match drive(&mut listener, &mut client) {
                Either::Client(Ok(SoftProgress::Path(..))) => {
                    client.send_request(QpNum(1), &[]).expect("request");
                }
                Either::Client(Ok(SoftProgress::Accepted(_))) => break,
                Either::Server(SoftEvent::Request(r)) => {
                    listener.accept(r.id, QpNum(2), &[]).expect("accept");
                }
                _ => panic!("unexpected"),
            }
        }
        stuck.push(client);
    }
    let client = connect(listener.local_addr());
    settle(&mut listener);
    assert!(matches!(refusal(&mut listener), Error::TimedOut));
    let _ = establish(&mut listener, client);
}

/// A listener that sends arbitrary messages.
struct Impostor {
    socket: PeerSocket,
    at: SocketAddr,
    _port: Arc<Port>,
}

impl Impostor {
    fn new() -> Self {
        let port = port("127.0.0.1:0");
        let at = port.local_addr().expect("name");
        let socket = message_socket::socket().expect("socket");
        let name = listen_name(PortSpace::Tcp, at, false);
        net::bind(&socket, &message_socket::name(&name).expect("name")).expect("bind");
        net::listen(&socket, 4).expect("listen");
        Self { socket, at, _port: port }
    }

    /// A client that has sent its HELLO, and the accepted socket.
    fn client(&self) -> (SoftConnecting, OwnedFd) {
        let client = connect(self.at);
        let accepted = net::accept(&self.socket).expect("accept");
        let mut hello = [0; 512];
        net::recv(&accepted, &mut hello, net::RecvFlags::empty()).expect("hello");
        (client, accepted)
    }
}

#[test]
fn a_malformed_answer_fails_the_connect_with_a_typed_error() {
    let _watchdog = watchdog();
    let impostor = Impostor::new();
    let welcome = Welcome::new(false);
    let null = std::fs::File::open("/dev/null").expect("null");
    let one = [null.as_fd()];
    let ready = Bare::new(Kind::Ready);
    let mut other_version = welcome.as_bytes().to_vec();
    other_version[4] = 9;

    let cases: &[(&[u8], &[BorrowedFd<'_>], Violation)] = &[
        (b"short", &[], Violation::Length),
        (&[0; 64], &[], Violation::Magic),
        (&welcome.as_bytes()[..10], &[], Violation::Length),
        (welcome.as_bytes(), &one, Violation::Descriptors),
        (ready.as_bytes(), &[], Violation::Kind(Kind::Ready as u16)),
    ];
    for (bytes, fds, expected) in cases {
        let (mut client, accepted) = impostor.client();
        send(&accepted, bytes, fds);
        let error = client.progress(Instant::now()).expect_err("a lie");
        assert_eq!(violation(error), *expected);
    }

    let (mut client, accepted) = impostor.client();
    send(&accepted, &other_version, &[]);
    let error = client.progress(Instant::now()).expect_err("version");
    assert!(matches!(error, Error::PeerVersion { version: 9 }));
    assert_eq!(errno(error), Some(libc::ENOTSUP));

    // An offer is answered with too few descriptors.
    let (mut client, accepted) = impostor.client();
    send(&accepted, welcome.as_bytes(), &[]);
    assert!(matches!(client.progress(Instant::now()), Ok(SoftProgress::Pending)));
    send(&accepted, LinkHalf::new(Kind::Linked, [0; HELLO_LEN]).as_bytes(), &[]);
    assert!(matches!(client.progress(Instant::now()), Err(Error::Device(_))));

    let (mut client, accepted) = impostor.client();
    drop(accepted);
    assert!(matches!(client.progress(Instant::now()), Err(Error::Refused)));
}

/// In a process of its own: one that has no link, not even to itself.
#[test]
fn a_listener_that_claims_a_link_that_does_not_exist_is_refused() {
    let _watchdog = watchdog();
    let child = processes::in_child(|| {
        let (mut client, accepted) = Impostor::new().client();
        send(&accepted, Welcome::new(true).as_bytes(), &[]);
        let error = client.progress(Instant::now()).expect_err("no link");
        violation(error) == Violation::Link
    });
    assert_eq!(processes::wait_for(child), 0);
}

#[test]
fn a_queue_pair_number_out_of_range_is_a_violation() {
    let reply = Reply::new(QpNum(1 << 24), &[]).expect("fits");
    let parsed: Reply = wire::parse(reply.as_bytes(), Kind::Reply).expect("parses");
    assert_eq!(violation(parsed.qp_num().expect_err("range")), Violation::Value);
}
