//! Which UDP sockets are bound to a port, as the kernel reports it (`sock_diag(7)`).
//!
//! A datagram may bypass the kernel only if it is certain which socket the kernel would deliver it
//! to. That is certain where a single socket is bound to the port.

use rustix::fd::OwnedFd;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A socket that is bound to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoundSocket {
    /// The address that it is bound to; mapped IPv4 addresses as IPv4.
    ip: IpAddr,
    /// The user that owns it, as the local user namespace numbers users.
    uid: u32,
    inode: u32,
}

const NLMSG_HDR: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQ_LEN: usize = 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const FLAGS: u16 = 0x301;
/// Where `inet_diag_sockid` begins in `inet_diag_req_v2`, and in `inet_diag_msg`.
const REQ_ID: usize = 8;
const MSG_ID: usize = 4;
/// Where the user and the inode are in `inet_diag_msg`.
const MSG_UID: usize = MSG_ID + 48 + 12;
const MSG_INODE: usize = MSG_ID + 48 + 16;

/// Whether the socket with `inode` is the only one that can receive datagrams for `local`, which
/// may be a wildcard address.
///
/// # Errors
/// The kernel's error, for instance where it does not support the query.
pub(crate) fn is_only_receiver(local: SocketAddr, inode: u64) -> io::Result<bool> {
    let mut is_there = false;
    for family in [libc::AF_INET, libc::AF_INET6] {
        for socket in dump(family, local.port())? {
            let may_receive = socket.ip == local.ip()
                || socket.ip.is_unspecified()
                || local.ip().is_unspecified();
            if may_receive && u64::from(socket.inode) != inode {
                return Ok(false);
            }
            is_there |= may_receive;
        }
    }
    Ok(is_there)
}

/// Whether user `uid` owns a socket that may send from the canonical local address `at`.
///
/// # Errors
/// As [`is_only_receiver`].
pub(crate) fn is_owned_by(at: SocketAddr, uid: u32) -> io::Result<bool> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let is_it = |socket: &BoundSocket| {
            socket.uid == uid && (socket.ip == at.ip() || socket.ip.is_unspecified())
        };
        if dump(family, at.port())?.iter().any(is_it) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn dump(family: i32, port: u16) -> io::Result<Vec<BoundSocket>> {
    let socket: OwnedFd = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    sendto(&socket, &request(family, port), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut found = Vec::new();
    let mut answer = vec![0; 32 << 10];
    loop {
        // The kernel has answered when `sendto` returns: this never waits.
        let (n, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
        if parse(&answer[..n], &mut found)? {
            return Ok(found);
        }
    }
}

/// `nlmsghdr` and `inet_diag_req_v2` for every UDP socket of a family with this port.
fn request(family: i32, port: u16) -> [u8; NLMSG_HDR + REQ_LEN] {
    let mut m = [0u8; NLMSG_HDR + REQ_LEN];
    let len = u32::try_from(m.len()).unwrap_or(0);
    m[0..4].copy_from_slice(&len.to_ne_bytes());
    m[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    m[6..8].copy_from_slice(&FLAGS.to_ne_bytes());
    let body = &mut m[NLMSG_HDR..];
    body[0] = u8::try_from(family).unwrap_or(0);
    body[1] = u8::try_from(libc::IPPROTO_UDP).unwrap_or(0);
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    body[REQ_ID..REQ_ID + 2].copy_from_slice(&port.to_be_bytes());
    body[REQ_ID + 40..REQ_ID + 48].fill(0xFF); // INET_DIAG_NOCOOKIE
    m
}

/// Parses the messages of one answer. True if it was the last.
fn parse(mut answer: &[u8], found: &mut Vec<BoundSocket>) -> io::Result<bool> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let word =
        |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    while !answer.is_empty() {
        let len = word(answer, 0).and_then(|n| usize::try_from(n).ok()).ok_or_else(malformed)?;
        let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
        let message = answer.get(..len).filter(|m| m.len() >= NLMSG_HDR).ok_or_else(malformed)?;
        let body = &message[NLMSG_HDR..];
        match kind {
            Some(NLMSG_DONE) => return Ok(true),
            Some(SOCK_DIAG_BY_FAMILY) => {
                let ip = address(body).ok_or_else(malformed)?;
                let inode = word(body, MSG_INODE).ok_or_else(malformed)?;
                let uid = word(body, MSG_UID).ok_or_else(malformed)?;
                found.push(BoundSocket { ip, uid, inode });
            }
            Some(NLMSG_ERROR) => {
                let code = word(body, 0).map_or(libc::EIO, |e| e.cast_signed().wrapping_neg());
                return Err(io::Error::from_raw_os_error(code));
            }
            _ => return Err(malformed()),
        }
        answer = answer.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

/// The local address in an `inet_diag_msg`.
fn address(body: &[u8]) -> Option<IpAddr> {
    let at = MSG_ID + 4;
    let bytes: [u8; 16] = body.get(at..at + 16)?.try_into().ok()?;
    Some(if i32::from(*body.first()?) == libc::AF_INET {
        Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()
    } else {
        Ipv6Addr::from(bytes).to_canonical()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    fn inode(socket: &UdpSocket) -> u64 {
        rustix::fs::fstat(socket.as_fd()).expect("inode").st_ino
    }

    #[test]
    fn a_socket_that_is_alone_on_its_port_is_the_only_receiver() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(socket) = UdpSocket::bind(bind) else { continue };
            let local = socket.local_addr().expect("address");
            assert!(is_only_receiver(local, inode(&socket)).expect("an answer"), "{bind}");
            assert!(!is_only_receiver(local, inode(&socket) + 1).expect("an answer"), "{bind}");
            drop(socket);
            assert!(!is_only_receiver(local, 1).expect("an answer"), "{bind}");
        }
    }

    #[test]
    fn a_second_socket_on_the_port_is_found() {
        use rustix::net::sockopt::set_socket_reuseaddr;
        let open = |to: SocketAddr| {
            let family = AddressFamily::INET;
            let socket =
                socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).expect("socket");
            set_socket_reuseaddr(&socket, true).expect("option");
            rustix::net::bind(&socket, &to).expect("bind");
            UdpSocket::from(socket)
        };
        let first = open("127.0.0.1:0".parse().expect("address"));
        let local = first.local_addr().expect("address");
        assert!(is_only_receiver(local, inode(&first)).expect("an answer"));
        let second = open(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()));
        assert!(!is_only_receiver(local, inode(&first)).expect("an answer"));
        assert!(!is_only_receiver(local, inode(&second)).expect("an answer"));
        drop(second);
        assert!(is_only_receiver(local, inode(&first)).expect("an answer"));
    }

    #[test]
    fn garbage_is_not_parsed() {
        for len in 1..64 {
            assert!(parse(&vec![0xFF; len], &mut Vec::new()).is_err());
            assert!(parse(&vec![0; len], &mut Vec::new()).is_err());
        }
    }
}
