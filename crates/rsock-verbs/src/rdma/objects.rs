//! What a device makes, and what a domain makes: the traits of `device.rs` for both.

use super::{Rdma, RdmaBell, RdmaContext, RdmaCq, RdmaMr, RdmaPath, RdmaPd, RdmaQp};
use crate::device::{Context, ProtectionDomain};
use crate::error::Error;
use crate::types::{Access, DeviceAttr, QpCap};
use std::ptr::NonNull;
use std::sync::Arc;

impl Context<Rdma> for RdmaContext {
    fn attr(&self) -> DeviceAttr {
        self.limits()
    }

    fn alloc_pd(&self, path: &RdmaPath) -> Result<Arc<RdmaPd>, Error> {
        self.domain(path)
    }

    fn create_bell(&self) -> Result<RdmaBell, Error> {
        RdmaBell::new()
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

    fn create_qp(
        self: &Arc<Self>,
        ctx: &RdmaContext,
        cap: QpCap,
    ) -> Result<(Arc<RdmaCq>, RdmaQp), Error> {
        let n = cap.max_send_wr + cap.max_recv_wr;
        let cq = match ctx.share(n)? {
            Some(share) => RdmaCq::share(share),
            None => RdmaCq::device(ctx, n)?,
        };
        let qp = RdmaQp::new(self, &cq, cap)?;
        Ok((cq, qp))
    }
}
