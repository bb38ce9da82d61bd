//! Paths: the route from a queue pair to its peer.
#![forbid(unsafe_code)]

use crate::error::Error;
use crate::types::{Gid, QpNum, QpState, RNR_RETRIES};
use rsock_rdma_sys::verbs::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};
use std::fmt::Debug;
use std::sync::Arc;

/// The route to one peer port, from one local port.
#[derive(Clone, Debug)]
pub struct RdmaPath {
    pub(super) port: u8,
    /// The peer's address: peers with the same one are one host.
    pub(super) peer: Gid,
    route: Route,
}

#[derive(Clone, Debug)]
enum Route {
    Known(Known),
    Negotiated(Arc<dyn Negotiated>),
}

/// A route that is known from the start; queue pairs number their packets from 0.
#[derive(Clone, Copy, Debug)]
struct Known {
    gid_index: u8,
    mtu: ibv_mtu,
}

/// Values that a connection manager has negotiated for one queue pair.
pub trait Negotiated: Debug + Send + Sync {
    /// What a queue pair needs to go to state `to`, `Rtr` or `Rts`: values, and a mask of those
    /// that count.
    ///
    /// # Errors
    /// `PeerGone` when the connection is over; the connection manager's error.
    fn qp_attr(&self, to: QpState) -> Result<(ibv_qp_attr, i32), Error>;
}

impl RdmaPath {
    pub(super) fn new(port: u8, gid_index: u8, peer: Gid, mtu: ibv_mtu) -> Self {
        Self { port, peer, route: Route::Known(Known { gid_index, mtu }) }
    }

    /// A path for one queue pair on `port` to the peer at `peer`, as a connection manager will have
    /// negotiated it by the time that the queue pair goes on to `Rtr`.
    #[must_use]
    pub fn negotiated(port: u8, peer: Gid, by: Arc<dyn Negotiated>) -> Self {
        Self { port, peer, route: Route::Negotiated(by) }
    }

    /// The largest payload of one packet, in bytes, where it is known from the start.
    #[must_use]
    pub fn mtu(&self) -> Option<u32> {
        match &self.route {
            Route::Known(known) => Some(128 << known.mtu.0),
            Route::Negotiated(_) => None,
        }
    }

    /// The same path with packets of at most `bytes` of payload, and of at least 256; unless the
    /// connection manager decides that.
    #[must_use]
    pub fn with_mtu(mut self, bytes: u32) -> Self {
        if let Route::Known(known) = &mut self.route {
            while 128 << known.mtu.0 > bytes && known.mtu.0 > ibv_mtu::IBV_MTU_256.0 {
                known.mtu.0 -= 1;
            }
        }
        self
    }

    /// The destination of an address handle: the index of the local address, and the peer's
    /// address.
    pub(super) fn key(&self) -> Option<(u8, Gid)> {
        match &self.route {
            Route::Known(known) => Some((known.gid_index, self.peer)),
            Route::Negotiated(_) => None,
        }
    }

    /// For datagrams: from which local address, and to where; `None` on a path of a connection.
    pub(super) fn address(&self) -> Option<ibv_ah_attr> {
        match &self.route {
            Route::Known(known) => Some(known.address(self.port, self.peer)),
            Route::Negotiated(_) => None,
        }
    }

    /// The attributes of a queue pair whose peer is `dest`.
    pub(super) fn to_receive(&self, dest: QpNum) -> Result<(ibv_qp_attr, i32), Error> {
        let (mut attr, mask) = match &self.route {
            Route::Known(known) => {
                (known.to_receive(self.port, self.peer), known_mask(&TO_RECEIVE))
            }
            Route::Negotiated(by) => by.qp_attr(QpState::Rtr)?,
        };
        attr.dest_qp_num = dest.0;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        Ok((attr, mask))
    }

    pub(super) fn to_send(&self) -> Result<(ibv_qp_attr, i32), Error> {
        let (mut attr, mask) = match &self.route {
            Route::Known(_) => {
                let mut attr = super::attributes::blank(ibv_qp_state::IBV_QPS_RTS);
                attr.timeout = TIMEOUT;
                attr.max_rd_atomic = 1;
                (attr, known_mask(&TO_SEND))
            }
            Route::Negotiated(by) => by.qp_attr(QpState::Rts)?,
        };
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RNR_RETRIES;
        Ok((attr, mask))
    }
}

impl Known {
    fn to_receive(self, port: u8, peer: Gid) -> ibv_qp_attr {
        let mut attr = super::attributes::blank(ibv_qp_state::IBV_QPS_RTR);
        attr.path_mtu = self.mtu;
        attr.max_dest_rd_atomic = 1;
        attr.ah_attr = self.address(port, peer);
        attr
    }

    /// Always with a global route: RoCE has no other.
    fn address(self, port: u8, peer: Gid) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: peer.0 },
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: 64,
                traffic_class: 0,
            },
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: port,
        }
    }
}

fn known_mask(bits: &[ibv_qp_attr_mask]) -> i32 {
    bits.iter().fold(0, |all, bit| all | bit.0.cast_signed())
}

const TO_RECEIVE: [ibv_qp_attr_mask; 7] = [
    ibv_qp_attr_mask::IBV_QP_STATE,
    ibv_qp_attr_mask::IBV_QP_AV,
    ibv_qp_attr_mask::IBV_QP_PATH_MTU,
    ibv_qp_attr_mask::IBV_QP_DEST_QPN,
    ibv_qp_attr_mask::IBV_QP_RQ_PSN,
    ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC,
    ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
];

const TO_SEND: [ibv_qp_attr_mask; 6] = [
    ibv_qp_attr_mask::IBV_QP_STATE,
    ibv_qp_attr_mask::IBV_QP_TIMEOUT,
    ibv_qp_attr_mask::IBV_QP_RETRY_CNT,
    ibv_qp_attr_mask::IBV_QP_RNR_RETRY,
    ibv_qp_attr_mask::IBV_QP_SQ_PSN,
    ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
];

/// How often a request without an answer is sent again. Seven means seven, except for the kernel's
/// soft RoCE, where it means without limit.
pub const RETRIES: u8 = 6;

/// Until a request without an answer is sent again, as an exponent: 4.096 us * 2^14 are 67 ms.
const TIMEOUT: u8 = 14;

/// How long a peer waits before it repeats a message that found no receive, as a code: 0.64 ms. The
/// connection manager's own choice would be 655 ms.
const MIN_RNR_TIMER: u8 = 12;
