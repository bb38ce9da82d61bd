//! Addresses in C's form.

use crate::addr::canonical;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

/// An address in C's form.
#[repr(C)]
pub(super) union Raw {
    v4: sockaddr_in,
    v6: sockaddr_in6,
    storage: sockaddr_storage,
}

impl Raw {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let family = |family: i32| libc::sa_family_t::try_from(family).unwrap_or(0);
        match addr {
            SocketAddr::V4(addr) => Self {
                v4: sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(addr) => Self {
                v6: sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                },
            },
        }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        ptr::from_mut(self).cast()
    }
}

/// The address at `raw`, in canonical form; `None` for another family.
///
/// # Safety
/// `raw` points to a readable `sockaddr_storage`.
pub(super) unsafe fn read(raw: *const sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the caller promises it.
    let family = unsafe { (*raw).ss_family };
    let addr = match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the storage has room for any address, and holds one of this family.
            let v4 = unsafe { raw.cast::<sockaddr_in>().read() };
            let ip = v4.sin_addr.s_addr.to_ne_bytes().into();
            SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { raw.cast::<sockaddr_in6>().read() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id))
        }
        _ => return None,
    };
    Some(canonical(addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["10.9.0.1:7471", "[fd09::2]:65535", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().expect("address");
            let raw = Raw::new(addr);
            // SAFETY: a whole storage.
            let back = unsafe { read((&raw const raw).cast()) };
            assert_eq!(back, Some(addr), "{text}");
        }
    }
}
