//! Shared receive queues.

use super::RdmaPd;
use super::convert::{object, posted};
use super::requests::with_recv_wr;
use super::usage::{Counted, Kind};
use crate::device::SharedReceiveQueue;
use crate::error::{Error, PostError};
use crate::wr::RecvWr;
use rsock_rdma_sys::inline;
use rsock_rdma_sys::verbs::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A shared receive queue.
///
/// # Invariants
/// `raw` came from `ibv_create_srq` and is destroyed exactly once, in `drop`; queue pairs that use
/// it hold this value.
#[derive(Debug)]
pub struct RdmaSrq {
    raw: NonNull<ibv_srq>,
    pd: Arc<RdmaPd>,
    _counted: Counted,
}

// SAFETY: libibverbs's queues may be used from any thread.
unsafe impl Send for RdmaSrq {}
// SAFETY: as above, by several at once.
unsafe impl Sync for RdmaSrq {}

impl RdmaSrq {
    pub(super) fn new(pd: &Arc<RdmaPd>, depth: u32, max_sge: u32) -> Result<Arc<Self>, Error> {
        if depth == 0 || depth > pd.ctx().max_srq_wr() {
            return Err(Error::Invalid("shared receive queue depth"));
        }
        let attr = ibv_srq_attr { max_wr: depth, max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is live and `init` is writable.
        let raw = unsafe { pd.ctx().verbs().ibv_create_srq(pd.raw(), &raw mut init) };
        // INVARIANT: made here, destroyed by `drop`.
        let raw = object("ibv_create_srq", raw)?;
        let _counted = Counted::one(Kind::SharedReceiveQueue);
        Ok(Arc::new(Self { raw, pd: Arc::clone(pd), _counted }))
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for RdmaSrq {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_srq`, and no queue pair uses it any longer.
        let _ = unsafe { self.pd.ctx().verbs().ibv_destroy_srq(self.raw.as_ptr()) };
    }
}

impl SharedReceiveQueue for RdmaSrq {
    unsafe fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        with_recv_wr(wr, |wr, bad| {
            // SAFETY: the queue is live, the request is on the stack of the caller of this closure,
            // and the caller of this function promises the memory that it names.
            posted(unsafe { inline::post_srq_recv(self.raw(), wr, bad) })
        })
    }
}
