//! Work requests: what is posted to a queue pair.

use crate::types::{LKey, RKey, RemoteAddr, WrId};
use bitflags::bitflags;

/// One piece of local registered memory: `len` bytes from virtual address `addr` under `lkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    /// Virtual address in this process; inline sends read it, too.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the region that covers it; not looked at for inline sends.
    pub lkey: LKey,
}

bitflags! {
    /// Per-request switches.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[doc(alias = "ibv_send_flags")]
    pub struct SendFlags: u32 {
        /// Produce a completion even where the queue pair does not signal all.
        const SIGNALED = 1;
        /// Copy the payload while posting: the caller's buffer is free on return and needs no key.
        const INLINE = 1 << 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 1 << 2;
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wr_opcode")]
pub enum SendOp {
    /// Into the peer's next posted receive.
    Send,
    /// RDMA WRITE: the peer gets no completion.
    Write {
        /// Where it goes.
        remote: RemoteAddr,
        /// Key for that place; not looked at for zero-length writes.
        rkey: RKey,
    },
    /// RDMA WRITE, then one of the peer's receives completes with `imm`.
    WriteImm {
        /// Where it goes.
        remote: RemoteAddr,
        /// Key for that place; not looked at for zero-length writes.
        rkey: RKey,
        /// Immediate word in host order (it travels big-endian).
        imm: u32,
    },
}

/// A send request.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_send_wr")]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// What to do.
    pub op: SendOp,
    /// Payload, gathered in order.
    pub sges: &'a [Sge],
    /// Switches.
    pub flags: SendFlags,
}

/// A receive request: where the payload of one SEND goes. Write-with-immediate consumes one too,
/// and touches no memory of it.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_recv_wr")]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// Scattered in order; may be empty.
    pub sges: &'a [Sge],
}
