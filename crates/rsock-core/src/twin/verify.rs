//! Is the process at the meeting point really the other end of this connection?
//!
//! Anyone may publish a name. What counts is what the kernel says: a `sock_diag` look-up of the
//! mirrored addresses gives the inode and the cookie of the socket at the other end, and the peer
//! must claim that very socket. A reused address pair, a name left by a forked child, or a squatter
//! does not pass. Who the process is, `SO_PEERCRED` says (checked by the soft device).

use super::tuple::Tuple;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto,
    socket_with,
};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// What identifies a socket within its network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketId {
    /// Kernel's cookie, unique since boot.
    pub(super) cookie: u64,
    /// Inode, 0 once nobody holds a descriptor.
    pub(super) inode: u32,
}

/// Identity of our own socket.
pub(super) fn own(fd: BorrowedFd<'_>) -> io::Result<SocketId> {
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    // SAFETY: the value holds `len` writable bytes, and both outlive the call.
    let r = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            &raw mut cookie,
            &raw mut len,
        )
    };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    let inode = rustix::fs::fstat(fd)?.st_ino;
    Ok(SocketId { cookie, inode: u32::try_from(inode).unwrap_or(0) })
}

/// Identity of the socket at the other end of `tuple`.
///
/// # Errors
/// `NotFound` if there is none in this network namespace; what the kernel answers.
pub(super) fn other_end(tuple: &Tuple) -> io::Result<SocketId> {
    let socket = diag_socket()?;
    let request = request(tuple.peer, tuple.local);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0u8; 512];
    // The kernel answers within `sendto`: this never waits.
    let (n, _) = recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
    parse(&answer[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

fn diag_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?)
}

const NLMSG_HDR: usize = 16;
const REQ_LEN: usize = 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// Offset of `inet_diag_sockid` in `inet_diag_req_v2`; in `inet_diag_msg` it is 4.
const REQ_ID: usize = 8;
const MSG_ID: usize = 4;
/// In `inet_diag_sockid`: cookie, then in `inet_diag_msg`: five words, the last of them the inode.
const ID_COOKIE: usize = 40;
const ID_LEN: usize = 48;
const MSG_INODE: usize = MSG_ID + ID_LEN + 16;

/// `nlmsghdr` + `inet_diag_req_v2` for one TCP socket with these addresses.
fn request(src: SocketAddr, dst: SocketAddr) -> [u8; NLMSG_HDR + REQ_LEN] {
    let mut m = [0u8; NLMSG_HDR + REQ_LEN];
    let len = u32::try_from(m.len()).unwrap_or(0);
    m[0..4].copy_from_slice(&len.to_ne_bytes());
    m[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    m[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let body = &mut m[NLMSG_HDR..];
    let family = if src.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    body[0] = u8::try_from(family).unwrap_or(0);
    body[1] = u8::try_from(libc::IPPROTO_TCP).unwrap_or(0);
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    let id = &mut body[REQ_ID..];
    id[0..2].copy_from_slice(&src.port().to_be_bytes());
    id[2..4].copy_from_slice(&dst.port().to_be_bytes());
    put_ip(&mut id[4..20], src.ip());
    put_ip(&mut id[20..36], dst.ip());
    id[ID_COOKIE..ID_LEN].fill(0xFF); // INET_DIAG_NOCOOKIE
    m
}

fn put_ip(at: &mut [u8], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => at[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => at[..16].copy_from_slice(&ip.octets()),
    }
}

/// Reads one `inet_diag_msg`.
fn parse(answer: &[u8]) -> Option<SocketId> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let body = answer.get(NLMSG_HDR..)?;
    let cookie = body.get(MSG_ID + ID_COOKIE..MSG_ID + ID_LEN)?;
    let inode = body.get(MSG_INODE..MSG_INODE + 4)?;
    let low = u32::from_ne_bytes(cookie[..4].try_into().ok()?);
    let high = u32::from_ne_bytes(cookie[4..].try_into().ok()?);
    Some(SocketId {
        cookie: u64::from(high) << 32 | u64::from(low),
        inode: u32::from_ne_bytes(inode.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn each_end_finds_the_other_and_nobody_else() {
        for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let port = listener.local_addr().expect("address").port();
            let to =
                if bind == "[::]:0" { "127.0.0.1" } else { bind.rsplit_once(':').expect("port").0 };
            let client = TcpStream::connect(format!("{to}:{port}")).expect("connect");
            let (server, _) = listener.accept().expect("accept");
            let tuple = Tuple::of(client.as_fd()).expect("kernel").expect("tcp");
            assert_eq!(other_end(&tuple).expect("found"), own(server.as_fd()).expect("own"));
            let mirrored = Tuple::of(server.as_fd()).expect("kernel").expect("tcp");
            assert_eq!(other_end(&mirrored).expect("found"), own(client.as_fd()).expect("own"));
            drop(server);
            // Closed: nobody holds it any more (or it is gone altogether).
            assert_eq!(other_end(&tuple).map_or(0, |id| id.inode), 0);
        }
    }

    #[test]
    fn garbage_is_no_socket() {
        for len in 0..96 {
            assert!(parse(&vec![0xFF; len]).is_none());
        }
    }
}
