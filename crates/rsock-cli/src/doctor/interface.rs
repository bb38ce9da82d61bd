//! The IP addresses of a network interface, in this process's network namespace: what `/sys` shows of an
//! RDMA device may be of another one.
//!
//! Asked over `rtnetlink(7)`; whoever cannot ask finds none.

use rustix::fd::OwnedFd;
use rustix::io;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of the interface called `name` that others can connect to: not those of one link only.
pub(super) fn addresses(name: &str) -> Vec<IpAddr> {
    let all = || -> io::Result<Vec<IpAddr>> {
        let socket = |family, kind| net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
        let any = socket(AddressFamily::INET, SocketType::DGRAM)?;
        let index = net::netdevice::name_to_index(&any, name)?;
        of_index(&socket(AddressFamily::NETLINK, SocketType::RAW)?, index)
    };
    all().unwrap_or_default()
}

fn of_index(route: &OwnedFd, index: u32) -> io::Result<Vec<IpAddr>> {
    net::sendto(route, &question(), SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut found = Vec::new();
    loop {
        let mut answer = [0; 1 << 15];
        let (_, len) = net::recv(route, &mut answer, RecvFlags::empty())?;
        if read(&answer[..len.min(answer.len())], index, &mut found) {
            return Ok(found);
        }
    }
}

/// Adds the addresses of interface `index` in `answer`; whether it was the last one.
fn read(mut answer: &[u8], index: u32, found: &mut Vec<IpAddr>) -> bool {
    while let Some((message, rest)) = split(answer, word(answer, 0)) {
        answer = rest;
        if half(message, 4) != Some(RTM_NEWADDR) {
            // The end of the list, or an error.
            return true;
        }
        if word(message, AT_INDEX) == usize::try_from(index).ok() {
            found.extend(address(message).filter(is_meant_for_others));
        }
    }
    false
}

/// The address in one message.
fn address(message: &[u8]) -> Option<IpAddr> {
    let mut attributes = message.get(HEADERS..)?;
    let mut found = None;
    while let Some((attribute, rest)) = split(attributes, half(attributes, 0).map(usize::from)) {
        attributes = rest;
        let ip = match *attribute.get(4..)? {
            [a, b, c, d] => Some(IpAddr::from(Ipv4Addr::new(a, b, c, d))),
            ref data => <[u8; 16]>::try_from(data).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        };
        match half(attribute, 2) {
            Some(IFA_LOCAL) => return ip,
            // On a line with two ends, where there is a local one too, this is the other end's.
            Some(IFA_ADDRESS) => found = ip,
            _ => {}
        }
    }
    found
}

/// The first `len` bytes, a header at least, and what follows them at the next word.
fn split(bytes: &[u8], len: Option<usize>) -> Option<(&[u8], &[u8])> {
    let len = len.filter(|len| *len >= 4)?;
    let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((bytes.get(..len)?, rest))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(word)).ok()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn is_meant_for_others(ip: &IpAddr) -> bool {
    !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// `RTM_GETADDR` of every family.
fn question() -> [u8; HEADERS] {
    let mut question = [0; HEADERS];
    question[0..4].copy_from_slice(&24_u32.to_ne_bytes());
    question[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    question[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    question
}

/// `struct nlmsghdr` and `struct ifaddrmsg`, whose last field is the interface.
const HEADERS: usize = 16 + 8;
const AT_INDEX: usize = HEADERS - 4;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(index: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0; HEADERS];
        message[4..6].copy_from_slice(&RTM_NEWADDR.to_ne_bytes());
        message[AT_INDEX..].copy_from_slice(&index.to_ne_bytes());
        for (kind, data) in attributes {
            message.extend(u16::try_from(4 + data.len()).unwrap().to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(*data);
        }
        let len = u32::try_from(message.len()).unwrap();
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message
    }

    #[test]
    fn the_addresses_of_one_interface_are_taken_from_the_list() {
        let v6: Ipv6Addr = "fd09::1".parse().unwrap();
        let link: Ipv6Addr = "fe80::1".parse().unwrap();
        let list = [
            message(3, &[(IFA_ADDRESS, &[10, 1, 0, 2]), (IFA_LOCAL, &[10, 1, 0, 1])]),
            message(4, &[(IFA_LOCAL, &[10, 2, 0, 1])]),
            message(3, &[(IFA_ADDRESS, &v6.octets()), (9, &[1; 8])]),
            message(3, &[(IFA_ADDRESS, &link.octets())]),
        ];
        let mut found = Vec::new();
        assert!(!read(&list.concat(), 3, &mut found));
        assert_eq!(found, [IpAddr::from([10, 1, 0, 1]), v6.into()]);
        let mut end = message(0, &[]);
        end[4..6].copy_from_slice(&3_u16.to_ne_bytes());
        assert!(read(&end, 3, &mut found));
        // Nothing that is cut short is read past its end.
        for len in 0..list[0].len() {
            assert!(!read(&list[0][..len], 3, &mut found));
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn the_kernel_is_asked_and_loopback_is_for_nobody_else() {
        assert_eq!(addresses("lo").iter().find(|ip| ip.is_loopback()), None);
        assert_eq!(addresses("no such interface"), Vec::<IpAddr>::new());
        let route =
            net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
        assert!(of_index(&route.unwrap(), u32::MAX).unwrap().is_empty());
    }
}
