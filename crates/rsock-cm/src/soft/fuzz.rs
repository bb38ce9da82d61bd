//! Entry points of the fuzzers: messages of the handshake as any process may send them.

use super::message_socket::MessageSocket;
use super::wire::{
    Bare, Hello, Kind, LinkHalf, MAX_LEN, Reject, Reply, RequestMessage, Welcome, WireAddr, kind,
    parse,
};
use crate::error::Error;
use rsock_verbs::untrusted::PeerSocket;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::fmt::Debug;
use std::os::fd::AsFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A message, sent through a socket; the first byte says how many descriptors come with it.
///
/// # Panics
/// If a message is parsed differently from how it was sent.
pub fn wire(data: &[u8]) {
    let Some((&n_fds, bytes)) = data.split_first() else { return };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((receiver, sender)) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
    else {
        return;
    };
    let [receiver, sender] =
        [receiver, sender].map(|socket| MessageSocket::new(PeerSocket::new(socket)));
    let Ok(file) = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) else {
        return;
    };
    let fds = [file.as_fd(); 4];
    if sender.send(bytes, &fds[..usize::from(n_fds) % 5]).is_err() {
        return;
    }
    match receiver.receive() {
        Ok(Some(received)) => {
            assert_eq!((received.bytes(), received.fds.len()), (bytes, usize::from(n_fds) % 5));
            message(received.bytes());
        }
        Ok(None) => panic!("it was sent"),
        Err(Error::PeerGone) => assert!(bytes.is_empty()),
        Err(_) => assert!(bytes.len() > MAX_LEN),
    }
}

/// Parses a message as every kind.
fn message(bytes: &[u8]) {
    if let Some(hello) = same::<Hello>(bytes, Kind::Hello) {
        address(&hello.source);
        address(&hello.dest);
        assert!(hello.link().is_none_or(|link| link.0 != [0; 16]));
    }
    same::<Welcome>(bytes, Kind::Welcome);
    same::<LinkHalf>(bytes, Kind::Offer);
    same::<LinkHalf>(bytes, Kind::Linked);
    if let Some(request) = same::<RequestMessage>(bytes, Kind::Request) {
        assert!(request.qp_num().is_ok_and(|n| n.0 < 1 << 24) || request.qp_num().is_err());
        assert!(request.private_data().is_ok());
    }
    if let Some(reply) = same::<Reply>(bytes, Kind::Reply) {
        assert!(reply.qp_num().is_ok_and(|n| n.0 < 1 << 24) || reply.qp_num().is_err());
        assert!(reply.private_data().is_ok());
    }
    if let Some(reject) = same::<Reject>(bytes, Kind::Reject) {
        assert!(reject.private_data().is_ok());
    }
    for bare in [Kind::Ready, Kind::Disconnect, Kind::Reset] {
        same::<Bare>(bytes, bare);
    }
}

/// Parses the message as one of kind `expected`, and checks that it encodes to the same bytes.
fn same<T>(bytes: &[u8], expected: Kind) -> Option<T>
where
    T: FromBytes + IntoBytes + Immutable + Debug,
{
    let message = parse::<T>(bytes, expected).ok()?;
    assert_eq!(message.as_bytes(), bytes);
    assert!(kind(bytes).is_ok_and(|number| number == expected as u16));
    Some(message)
}

fn address(wire: &WireAddr) {
    if let Ok(addr) = wire.parse() {
        assert!(addr.port() != 0 && !addr.ip().is_unspecified());
        assert!(WireAddr::new(addr).parse().is_ok_and(|again| again == addr));
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/driver.rs"]
mod driver;

#[cfg(test)]
mod tests {
    use super::driver;

    #[test]
    fn messages_of_the_handshake_pass() {
        driver::run("cm_wire", 10_000, super::wire);
    }
}
