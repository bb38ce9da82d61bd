//! Two connected sockets, of which the program gets one in place of a connection (a *socket proxy*,
//! or a placeholder), and rsock keeps the other.
//!
//! They are TCP sockets with the addresses of the original, so that a program that asks for its
//! peer's address, or sets an option of TCP, gets an answer; only the port numbers differ. Where a
//! TCP connection cannot be made they are a pair of Unix sockets.

use crate::accelerate::four_tuple::FourTuple;
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

/// A socket for the program in place of `original`, with the flags and options of it, and the other
/// end. Both close on exec.
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
    let (program, kept) = match made {
        Ok(pair) => pair,
        Err(_) => socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?,
    };
    copy_options(original, program.as_fd());
    let flags = rustix::fs::fcntl_getfl(original)?;
    rustix::fs::fcntl_setfl(&program, flags)?;
    // Data that the program sent in one piece is passed on without delay.
    let _ = sockopt::set_tcp_nodelay(&kept, true);
    Ok((program, kept))
}

/// Two TCP sockets connected to each other, at this host's own address `ip`: the first, of the
/// family given, for the program to hold, the second for rsock. Both close on exec and do not
/// block.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(super) fn placeholder(family: AddressFamily, ip: IpAddr) -> io::Result<(OwnedFd, OwnedFd)> {
    // The program's socket first, so that it gets the lowest number.
    let program = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    let kept = connect_kept_end(family, &program, ip);
    match kept {
        Ok(kept) => Ok((program, kept)),
        Err(e) => {
            sys::close(program);
            Err(e)
        }
    }
}

/// Connects `program`, which is not connected yet, to a new socket that rsock keeps.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(super) fn connect_kept_end(
    family: AddressFamily,
    program: &impl AsFd,
    ip: IpAddr,
) -> io::Result<OwnedFd> {
    let listener = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    let at = any_port(family, SocketAddr::new(ip, 0));
    let joined = join_bound(&listener, program.as_fd(), at);
    sys::close(listener);
    joined
}

fn tcp_pair(original: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let tuple = FourTuple::of(original)?.ok_or(Errno::NOTSOCK)?;
    let family = sockopt::socket_domain(original)?;
    let socket = || socket_with(family, SocketType::STREAM, FLAGS, None);
    let listener = socket()?;
    let program = socket()?;
    let joined =
        join(&listener, &program, any_port(family, tuple.peer), any_port(family, tuple.local));
    sys::close(listener);
    match joined {
        Ok(kept) => Ok((program, kept)),
        Err(e) => {
            sys::close(program);
            Err(e)
        }
    }
}

/// Connects `program`, at `local`, to `listener`, at `peer`; returns the socket that the listener
/// accepts.
fn join(
    listener: &OwnedFd,
    program: &OwnedFd,
    peer: SocketAddr,
    local: SocketAddr,
) -> io::Result<OwnedFd> {
    bind(program, &local)?;
    join_bound(listener, program.as_fd(), peer)
}

/// As [`join`], from the address that `program` is bound to, if it is.
fn join_bound(
    listener: &OwnedFd,
    program: BorrowedFd<'_>,
    peer: SocketAddr,
) -> io::Result<OwnedFd> {
    bind(listener, &peer)?;
    listen(listener, 1)?;
    match connect(program, &getsockname(listener)?) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    await_one(&program, libc::POLLOUT)?;
    let local: SocketAddrAny = getsockname(program)?;
    // Any process may have connected; only one connection comes from `program`. The queue holds a
    // few of others, and that one.
    for _ in 0..4 {
        await_one(listener, libc::POLLIN)?;
        let (accepted, from) = acceptfrom_with(listener, FLAGS)?;
        if from.as_ref() == Some(&local) {
            return Ok(accepted);
        }
        sys::close(accepted);
    }
    Err(Errno::CONNREFUSED.into())
}

/// Waits for an event within the kernel of this host, which comes at once or not at all.
fn await_one(fd: &impl AsFd, events: i16) -> io::Result<()> {
    const SOON: Duration = Duration::from_millis(100);
    let mut fds = [libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 }];
    sys::ppoll(&mut fds, Some(SOON), None)?;
    if fds[0].revents & events == 0 { Err(Errno::TIMEDOUT.into()) } else { Ok(()) }
}

/// The address with a port of the kernel's choice, in the form that sockets of `family` need.
fn any_port(family: AddressFamily, at: SocketAddr) -> SocketAddr {
    let ip = match at.ip() {
        IpAddr::V4(ip) if family == AddressFamily::INET6 => IpAddr::V6(ip.to_ipv6_mapped()),
        ip => ip,
    };
    SocketAddr::new(ip, 0)
}

/// Copies the options that a program may have set and relies on later. An option that cannot be
/// read or set is skipped.
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
    fn a_socket_proxy_has_the_addresses_and_options_of_the_original() {
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
            let (proxy, kept) = pair(server.as_fd()).expect("a pair");
            let proxy = TcpStream::from(proxy);
            let kept = TcpStream::from(kept);
            assert_eq!(
                proxy.peer_addr().expect("address").ip(),
                server.peer_addr().expect("address").ip()
            );
            assert_eq!(
                proxy.local_addr().expect("address").ip(),
                server.local_addr().expect("address").ip()
            );
            assert_eq!(proxy.peer_addr().expect("address"), kept.local_addr().expect("address"));
            assert!(proxy.nodelay().expect("option"));
            assert_eq!(proxy.read_timeout().expect("option"), Some(Duration::from_secs(7)));
            assert_eq!(sockopt::tcp_keepidle(&proxy).expect("option"), Duration::from_secs(11));
            assert_eq!(sockopt::tcp_keepintvl(&proxy).expect("option"), Duration::from_secs(12));
            assert_eq!(sockopt::tcp_keepcnt(&proxy).expect("option"), 13);
            let flags = rustix::fs::fcntl_getfl(&proxy).expect("flags");
            assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        }
    }

    #[test]
    fn a_placeholder_is_connected_to_the_kept_end_and_nothing_arrives_by_itself() {
        for (family, ip) in [
            (AddressFamily::INET, "127.0.0.1"),
            (AddressFamily::INET6, "127.0.0.1"),
            (AddressFamily::INET6, "::1"),
        ] {
            let Ok((proxy, kept)) = placeholder(family, ip.parse().expect("address")) else {
                assert_eq!(ip, "::1", "{family:?}");
                continue;
            };
            assert_eq!(sockopt::socket_domain(&proxy).expect("option"), family);
            let (proxy, kept) = (TcpStream::from(proxy), TcpStream::from(kept));
            assert_eq!(proxy.peer_addr().expect("address"), kept.local_addr().expect("address"));
            assert_eq!(kept.peer_addr().expect("address"), proxy.local_addr().expect("address"));
            let nothing = proxy.peek(&mut [0]).expect_err("nothing to read");
            assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        }
    }
}
