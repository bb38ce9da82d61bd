//! Addresses, and the abstract socket names made from them.
//!
//! On one host a listening address is an abstract Unix socket name: such names belong to the
//! network namespace, vanish with their owner, and need no file. A connector tries the specific
//! name first, then the wildcards that cover it. Everything is canonical here: IPv4 addresses
//! mapped into IPv6 are IPv4 addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Port space: the ports of streams and those of datagrams are distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "rdma_port_space")]
#[repr(u16)]
pub enum PortSpace {
    /// Reliable connections.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp = 0x0106,
    /// Datagrams.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp = 0x0111,
    /// Kernel UDP sockets that have a datagram queue beside them. Known on this host only, and to
    /// no device.
    KernelUdp = 0xfd11,
}

/// `addr` with an IPv4 address where it carries a mapped one, without flow label, and with a scope
/// only where a scope means something (link-local addresses).
#[must_use]
#[inline]
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => addr,
        SocketAddr::V6(v6) => canonical_v6(v6),
    }
}

fn canonical_v6(addr: SocketAddrV6) -> SocketAddr {
    match addr.ip().to_ipv4_mapped() {
        Some(v4) => SocketAddr::from((v4, addr.port())),
        None => {
            let scope = if is_link_local(addr.ip()) { addr.scope_id() } else { 0 };
            SocketAddrV6::new(*addr.ip(), addr.port(), 0, scope).into()
        }
    }
}

/// A canonical address as a socket of one family reports it: an IPv6 socket maps IPv4 addresses.
#[must_use]
#[inline]
pub fn in_family(addr: SocketAddr, v6: bool) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if v6 => {
            let ip = if v4.ip().is_unspecified() {
                Ipv6Addr::UNSPECIFIED
            } else {
                v4.ip().to_ipv6_mapped()
            };
            SocketAddrV6::new(ip, v4.port(), 0, 0).into()
        }
        _ => addr,
    }
}

/// The destination of a connect to a wildcard address: this host.
pub(crate) fn destination(addr: SocketAddr) -> SocketAddr {
    let addr = canonical(addr);
    match addr.ip() {
        ip if !ip.is_unspecified() => addr,
        IpAddr::V4(_) => (Ipv4Addr::LOCALHOST, addr.port()).into(),
        IpAddr::V6(_) => (Ipv6Addr::LOCALHOST, addr.port()).into(),
    }
}

fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

/// The abstract name that a listener on canonical `local` binds. An IPv6 wildcard covers IPv4 as
/// well unless `v6_only`.
pub(crate) fn listen_name(space: PortSpace, local: SocketAddr, v6_only: bool) -> String {
    let place = match local {
        SocketAddr::V4(a) if a.ip().is_unspecified() => "4.any".to_owned(),
        SocketAddr::V6(a) if a.ip().is_unspecified() && v6_only => "6.any".to_owned(),
        SocketAddr::V6(a) if a.ip().is_unspecified() => "46.any".to_owned(),
        SocketAddr::V4(a) => format!("4.{:08x}", a.ip().to_bits()),
        SocketAddr::V6(a) => match a.scope_id() {
            0 => format!("6.{:032x}", a.ip().to_bits()),
            scope => format!("6.{:032x}%{scope:x}", a.ip().to_bits()),
        },
    };
    format!("rsock.cm1.{:04x}.{place}.{:04x}", space as u16, local.port())
}

/// The names under which a listener for canonical, specific `dest` may be found, best first.
pub(crate) fn connect_names(space: PortSpace, dest: SocketAddr) -> [String; 3] {
    let any = |ip: IpAddr, v6_only| listen_name(space, (ip, dest.port()).into(), v6_only);
    let family = match dest {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    [listen_name(space, dest, false), any(family, true), any(Ipv6Addr::UNSPECIFIED.into(), false)]
}

/// Whether a listener on canonical `local` serves connections to canonical `dest`.
pub(crate) fn covers(local: SocketAddr, v6_only: bool, dest: SocketAddr) -> bool {
    local.port() == dest.port()
        && match (local.ip(), dest.ip()) {
            (IpAddr::V4(l), IpAddr::V4(_)) if l.is_unspecified() => true,
            (IpAddr::V6(l), IpAddr::V6(_)) if l.is_unspecified() => true,
            (IpAddr::V6(l), IpAddr::V4(_)) if l.is_unspecified() => !v6_only,
            (l, d) => l == d,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("address")
    }

    #[test]
    fn mapped_addresses_are_ipv4_and_map_back() {
        let mapped = addr("[::ffff:10.1.2.3]:80");
        assert_eq!(canonical(mapped), addr("10.1.2.3:80"));
        assert_eq!(in_family(canonical(mapped), true), mapped);
        assert_eq!(in_family(addr("10.1.2.3:80"), false), addr("10.1.2.3:80"));
        assert_eq!(in_family(addr("0.0.0.0:80"), true), addr("[::]:80"));
    }

    #[test]
    fn a_scope_counts_for_link_local_addresses_only() {
        let scoped =
            |ip: &str| SocketAddr::from(SocketAddrV6::new(ip.parse().expect("ip"), 1, 9, 3));
        let SocketAddr::V6(global) = canonical(scoped("2001:db8::1")) else { panic!("family") };
        let SocketAddr::V6(local) = canonical(scoped("fe80::1")) else { panic!("family") };
        assert_eq!((global.scope_id(), local.scope_id(), local.flowinfo()), (0, 3, 0));
    }

    /// Every listener that covers a destination is found under exactly one of the names tried for
    /// it, and no other listener is.
    #[test]
    fn connectors_find_exactly_the_listeners_that_cover_their_destination() {
        let locals = [
            ("0.0.0.0:7", false),
            ("10.0.0.1:7", false),
            ("10.0.0.1:8", false),
            ("[::]:7", false),
            ("[::]:7", true),
            ("[2001:db8::1]:7", false),
            ("[::1]:7", true),
        ];
        let dests = ["10.0.0.1:7", "10.0.0.2:7", "[2001:db8::1]:7", "[::1]:7", "[::1]:8"];
        for dest in dests.map(addr) {
            let names = connect_names(PortSpace::Tcp, dest);
            for (local, v6_only) in locals {
                let local = addr(local);
                let name = listen_name(PortSpace::Tcp, local, v6_only);
                let found = names.contains(&name);
                assert_eq!(found, covers(local, v6_only, dest), "{local} {v6_only} {dest}");
            }
            assert!(names.iter().all(|n| n.len() < 100));
        }
        let names = connect_names(PortSpace::Tcp, addr("10.0.0.1:7"));
        assert_eq!(names[0], "rsock.cm1.0106.4.0a000001.0007");
        assert_ne!(names, connect_names(PortSpace::Udp, addr("10.0.0.1:7")));
    }

    #[test]
    fn connecting_to_a_wildcard_reaches_this_host() {
        assert_eq!(destination(addr("0.0.0.0:5")), addr("127.0.0.1:5"));
        assert_eq!(destination(addr("[::]:5")), addr("[::1]:5"));
        assert_eq!(destination(addr("[::ffff:1.2.3.4]:5")), addr("1.2.3.4:5"));
    }
}
