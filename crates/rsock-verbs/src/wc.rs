//! Work completions.

use crate::types::{QpNum, WrId};

/// Outcome of a request. A transparent number with named constants, so that an unknown status is
/// still a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
#[doc(alias = "ibv_wc_status")]
pub struct WcStatus(pub u32);

impl WcStatus {
    /// It worked.
    #[doc(alias = "IBV_WC_SUCCESS")]
    pub const SUCCESS: Self = Self(0);
    /// The payload does not fit the receive, or exceeds the device's limit.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    pub const LOC_LEN: Self = Self(1);
    /// The queue pair could not execute the request. Soft RoCE reports wrong local keys with this,
    /// too.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    pub const LOC_QP_OP: Self = Self(2);
    /// A local key or bound is wrong.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    pub const LOC_PROT: Self = Self(4);
    /// The queue pair went to the error state before this ran.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    pub const WR_FLUSH: Self = Self(5);
    /// The peer could not take the request (a SEND longer than its receive).
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    pub const REM_INV_REQ: Self = Self(9);
    /// The peer's key, bounds or access flags refuse it.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    pub const REM_ACCESS: Self = Self(10);
    /// The peer could not do it.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    pub const REM_OP: Self = Self(11);
    /// The peer is gone.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    pub const RETRY_EXC: Self = Self(12);
    /// The peer posted no receive in time.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    pub const RNR_RETRY_EXC: Self = Self(13);
    /// Anything else.
    #[doc(alias = "IBV_WC_GENERAL_ERR")]
    pub const GENERAL: Self = Self(21);
}

impl std::fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match *self {
            Self::SUCCESS => "success",
            Self::LOC_LEN => "local length error",
            Self::LOC_QP_OP => "local operation error",
            Self::LOC_PROT => "local protection error",
            Self::WR_FLUSH => "flushed",
            Self::REM_INV_REQ => "remote invalid request",
            Self::REM_ACCESS => "remote access error",
            Self::REM_OP => "remote operation error",
            Self::RETRY_EXC => "transport retries exceeded",
            Self::RNR_RETRY_EXC => "receiver-not-ready retries exceeded",
            Self::GENERAL => "general error",
            Self(other) => return write!(f, "completion status {other}"),
        };
        f.write_str(name)
    }
}

impl std::error::Error for WcStatus {}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc_opcode")]
pub enum WcOp {
    /// A local SEND.
    Send,
    /// A local RDMA WRITE, with or without immediate.
    Write,
    /// A receive, filled by the peer's SEND.
    Recv,
    /// A receive, consumed by the peer's WRITE WITH IMMEDIATE.
    RecvWriteImm,
}

/// One completion.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_wc")]
pub struct Completion {
    /// The request's name.
    pub id: WrId,
    /// Outcome. With anything but success only `id`, `status` and `qp_num` mean something.
    pub status: WcStatus,
    /// What it was.
    pub op: WcOp,
    /// Payload bytes, for receives.
    pub len: u32,
    /// Immediate word in host order, for [`WcOp::RecvWriteImm`]; the sender's queue pair, for a
    /// datagram.
    pub imm: u32,
    /// The queue pair it belongs to.
    pub qp_num: QpNum,
}

impl Completion {
    /// What a poll has room for before it has found anything.
    pub const BLANK: Self = Self {
        id: WrId(0),
        status: WcStatus::SUCCESS,
        op: WcOp::Send,
        len: 0,
        imm: 0,
        qp_num: QpNum(0),
    };

    /// The completion that `poll` stores, which is given room for one, if it stores one.
    #[inline]
    pub(crate) fn one(poll: impl FnOnce(&mut [Self]) -> usize) -> Option<Self> {
        let mut out = [Self::BLANK];
        (poll(&mut out) == 1).then_some(out[0])
    }

    /// The completion as a result.
    ///
    /// # Errors
    /// The status, if it is not success.
    pub fn result(&self) -> Result<&Self, WcStatus> {
        if self.status == WcStatus::SUCCESS { Ok(self) } else { Err(self.status) }
    }
}
