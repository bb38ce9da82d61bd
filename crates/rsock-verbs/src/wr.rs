//! Work requests: what is posted to a queue pair.

use crate::error::PostError;
use crate::types::{LKey, RKey, RemoteAddr, WrId};
use bitflags::bitflags;

/// One piece of local memory: `len` bytes from virtual address `addr`; in a receive, of a
/// registered region with key `lkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    /// Virtual address in this process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the region that covers it; not looked at for sends, which copy.
    pub lkey: LKey,
}

impl Sge {
    /// Borrowed bytes that are to be sent.
    ///
    /// # Errors
    /// [`PostError::Invalid`] for more than a length can say.
    #[inline]
    pub(crate) fn of_borrowed(bytes: &[u8]) -> Result<Self, PostError> {
        let addr = bytes.as_ptr().expose_provenance() as u64;
        let len = u32::try_from(bytes.len()).map_err(|_| PostError::Invalid)?;
        Ok(Self { addr, len, lkey: LKey(0) })
    }
}

bitflags! {
    /// Per-request switches.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[doc(alias = "ibv_send_flags")]
    pub struct SendFlags: u32 {
        /// Produce a completion.
        const SIGNALED = 1;
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

/// A send request. Its payload is copied while it is posted.
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
