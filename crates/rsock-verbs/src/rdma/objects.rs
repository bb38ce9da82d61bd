//! What a device makes, and what a domain makes: the traits of `device.rs` for both.

use super::device_cq::DeviceCq;
use super::{
    Rdma, RdmaBell, RdmaChannel, RdmaContext, RdmaCq, RdmaMr, RdmaPath, RdmaPd, RdmaQp, RdmaSrq,
};
use crate::device::{Context, ProtectionDomain, QpInit};
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

    fn create_channel(&self) -> Result<Arc<RdmaChannel>, Error> {
        RdmaChannel::new().map(Arc::new)
    }

    fn create_cq(
        &self,
        depth: u32,
        channel: Option<&Arc<RdmaChannel>>,
    ) -> Result<Arc<RdmaCq>, Error> {
        if depth == 0 || depth > self.limits().max_cqe {
            return Err(Error::Invalid("completion queue depth"));
        }
        Ok(Arc::new(RdmaCq::device(DeviceCq::new(self, depth, channel)?)))
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

    fn create_srq(self: &Arc<Self>, depth: u32, max_sge: u32) -> Result<Arc<RdmaSrq>, Error> {
        RdmaSrq::new(self, depth, max_sge)
    }

    fn create_qp(self: &Arc<Self>, init: &QpInit<'_, Rdma>) -> Result<RdmaQp, Error> {
        RdmaQp::new(self, init)
    }

    fn create_qp_with_cq(
        self: &Arc<Self>,
        ctx: &RdmaContext,
        cap: QpCap,
    ) -> Result<(Arc<RdmaCq>, RdmaQp), Error> {
        let n = cap.max_send_wr + cap.max_recv_wr;
        let cq = match ctx.share(n)? {
            Some(share) => Arc::new(RdmaCq::share(share)),
            None => ctx.create_cq(n, None)?,
        };
        let qp = RdmaQp::new(self, &QpInit { send_cq: &cq, recv_cq: &cq, srq: None, cap })?;
        Ok((cq, qp))
    }
}
