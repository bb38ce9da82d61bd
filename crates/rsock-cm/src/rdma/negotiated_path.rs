//! The path of a connection: gives its queue pair the values that the kernel negotiated.
#![forbid(unsafe_code)]

use super::id::Id;
use rsock_rdma_sys::verbs::ibv_qp_attr;
use rsock_verbs::rdma::{Negotiated, RdmaPath};
use rsock_verbs::{Error, QpState};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// The identifier, as its path sees it. Weak: a queue pair is brought up while its connection is
/// made, and must not keep the identifier beyond it.
#[derive(Debug)]
struct NegotiatedPath(Weak<Id>);

impl Negotiated for NegotiatedPath {
    fn qp_attr(&self, to: QpState) -> Result<(ibv_qp_attr, i32), Error> {
        let id = self.0.upgrade().ok_or(Error::PeerGone)?;
        id.qp_attr(to)
            .map_err(|e| Error::Verb { call: "rdma_init_qp_attr", source: io::Error::from(e) })
    }
}

/// The path of the connection that `id` makes with `peer`, over `port`.
pub(super) fn path(id: &Arc<Id>, port: u8, peer: IpAddr) -> RdmaPath {
    RdmaPath::negotiated(port, peer.into(), Arc::new(NegotiatedPath(Arc::downgrade(id))))
}
