//! Verification: is the process at the meeting point really the other end of this connection?
//!
//! Any process may publish a name, so the kernel decides: a `sock_diag` look-up of the mirrored
//! addresses gives the inode and the cookie of the socket at the other end, and the peer must claim
//! that very socket. Neither a reused address pair nor a name left by a forked child passes, nor
//! does another user's process: `SO_PEERCRED` says which process the peer is (checked by the soft
//! device). A process of the same user that asks the kernel the same question can pass: see
//! `SECURITY.md`.

use crate::accelerate::diag_socket;
use crate::accelerate::four_tuple::FourTuple;
use rsock_verbs::raw;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// What identifies a socket within its network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::accelerate) struct SocketId {
    /// The kernel's cookie, unique since boot.
    pub(in crate::accelerate) cookie: u64,
    /// The inode, 0 once no process holds a descriptor.
    pub(in crate::accelerate) inode: u32,
}

/// Identity of the local socket.
pub(in crate::accelerate) fn own(fd: BorrowedFd<'_>) -> io::Result<SocketId> {
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    // SAFETY: the value holds `len` writable bytes, and both outlive the call.
    unsafe {
        raw::syscall!(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            &raw mut cookie,
            &raw mut len,
        )
    }?;
    let inode = rustix::fs::fstat(fd)?.st_ino;
    Ok(SocketId { cookie, inode: u32::try_from(inode).unwrap_or(0) })
}

/// Identity of the socket at the other end of `tuple`.
///
/// # Errors
/// `NotFound` if there is none in this network namespace; what the kernel answers.
pub(in crate::accelerate) fn other_end(tuple: &FourTuple) -> io::Result<SocketId> {
    let mut answer = [0u8; ANSWER_LEN];
    let n = ask(tuple, &mut answer, |_| true)?;
    parse(&answer[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Whether the socket with this `cookie` that was at the other end of `tuple` is not read from any
/// more: it has been closed, or shut down for both directions. A half-closed socket is still read
/// from.
///
/// # Errors
/// What the kernel answers.
pub(in crate::accelerate) fn is_closed(tuple: &FourTuple, cookie: u64) -> io::Result<bool> {
    let mut answer = [0u8; ANSWER_LEN];
    let n = ask(tuple, &mut answer, |found| found.cookie == cookie)?;
    let answer = &answer[..n];
    Ok(parse(answer).is_none_or(|found| {
        // The kernel finds a listener at that address in place of a socket that is gone altogether,
        // and the same addresses may belong to another connection by now. A socket that is being
        // closed still has its inode for a moment after its end has arrived here.
        found.cookie != cookie || found.inode == 0 || shutdown_of(answer) == Some(SHUTDOWN_MASK)
    }))
}

/// Asks the kernel for the socket at the other end of `tuple`, which is expected to be there and to
/// be one of which `is_expected` holds. Returns the length of the answer.
fn ask(
    tuple: &FourTuple,
    answer: &mut [u8; ANSWER_LEN],
    is_expected: impl Fn(SocketId) -> bool,
) -> io::Result<usize> {
    let mut request = request(tuple.peer, tuple.local);
    diag_socket::ask(&mut request, answer, |answer| parse(answer).is_some_and(&is_expected))
}

const ANSWER_LEN: usize = 512;
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
/// Bytes of `inet_diag_msg`; attributes follow.
const MSG_LEN: usize = MSG_INODE + 4;
const INET_DIAG_SHUTDOWN: u16 = 8;
/// Both directions (Linux, `include/net/sock.h`).
const SHUTDOWN_MASK: u8 = 3;

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

/// The directions that the socket of an answer has shut down, by its attributes (`rtattr`: length,
/// kind, value; each at a multiple of four bytes).
fn shutdown_of(answer: &[u8]) -> Option<u8> {
    let mut rest = answer.get(NLMSG_HDR + MSG_LEN..)?;
    loop {
        let len = usize::from(u16::from_ne_bytes(rest.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        if kind == INET_DIAG_SHUTDOWN {
            return rest.get(4).copied();
        }
        // At least the length of the header, or this loop would never end.
        rest = rest.get(len.max(4).next_multiple_of(4)..)?;
    }
}

/// What the fuzzer calls: an answer of any bytes; what is found in it must lie in it.
///
/// # Panics
/// If it does not.
#[cfg(any(test, fuzzing))]
pub fn check_answer(answer: &[u8]) {
    if let Some(found) = parse(answer) {
        let has = |bytes: &[u8]| answer.windows(bytes.len()).any(|window| window == bytes);
        assert!(has(&found.cookie.to_ne_bytes()) && has(&found.inode.to_ne_bytes()));
        // The same without the attributes, and nothing if a byte is missing.
        assert_eq!(parse(&answer[..NLMSG_HDR + MSG_LEN]), Some(found));
        assert_eq!(parse(&answer[..NLMSG_HDR + MSG_LEN - 1]), None);
    }
    if let Some(shutdown) = shutdown_of(answer) {
        assert!(answer[NLMSG_HDR + MSG_LEN..].contains(&shutdown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn each_end_finds_exactly_the_other() {
        for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let port = listener.local_addr().expect("address").port();
            let to =
                if bind == "[::]:0" { "127.0.0.1" } else { bind.rsplit_once(':').expect("port").0 };
            let client = TcpStream::connect(format!("{to}:{port}")).expect("connect");
            let (server, _) = listener.accept().expect("accept");
            let tuple = FourTuple::of(client.as_fd()).expect("kernel").expect("tcp");
            assert_eq!(other_end(&tuple).expect("found"), own(server.as_fd()).expect("own"));
            let mirrored = FourTuple::of(server.as_fd()).expect("kernel").expect("tcp");
            assert_eq!(other_end(&mirrored).expect("found"), own(client.as_fd()).expect("own"));
            drop(server);
            // Closed: no process holds it any more (or it is gone altogether).
            assert_eq!(other_end(&tuple).map_or(0, |id| id.inode), 0);
        }
    }

    /// A connection as its client sees it, and the cookie of its server's socket.
    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream, FourTuple, u64) {
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        let tuple = FourTuple::of(client.as_fd()).expect("kernel").expect("tcp");
        let cookie = own(server.as_fd()).expect("own").cookie;
        (client, server, tuple, cookie)
    }

    #[test]
    fn a_socket_counts_as_closed_once_it_is_not_read_from() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let (_client, server, tuple, cookie) = connect(&listener);
        assert!(!is_closed(&tuple, cookie).expect("kernel"));
        server.shutdown(Shutdown::Write).expect("shutdown");
        assert!(!is_closed(&tuple, cookie).expect("kernel"), "it still reads");
        server.shutdown(Shutdown::Read).expect("shutdown");
        assert!(is_closed(&tuple, cookie).expect("kernel"));
        drop(server);
        assert!(is_closed(&tuple, cookie).expect("kernel"));
    }

    #[test]
    fn a_listener_at_the_same_address_is_not_taken_for_the_closed_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let (client, server, tuple, cookie) = connect(&listener);
        client.shutdown(Shutdown::Write).expect("shutdown");
        // The second end to close: nothing of it stays behind, and the kernel finds the listener.
        drop(server);
        assert!(is_closed(&tuple, cookie).expect("kernel"));
        assert!(other_end(&tuple).is_ok_and(|found| found.inode != 0), "the listener");
    }

    #[test]
    fn garbage_is_not_taken_for_a_socket() {
        for len in 0..96 {
            assert!(parse(&vec![0xFF; len]).is_none());
            assert!(shutdown_of(&vec![0xFF; len]).is_none());
            assert!(shutdown_of(&vec![0; len]).is_none());
        }
    }
}
