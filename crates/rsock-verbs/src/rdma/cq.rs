//! Completion queues: a share of a shared one, or one of the device's, for datagrams and where the
//! device has no queue long enough to share.

use super::device_cq::DeviceCq;
use super::outstanding_sends::OutstandingSends;
use super::shared_cq::CqShare;
use super::{Rdma, RdmaBell, RdmaContext};
use crate::device::{CompletionQueue, Context, Parked};
use crate::error::Error;
use crate::types::QpNum;
use crate::wc::Completion;
use rsock_rdma_sys::verbs::ibv_cq;
use std::sync::Arc;
use std::time::Duration;

/// A completion queue.
#[derive(Debug)]
pub struct RdmaCq(Kind);

#[derive(Debug)]
enum Kind {
    Device(DeviceCq),
    CqShare(Arc<CqShare>),
}

/// Runs the same call on either kind.
macro_rules! on {
    ($cq:expr, $inner:ident => $do:expr) => {
        match &$cq.0 {
            Kind::Device($inner) => $do,
            Kind::CqShare($inner) => $do,
        }
    };
}

impl RdmaCq {
    /// A queue of the device's with room for `depth` completions.
    pub(super) fn device(ctx: &RdmaContext, depth: u32) -> Result<Arc<Self>, Error> {
        if depth == 0 || depth > ctx.attr().max_cqe {
            return Err(Error::Invalid("completion queue depth"));
        }
        Ok(Arc::new(Self(Kind::Device(DeviceCq::new(ctx, depth)?))))
    }

    pub(super) fn share(share: Arc<CqShare>) -> Arc<Self> {
        Arc::new(Self(Kind::CqShare(share)))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        match &self.0 {
            Kind::Device(cq) => cq.raw(),
            Kind::CqShare(share) => share.queue().raw(),
        }
    }

    /// A queue pair completes its sends here.
    pub(super) fn attach(&self, qp_num: QpNum, sends: &Arc<OutstandingSends>) {
        on!(self, cq => cq.attach(qp_num, sends));
    }

    /// Polls for completed sends, even if received completions are not taken.
    pub(super) fn gather(&self) {
        match &self.0 {
            Kind::Device(cq) => cq.gather(),
            // Polling takes all there is.
            Kind::CqShare(share) => _ = share.is_ready(),
        }
    }

    /// Removes a queue pair that is gone.
    pub(super) fn detach(&self, qp_num: QpNum, sends: &Arc<OutstandingSends>) {
        on!(self, cq => cq.detach(qp_num, sends));
    }
}

impl CompletionQueue<Rdma> for RdmaCq {
    #[inline]
    fn poll(&self, out: &mut [Completion]) -> usize {
        on!(self, cq => cq.poll(out))
    }

    #[inline]
    fn is_ready(&self) -> bool {
        on!(self, cq => cq.is_ready())
    }

    #[inline]
    fn has_reported(&self) -> bool {
        on!(self, cq => cq.is_stashed())
    }

    fn arm(&self, bell: &RdmaBell) -> bool {
        on!(self, cq => cq.arm(bell))
    }

    fn disarm(&self, bell: &RdmaBell) {
        on!(self, cq => cq.disarm(bell));
    }

    fn park(&self, timeout: Option<Duration>) -> Parked {
        self.park_since(self.wake_epoch(), timeout)
    }

    #[inline]
    fn wake_epoch(&self) -> u32 {
        on!(self, cq => cq.wake_epoch())
    }

    fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        on!(self, cq => cq.park_since(epoch, timeout))
    }

    #[inline]
    fn wake_waiters(&self) {
        on!(self, cq => cq.wake_waiters());
    }
}
