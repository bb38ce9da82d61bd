//! Two connected sockets, one of which can pass for a connection that this process has.
//!
//! TCP over the addresses of the original, so that a program which asks for its peer's address, or
//! sets an option of TCP, gets an answer; only the port numbers differ. Where a TCP connection
//! cannot be made it is a pair of Unix sockets.

use crate::accelerate::four_tuple::Tuple;
use crate::sys;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, bind, connect,
    getsockname, listen, socket_with, socketpair, sockopt,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The one that can pass for `original`, with its flags and options, and the other end. Both close
/// on exec.
///
/// # Errors
/// When descriptors run out: `EMFILE`, `ENFILE`, `ENOBUFS`.
pub(super) fn pair(original: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let made = match tcp_pair(original) {
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            sys::with_spare_descriptors(|| tcp_pair(original))
        }
        made => made,
    };
    let (near, far) = match made {
        Ok(pair) => pair,
        Err(_) => socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?,
    };
    copy_options(original, near.as_fd());
    let flags = rustix::fs::fcntl_getfl(original)?;
    rustix::fs::fcntl_setfl(&near, flags)?;
    // What the program has put together goes on as it comes.
    let _ = sockopt::set_tcp_nodelay(&far, true);
    Ok((near, far))
}

/// Two TCP sockets connected to each other, at this host's own address `ip`: the first, of the family
/// given, for a program to hold, the second for us. Both close on exec and do not block.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(super) fn placeholder(family: AddressFamily, ip: IpAddr) -> io::Result<(OwnedFd, OwnedFd)> {
    // The program's first: it is to get the lowest number.
    let near = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    let kept = far_end(family, &near, ip);
    match kept {
        Ok(far) => Ok((near, far)),
        Err(e) => {
            sys::close(near);
            Err(e)
        }
    }
}

/// Connects `near`, which is not connected yet, to a socket of ours.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(super) fn far_end(family: AddressFamily, near: &impl AsFd, ip: IpAddr) -> io::Result<OwnedFd> {
    let listener = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    let at = any_port(family, SocketAddr::new(ip, 0));
    let joined = join_bound(&listener, near.as_fd(), at);
    sys::close(listener);
    joined
}

fn tcp_pair(original: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let tuple = Tuple::of(original)?.ok_or(Errno::NOTSOCK)?;
    let family = sockopt::socket_domain(original)?;
    let socket = || socket_with(family, SocketType::STREAM, FLAGS, None);
    let listener = socket()?;
    let near = socket()?;
    let joined =
        join(&listener, &near, any_port(family, tuple.peer), any_port(family, tuple.local));
    sys::close(listener);
    match joined {
        Ok(far) => Ok((near, far)),
        Err(e) => {
            sys::close(near);
            Err(e)
        }
    }
}

/// Connects `near`, at `local`, to `listener`, at `peer`; returns what the listener accepts.
fn join(
    listener: &OwnedFd,
    near: &OwnedFd,
    peer: SocketAddr,
    local: SocketAddr,
) -> io::Result<OwnedFd> {
    bind(near, &local)?;
    join_bound(listener, near.as_fd(), peer)
}

/// The same, from wherever `near` is bound, if it is.
fn join_bound(listener: &OwnedFd, near: BorrowedFd<'_>, peer: SocketAddr) -> io::Result<OwnedFd> {
    bind(listener, &peer)?;
    listen(listener, 1)?;
    match connect(near, &getsockname(listener)?) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    await_one(&near, libc::POLLOUT)?;
    let ours: SocketAddrAny = getsockname(near)?;
    // Anybody may have connected; only one is ours. As many strangers as the queue holds, and ours.
    for _ in 0..4 {
        await_one(listener, libc::POLLIN)?;
        let (far, from) = acceptfrom_with(listener, FLAGS)?;
        if from.as_ref() == Some(&ours) {
            return Ok(far);
        }
        sys::close(far);
    }
    Err(Errno::CONNREFUSED.into())
}

/// Waits for what happens within the kernel of this host, and so at once or not at all.
fn await_one(fd: &impl AsFd, events: i16) -> io::Result<()> {
    const SOON: Duration = Duration::from_millis(100);
    let mut fds = [libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 }];
    sys::ppoll(&mut fds, Some(SOON), None)?;
    if fds[0].revents & events == 0 { Err(Errno::TIMEDOUT.into()) } else { Ok(()) }
}

/// The address with the port left to the kernel, in the form that sockets of `family` want.
fn any_port(family: AddressFamily, at: SocketAddr) -> SocketAddr {
    let ip = match at.ip() {
        IpAddr::V4(ip) if family == AddressFamily::INET6 => IpAddr::V6(ip.to_ipv6_mapped()),
        ip => ip,
    };
    SocketAddr::new(ip, 0)
}

/// What a program may have set and counts on later. An option that cannot be read or set is not.
pub(super) fn copy_options(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    if let Ok(on) = sockopt::tcp_nodelay(from) {
        let _ = sockopt::set_tcp_nodelay(to, on);
    }
    if let Ok(on) = sockopt::socket_keepalive(from) {
        let _ = sockopt::set_socket_keepalive(to, on);
    }
    if let Ok(idle) = sockopt::tcp_keepidle(from) {
        let _ = sockopt::set_tcp_keepidle(to, idle);
    }
    if let Ok(interval) = sockopt::tcp_keepintvl(from) {
        let _ = sockopt::set_tcp_keepintvl(to, interval);
    }
    if let Ok(count) = sockopt::tcp_keepcnt(from) {
        let _ = sockopt::set_tcp_keepcnt(to, count);
    }
    if let Ok(on) = sockopt::socket_oobinline(from) {
        let _ = sockopt::set_socket_oobinline(to, on);
    }
    if let Ok(linger) = sockopt::socket_linger(from) {
        let _ = sockopt::set_socket_linger(to, linger);
    }
    for which in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        if let Ok(timeout) = sockopt::socket_timeout(from, which) {
            let _ = sockopt::set_socket_timeout(to, which, timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_near_one_passes_for_the_original_but_for_its_ports() {
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let port = listener.local_addr().expect("address").port();
            let to = if at == "[::1]:0" { "[::1]" } else { "127.0.0.1" };
            let _client = TcpStream::connect(format!("{to}:{port}")).expect("connect");
            let (server, _) = listener.accept().expect("accept");
            server.set_nodelay(true).expect("option");
            server.set_read_timeout(Some(Duration::from_secs(7))).expect("option");
            sockopt::set_tcp_keepidle(&server, Duration::from_secs(11)).expect("option");
            sockopt::set_tcp_keepintvl(&server, Duration::from_secs(12)).expect("option");
            sockopt::set_tcp_keepcnt(&server, 13).expect("option");
            let (near, far) = pair(server.as_fd()).expect("a pair");
            let near = TcpStream::from(near);
            let far = TcpStream::from(far);
            assert_eq!(
                near.peer_addr().expect("address").ip(),
                server.peer_addr().expect("address").ip()
            );
            assert_eq!(
                near.local_addr().expect("address").ip(),
                server.local_addr().expect("address").ip()
            );
            assert_eq!(near.peer_addr().expect("address"), far.local_addr().expect("address"));
            assert!(near.nodelay().expect("option"));
            assert_eq!(near.read_timeout().expect("option"), Some(Duration::from_secs(7)));
            assert_eq!(sockopt::tcp_keepidle(&near).expect("option"), Duration::from_secs(11));
            assert_eq!(sockopt::tcp_keepintvl(&near).expect("option"), Duration::from_secs(12));
            assert_eq!(sockopt::tcp_keepcnt(&near).expect("option"), 13);
            let flags = rustix::fs::fcntl_getfl(&near).expect("flags");
            assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        }
    }

    #[test]
    fn a_placeholder_is_connected_to_ours_and_nothing_arrives_by_itself() {
        for (family, ip) in [
            (AddressFamily::INET, "127.0.0.1"),
            (AddressFamily::INET6, "127.0.0.1"),
            (AddressFamily::INET6, "::1"),
        ] {
            let Ok((near, far)) = placeholder(family, ip.parse().expect("address")) else {
                assert_eq!(ip, "::1", "{family:?}");
                continue;
            };
            assert_eq!(sockopt::socket_domain(&near).expect("option"), family);
            let (near, far) = (TcpStream::from(near), TcpStream::from(far));
            assert_eq!(near.peer_addr().expect("address"), far.local_addr().expect("address"));
            assert_eq!(far.peer_addr().expect("address"), near.local_addr().expect("address"));
            let nothing = near.peek(&mut [0]).expect_err("nothing to read");
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        }
    }
}
