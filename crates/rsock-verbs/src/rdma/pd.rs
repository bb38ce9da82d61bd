//! Protection domains.

use super::convert::object;
use super::mr::RdmaMr;
use super::qp::RdmaQp;
use super::srq::RdmaSrq;
use super::{Rdma, RdmaContext};
use crate::device::{ProtectionDomain, QpInit};
use crate::error::Error;
use crate::types::Access;
use rsock_rdma_sys::verbs::ibv_pd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain, for queue pairs over one port.
///
/// # Invariants
/// `raw` came from `ibv_alloc_pd` and is freed exactly once, in `drop`; whatever lies in the domain
/// holds this value.
#[derive(Debug)]
pub struct RdmaPd {
    raw: NonNull<ibv_pd>,
    port: u8,
    ctx: RdmaContext,
}

// SAFETY: libibverbs's domains may be used from any thread.
unsafe impl Send for RdmaPd {}
// SAFETY: as above, by several at once.
unsafe impl Sync for RdmaPd {}

impl RdmaPd {
    pub(super) fn new(ctx: &RdmaContext, port: u8) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { ctx.verbs().ibv_alloc_pd(ctx.raw()) };
        // INVARIANT: made here, freed by `drop`.
        let raw = object("ibv_alloc_pd", raw)?;
        Ok(Arc::new(Self { raw, port, ctx: ctx.clone() }))
    }

    pub(super) fn ctx(&self) -> &RdmaContext {
        &self.ctx
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn port(&self) -> u8 {
        self.port
    }
}

impl Drop for RdmaPd {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_alloc_pd`, and nothing in it is left.
        let _ = unsafe { self.ctx.verbs().ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

impl ProtectionDomain<Rdma> for RdmaPd {
    fn alloc_mr(self: &Arc<Self>, len: usize, access: Access) -> Result<RdmaMr, Error> {
        RdmaMr::alloc(self, len, access)
    }

    unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<RdmaMr, Error> {
        let addr = NonNull::new(addr).ok_or(Error::Invalid("a region at address 0"))?;
        // SAFETY: the caller promises the same.
        unsafe { RdmaMr::register(self, addr, len, access) }
    }

    fn create_srq(self: &Arc<Self>, depth: u32, max_sge: u32) -> Result<Arc<RdmaSrq>, Error> {
        RdmaSrq::new(self, depth, max_sge)
    }

    fn create_qp(self: &Arc<Self>, init: &QpInit<'_, Rdma>) -> Result<RdmaQp, Error> {
        RdmaQp::new(self, init)
    }
}
