//! Whether the kernel knows the link-layer address of the next hop to an address.
//!
//! Some calls need it and wait for it where it is not known, for a second or so (making an address
//! handle of RoCE); a caller that must not wait asks this module first.

use crate::route::{self, NLMSG_ERROR, as_request, attribute, route_to};
use std::net::IpAddr;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// Offset of `ifi_flags`.
const LINK_FLAGS: usize = 16 + 8;
const IFF_NOARP: u32 = 0x80;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
/// `struct nlmsghdr` and `struct ndmsg`.
const HEADERS: usize = 16 + 12;
/// Offset of `ndm_state`.
const STATE: usize = 16 + 8;
/// `NUD_REACHABLE`, `NUD_STALE`, `NUD_DELAY`, `NUD_PROBE`, `NUD_NOARP` and `NUD_PERMANENT`.
const HAS_ADDRESS: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// Whether packets to `ip` can leave at once. False without a route, and while the link address of
/// the next hop is unknown; a packet of any kind makes the kernel resolve it. Addresses of this
/// host can always be reached.
#[must_use]
pub fn knows_neighbour(ip: IpAddr) -> bool {
    let Some(route) = route_to(ip) else { return false };
    if route.is_local {
        return true;
    }
    let Some(interface) = route.interface else { return false };
    let is_yes = |question: &[u8], of: fn(&[u8]) -> bool| {
        route::ask(question).is_ok_and(|answer| of(&answer))
    };
    is_yes(&question(route.gateway.unwrap_or(ip), interface), has_address)
        || is_yes(&question_about(interface), needs_none)
}

fn question(ip: IpAddr, interface: u32) -> Vec<u8> {
    let (family, bytes) = match ip {
        IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
    };
    let mut q = vec![0; HEADERS];
    // ndmsg: family, index of the interface; the rest stays 0.
    q[16] = u8::try_from(family).unwrap_or(0);
    q[20..24].copy_from_slice(&interface.to_ne_bytes());
    attribute(&mut q, NDA_DST, &bytes);
    as_request(q, RTM_GETNEIGH)
}

fn question_about(interface: u32) -> Vec<u8> {
    // ifinfomsg: index of the interface, in the second word.
    let mut q = vec![0; 16 + 16];
    q[20..24].copy_from_slice(&interface.to_ne_bytes());
    as_request(q, RTM_GETLINK)
}

/// Whether an interface has no address resolution.
fn needs_none(answer: &[u8]) -> bool {
    let flags = answer.get(LINK_FLAGS..LINK_FLAGS + 4).and_then(|b| b.try_into().ok());
    answer.get(4..6) == Some(&RTM_NEWLINK.to_ne_bytes())
        && flags.is_some_and(|flags| u32::from_ne_bytes(flags) & IFF_NOARP != 0)
}

/// Kernels before 5.0 cannot query one neighbour: there it counts as known.
fn has_address(answer: &[u8]) -> bool {
    let half = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    match half(4) {
        Some(RTM_NEWNEIGH) => half(STATE).is_some_and(|state| state & HAS_ADDRESS != 0),
        Some(NLMSG_ERROR) => {
            let code = answer.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
            code.is_some_and(|code| code.wrapping_neg() == libc::EOPNOTSUPP)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut answer = vec![0; 32];
        answer[4..6].copy_from_slice(&kind.to_ne_bytes());
        answer[at..at + bytes.len()].copy_from_slice(bytes);
        answer
    }

    #[test]
    fn a_neighbour_is_known_with_an_address_alone() {
        for (state, is_known) in
            [(0x02u16, true), (0x04, true), (0x80, true), (0x01, false), (0x20, false)]
        {
            let told = answer(RTM_NEWNEIGH, STATE, &state.to_ne_bytes());
            assert_eq!(has_address(&told), is_known, "{state:#x}");
        }
        let refused = |errno: i32| answer(NLMSG_ERROR, 16, &(-errno).to_ne_bytes());
        assert!(!has_address(&refused(libc::ENOENT)));
        assert!(has_address(&refused(libc::EOPNOTSUPP)));
        assert!(!has_address(&[]) && !has_address(&[0; 6]));
    }

    #[test]
    fn addresses_of_this_host_can_always_be_reached() {
        assert!(knows_neighbour("127.0.0.1".parse().expect("an IP")));
        assert!(knows_neighbour("::1".parse().expect("an IP")));
    }
}
