//! A port, held by a kernel TCP socket that is bound and never listens.
//!
//! So ports of RDMA connections and of kernel TCP never clash, the kernel picks ephemeral ports and
//! checks addresses, and a plain TCP client that tries such a port is refused. The socket's
//! descriptor is also the number under which the C interface knows the socket.

use crate::addr::{canonical, in_family};
use crate::error::Error;
use rustix::net::{self, AddressFamily, SocketAddrAny, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A kernel TCP socket that holds a port once it is bound.
#[derive(Debug)]
pub struct Port {
    fd: OwnedFd,
    v6: bool,
}

impl Port {
    /// An unbound socket, close-on-exec, of the IPv6 family if `v6`.
    ///
    /// # Errors
    /// As `socket(2)`.
    pub fn open(v6: bool) -> Result<Self, Error> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let fd = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("socket"))?;
        Ok(Self { fd, v6 })
    }

    /// As [`Self::open`], of a UDP socket: the port of a datagram socket, which talks through it,
    /// too.
    ///
    /// # Errors
    /// As `socket(2)`.
    pub fn open_datagrams(v6: bool) -> Result<Self, Error> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let fd = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(Error::system("socket"))?;
        Ok(Self { fd, v6 })
    }

    /// Whether it is an IPv6 socket, which shows IPv4 addresses mapped.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// `SO_REUSEADDR`: lets [`Self::bind`] take a port that old TCP connections linger on.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_reuse_address(&self, on: bool) -> Result<(), Error> {
        sockopt::set_socket_reuseaddr(&self.fd, on).map_err(Error::system("setsockopt"))
    }

    /// `IPV6_V6ONLY`; before [`Self::bind`].
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_v6_only(&self, on: bool) -> Result<(), Error> {
        sockopt::set_ipv6_v6only(&self.fd, on).map_err(Error::system("setsockopt"))
    }

    /// Whether an IPv6 wildcard excludes IPv4.
    #[must_use]
    pub fn is_v6_only(&self) -> bool {
        self.v6 && sockopt::ipv6_v6only(&self.fd).unwrap_or(false)
    }

    /// Takes `addr`; port 0 takes a free one.
    ///
    /// # Errors
    /// `System` with `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`, `EINVAL` (bound already)... as
    /// `bind(2)`.
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        net::bind(&self.fd, &in_family(addr, self.v6)).map_err(Error::system("bind"))
    }

    /// The canonical address; port 0 while unbound.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        let addr = net::getsockname(&self.fd).map_err(Error::system("getsockname"))?;
        socket_addr(addr).map(canonical).ok_or(Error::LocalState("not an internet socket"))
    }

    /// Takes a free port of the wildcard address, unless bound already.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_if_unbound(&self) -> Result<(), Error> {
        if self.local_addr()?.port() != 0 {
            return Ok(());
        }
        let any: IpAddr =
            if self.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        self.bind((any, 0).into())
    }

    /// From now on no other socket can bind this port, not even with `SO_REUSEADDR`: as for a
    /// listening TCP socket, which this one is not.
    pub(crate) fn make_exclusive(&self) -> Result<(), Error> {
        self.set_reuse_address(false)
    }
}

/// An internet address as a type of the standard library.
pub(crate) fn socket_addr(addr: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(addr).ok()
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error as IoError, ErrorKind};
    use std::net::{TcpListener, TcpStream};

    fn kind(e: Error) -> ErrorKind {
        IoError::from(e).kind()
    }

    #[test]
    fn a_plain_tcp_client_of_a_held_port_is_refused() {
        let port = Port::open(false).expect("open");
        assert_eq!(port.local_addr().expect("name").port(), 0);
        port.bind("127.0.0.1:0".parse().expect("addr")).expect("bind");
        let held = port.local_addr().expect("name");
        let refused = TcpStream::connect(held).expect_err("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_port_of_kernel_tcp_is_not_given_twice() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = Port::open(false).expect("open");
        port.set_reuse_address(true).expect("option");
        let taken = port.bind(tcp.local_addr().expect("name")).expect_err("taken");
        assert_eq!(kind(taken), ErrorKind::AddrInUse);
    }

    #[test]
    fn kernel_tcp_does_not_get_an_exclusive_port_even_with_reuse_address() {
        let port = Port::open(false).expect("open");
        port.set_reuse_address(true).expect("option");
        port.bind("127.0.0.1:0".parse().expect("addr")).expect("bind");
        port.make_exclusive().expect("exclusive");
        // The standard library sets SO_REUSEADDR on its listeners.
        let taken = TcpListener::bind(port.local_addr().expect("name")).expect_err("held");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_foreign_address_is_not_available() {
        let port = Port::open(false).expect("open");
        let foreign =
            port.bind("192.0.2.1:0".parse().expect("addr")).expect_err("not a local address");
        assert_eq!(kind(foreign), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn an_ipv6_port_takes_ipv4_addresses_mapped() {
        let port = Port::open(true).expect("open");
        port.bind("127.0.0.1:0".parse().expect("addr")).expect("bind");
        let name = port.local_addr().expect("name");
        assert_eq!(name.ip(), Ipv4Addr::LOCALHOST);
        let v4 = Port::open(false).expect("open");
        assert_eq!(kind(v4.bind(name).expect_err("held")), ErrorKind::AddrInUse);
    }
}
