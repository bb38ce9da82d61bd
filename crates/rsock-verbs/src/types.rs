//! The small values of the verbs interface: keys, numbers, addresses, access flags, attributes.
//!
//! Every number that means something has a type of its own, so that a remote address can never be
//! used as a local offset and a local key never travels to a peer.

use bitflags::bitflags;
use std::net::{IpAddr, Ipv6Addr};

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);
    };
}

newtype! {
    /// Local key of a memory region: names it in the scatter/gather entries of its own process.
    #[doc(alias = "lkey")]
    LKey(u32)
}
newtype! {
    /// Remote key of a memory region: what a peer needs, with an address, to write into it.
    #[doc(alias = "rkey")]
    RKey(u32)
}
newtype! {
    /// Queue pair number, unique per device; 24 bits on InfiniBand.
    #[doc(alias = "qp_num")]
    QpNum(u32)
}
newtype! {
    /// Queue key of datagrams: a queue takes only those that carry its own.
    #[doc(alias = "qkey")]
    QKey(u32)
}
newtype! {
    /// Address inside a region of *another* process or host. Never a pointer here.
    RemoteAddr(u64)
}
newtype! {
    /// Caller's name for a work request; comes back in its [`Completion`](crate::Completion). The
    /// two highest bits belong to the device: names are below 2^62.
    #[doc(alias = "wr_id")]
    WrId(u64)
}

impl RemoteAddr {
    /// The address `bytes` further on; wraps, as peer-supplied numbers may.
    #[must_use]
    pub fn wrapping_add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

bitflags! {
    /// What a memory region, or a queue pair, allows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        /// The device may write received data into it.
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE into it. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
    }
}

/// Address of a port in the fabric: what a network address is to a network device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    /// The address as RoCE writes it: IPv4 in the form mapped to IPv6.
    fn from(addr: IpAddr) -> Self {
        Self(match addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl std::fmt::Debug for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gid({})", Ipv6Addr::from(self.0))
    }
}

/// State of a queue pair. Transitions as in the InfiniBand specification, volume 1, section 10.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_state")]
pub enum QpState {
    /// Just made: nothing may be posted.
    Reset,
    /// Receives may be posted; nothing is processed.
    Init,
    /// Ready to receive: knows its peer, processes incoming requests.
    Rtr,
    /// Ready to send.
    Rts,
    /// Broken or stopped: everything posted completes with a flush error.
    Err,
}

/// What a device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceAttr {
    /// Largest send or receive queue, in work requests.
    pub max_qp_wr: u32,
    /// Largest completion queue, in entries.
    pub max_cqe: u32,
    /// Largest payload of one RDMA WRITE, in bytes.
    pub max_inline: u32,
    /// Largest payload of one SEND, in bytes.
    pub max_send: u32,
    /// Whether RDMA WRITE WITH IMMEDIATE exists. iWARP has none; the soft device can be configured
    /// so, too.
    pub write_with_imm: bool,
    /// Whether memory that was not allocated by the device can be opened to remote writes.
    pub foreign_remote_write: bool,
    /// Whether a queue pair learns at once that its peer failed or is gone. Where not, it learns
    /// when it sends, or from the connection manager.
    pub notices_peer: bool,
}

/// Sizes and behaviour of a new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Send queue depth, in work requests.
    pub max_send_wr: u32,
    /// Receive queue depth, in work requests.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of one send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of one receive.
    pub max_recv_sge: u32,
    /// Whether the completion of a receive has the id that the receive was posted with. Otherwise
    /// it may have any, and the queue takes less memory.
    pub has_recv_ids: bool,
    /// Bytes of one send, at most [`DeviceAttr::max_inline`].
    pub max_inline: u32,
}

/// Retries of a request that finds no receive at the peer, as a device counts them: without end.
#[doc(alias = "rnr_retry_count")]
pub const RNR_RETRIES: u8 = 7;
