//! Peers that lie, over shared memory; `rdma.rs` runs the same suite on a real device.

mod hostile_peer;
mod malformed;

use hostile_peer::{Fixture, hostile_peer_tests};
use rsock_cm::soft::SoftManager;
use rsock_verbs::soft::SoftContext;
use std::net::{IpAddr, Ipv4Addr};

struct Soft;

impl Fixture for Soft {
    type Manager = SoftManager;

    fn manager(&self) -> SoftManager {
        SoftManager::new(SoftContext::open().expect("device"))
    }

    fn address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }
}

hostile_peer_tests!(Soft);
