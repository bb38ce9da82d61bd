//! The four-tuple of a TCP connection: both addresses and both ports, as both ends see them.

use rsock_verbs::soft::ConnectionKey;
use rustix::fd::BorrowedFd;
use rustix::net::{SocketAddrAny, getpeername, getsockname};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The four-tuple of a connection, from this end's point of view. IPv4-mapped addresses are
/// unmapped: a `::` listener sees its IPv4 client as `::ffff:a.b.c.d`, the client sees plain IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::accelerate) struct FourTuple {
    pub(in crate::accelerate) local: SocketAddr,
    pub(in crate::accelerate) peer: SocketAddr,
}

/// What an end does in local discovery. Decided by comparing addresses, so both ends agree without
/// a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::accelerate) enum Role {
    /// Publishes a meeting point and waits for the peer to connect.
    Publisher,
    /// Connects to the meeting point.
    Finder,
}

impl FourTuple {
    /// Asks the kernel. `Ok(None)` if the socket has no TCP/IP connection.
    pub(in crate::accelerate) fn of(fd: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let local = ip(getsockname(fd)?);
        let peer = getpeername(fd)?.and_then(ip);
        Ok(local.zip(peer).map(|(local, peer)| Self { local, peer }))
    }

    /// The role of this end; `None` for a socket connected to itself.
    pub(in crate::accelerate) fn role(&self) -> Option<Role> {
        let key = |at: SocketAddr| (at.ip(), at.port());
        match key(self.local).cmp(&key(self.peer)) {
            std::cmp::Ordering::Less => Some(Role::Publisher),
            std::cmp::Ordering::Greater => Some(Role::Finder),
            std::cmp::Ordering::Equal => None,
        }
    }

    /// The ends in the order that both agree on: the publisher's first.
    fn in_order(&self) -> [SocketAddr; 2] {
        match self.role() {
            Some(Role::Publisher) => [self.local, self.peer],
            _ => [self.peer, self.local],
        }
    }

    /// Names the connection in the memory of a link: the same at both ends, and never zero.
    pub(in crate::accelerate) fn key(&self) -> ConnectionKey {
        let [low, high] = self.in_order();
        let [[a, b], [c, d]] = [low.ip(), high.ip()].map(|ip| {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let bits = ip.to_bits();
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            [(bits >> 64) as u64, bits as u64]
        });
        [a, b, c, d, u64::from(low.port()) << 16 | u64::from(high.port())]
    }

    /// The name of the meeting point in the abstract Unix namespace: the same at both ends. At most
    /// 13 + 2 * 36 characters of the 107 there are.
    pub(in crate::accelerate) fn meeting_name(&self) -> String {
        let mut name = String::from("rsock-pair-1-");
        for end in self.in_order() {
            match end.ip() {
                IpAddr::V4(ip) => ip.octets().iter().for_each(|b| push_hex(&mut name, *b)),
                IpAddr::V6(ip) => ip.octets().iter().for_each(|b| push_hex(&mut name, *b)),
            }
            end.port().to_be_bytes().iter().for_each(|b| push_hex(&mut name, *b));
        }
        name
    }

    /// Whether both ends have the same address, or the peer's is one of the loopback device.
    pub(in crate::accelerate) fn is_within_host(&self) -> bool {
        self.local.ip() == self.peer.ip() || self.peer.ip().is_loopback()
    }

    /// Whether the peer's address belongs to this host (strictly: to this network namespace).
    pub(in crate::accelerate) fn is_local(&self) -> bool {
        if self.is_within_host() {
            return true;
        }
        // Only an address of this host can be bound.
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
        let family = if self.peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let Ok(probe) = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None) else {
            return false;
        };
        bind(&probe, &SocketAddr::new(self.peer.ip(), 0)).is_ok()
    }
}

fn push_hex(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn ip(any: SocketAddrAny) -> Option<SocketAddr> {
    let addr = SocketAddr::try_from(any).ok()?;
    // Flow label and scope do not name the connection.
    Some(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn both_ends_agree_on_the_name_and_differ_in_role() {
        for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let port = listener.local_addr().expect("address").port();
            let to =
                if bind == "[::]:0" { "127.0.0.1" } else { bind.rsplit_once(':').expect("port").0 };
            let client = TcpStream::connect(format!("{to}:{port}")).expect("connect");
            let (server, _) = listener.accept().expect("accept");
            let a = FourTuple::of(client.as_fd()).expect("kernel").expect("tcp");
            let b = FourTuple::of(server.as_fd()).expect("kernel").expect("tcp");
            assert_eq!(a.meeting_name(), b.meeting_name());
            assert_eq!(a.key(), b.key());
            assert_ne!(
                a.key(),
                FourTuple { peer: listener.local_addr().expect("address"), ..b }.key()
            );
            assert!(a.meeting_name().len() < 107);
            assert_ne!(a.role(), b.role());
            assert!(a.is_local() && b.is_local());
        }
    }

    #[test]
    fn a_documentation_address_is_not_local() {
        let local = "127.0.0.1:1".parse().expect("address");
        let peer = "192.0.2.1:1".parse().expect("address");
        let tuple = FourTuple { local, peer };
        assert!(!tuple.is_local() && !tuple.is_within_host());
    }
}
