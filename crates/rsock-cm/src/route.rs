//! One query of the kernel's routing table: is an address local, and which local address is the
//! source of packets to it?
//!
//! Sent over `rtnetlink(7)`, because nothing else distinguishes a local address from a remote one
//! reliably: binding to it may be allowed for any address (`ip_nonlocal_bind`), and a wildcard
//! listener of this host must never answer for another.

use crate::error::Error;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The routing table's entry for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// It is an address of this host.
    pub is_local: bool,
    /// The source address that an unbound socket would get.
    pub source: Option<IpAddr>,
    /// The gateway to it, unless it is on a connected network.
    pub gateway: Option<IpAddr>,
    /// Index of the interface that leads there.
    pub interface: Option<u32>,
}

/// Protocol 0 of the netlink family.
const NETLINK_ROUTE: Option<net::Protocol> = None;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
pub(crate) const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
/// `struct nlmsghdr` and `struct rtmsg`.
const HEADERS: usize = 16 + 12;

/// Looks `dest` up. Loopback addresses are local without a query.
pub(crate) fn lookup(dest: SocketAddr) -> Result<Route, Error> {
    match dest.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            return Ok(Route::to_self(Ipv4Addr::LOCALHOST.into()));
        }
        IpAddr::V6(ip) if ip.is_loopback() => {
            return Ok(Route::to_self(ip.into()));
        }
        _ => {}
    }
    read_answer(&ask(&question(dest))?)
}

/// Sends the kernel a query that it answers with one message.
pub(crate) fn ask(question: &[u8]) -> Result<Vec<u8>, Error> {
    let fd = net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        NETLINK_ROUTE,
    )
    .map_err(Error::system("socket"))?;
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    net::sendto(&fd, question, SendFlags::empty(), &kernel).map_err(Error::system("sendto"))?;
    let mut answer = vec![0; 4096];
    let (_, len) =
        net::recv(&fd, &mut answer[..], RecvFlags::empty()).map_err(Error::system("recv"))?;
    answer.truncate(len);
    Ok(answer)
}

impl Route {
    /// To `ip`, which is a local address.
    fn to_self(ip: IpAddr) -> Self {
        Self { is_local: true, source: Some(ip), gateway: None, interface: None }
    }
}

/// The routing table's entry for `ip`; `None` if there is no route.
#[must_use]
pub fn route_to(ip: IpAddr) -> Option<Route> {
    lookup(SocketAddr::new(ip, 0)).ok()
}

/// Whether `ip` is an address of this host; false if the kernel does not answer.
#[must_use]
pub fn is_local(ip: IpAddr) -> bool {
    route_to(ip).is_some_and(|route| route.is_local)
}

fn question(dest: SocketAddr) -> Vec<u8> {
    let (family, ip, scope) = match dest {
        SocketAddr::V4(a) => (libc::AF_INET, a.ip().octets().to_vec(), 0),
        SocketAddr::V6(a) => (libc::AF_INET6, a.ip().octets().to_vec(), a.scope_id()),
    };
    let mut q = vec![0; HEADERS];
    // rtmsg: family, destination length in bits; the rest stays 0.
    q[16] = u8::try_from(family).unwrap_or(0);
    q[17] = u8::try_from(ip.len() * 8).unwrap_or(0);
    attribute(&mut q, RTA_DST, &ip);
    if scope != 0 {
        attribute(&mut q, RTA_OIF, &scope.to_ne_bytes());
    }
    as_request(q, RTM_GETROUTE)
}

/// Fills the `struct nlmsghdr` in that `q` begins with.
pub(crate) fn as_request(mut q: Vec<u8>, kind: u16) -> Vec<u8> {
    let len = u32::try_from(q.len()).unwrap_or(0);
    q[..4].copy_from_slice(&len.to_ne_bytes());
    q[4..6].copy_from_slice(&kind.to_ne_bytes());
    q[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    q
}

/// Appends an attribute whose length is a multiple of 4.
pub(crate) fn attribute(q: &mut Vec<u8>, kind: u16, data: &[u8]) {
    let len = u16::try_from(4 + data.len()).unwrap_or(0);
    q.extend_from_slice(&len.to_ne_bytes());
    q.extend_from_slice(&kind.to_ne_bytes());
    q.extend_from_slice(data);
}

fn read_answer(answer: &[u8]) -> Result<Route, Error> {
    let malformed =
        || Error::Unreachable(std::io::Error::from_raw_os_error(Errno::NETUNREACH.raw_os_error()));
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    match half(4) {
        Some(NLMSG_ERROR) => {
            let code = answer.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
            let errno = code.map_or(libc::ENETUNREACH, |c| c.wrapping_neg());
            return Err(Error::Unreachable(std::io::Error::from_raw_os_error(errno)));
        }
        Some(RTM_NEWROUTE) => {}
        _ => return Err(malformed()),
    }
    let kind = *answer.get(16 + 7).ok_or_else(malformed)?;
    let is_local = kind == RTN_LOCAL;
    let mut route = Route { is_local, source: None, gateway: None, interface: None };
    let mut at = HEADERS;
    while let (Some(len), Some(kind)) = (half(at), half(at + 2)) {
        let Some(data) = answer.get(at + 4..at + usize::from(len)) else { break };
        match kind {
            RTA_PREFSRC => route.source = address(data),
            RTA_GATEWAY => route.gateway = address(data),
            RTA_OIF => route.interface = data.try_into().ok().map(u32::from_ne_bytes),
            _ => {}
        }
        at += usize::from(len).next_multiple_of(4).max(4);
    }
    Ok(route)
}

fn address(data: &[u8]) -> Option<IpAddr> {
    match *data {
        [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
        _ => <[u8; 16]>::try_from(data).ok().map(|b| Ipv6Addr::from(b).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local() {
        for text in ["127.0.0.1:1", "127.3.2.1:1", "[::1]:1"] {
            let route = lookup(text.parse().expect("addr")).expect("route");
            assert!(route.is_local && route.source.is_some_and(|s| s.is_loopback()), "{text}");
        }
    }

    #[test]
    fn the_kernel_agrees_that_loopback_is_local_and_a_documentation_address_is_not() {
        let ask = |text: &str| {
            read_answer(&ask(&question(text.parse().expect("addr"))).expect("an answer"))
        };
        let own = ask("127.0.0.1:1").expect("route");
        let expected = Route::to_self(Ipv4Addr::LOCALHOST.into());
        assert_eq!(Route { interface: None, ..own }, expected);
        assert!(own.interface.is_some());
        // Either there is a route to other hosts, or there is none; it is never local.
        assert!(!ask("192.0.2.1:1").is_ok_and(|r| r.is_local));
    }

    #[test]
    fn malformed_answers_are_errors() {
        assert!(read_answer(&[]).is_err());
        assert!(read_answer(&[0; 16]).is_err());
        let mut short = vec![0; 18];
        short[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        assert!(read_answer(&short).is_err());
        let mut looping = vec![0; HEADERS + 8];
        looping[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        assert_eq!(read_answer(&looping).expect("no attributes").source, None);
    }
}
