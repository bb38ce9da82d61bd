//! What the device makes, and what a domain makes: the traits of `device.rs` for both.

use super::layout::{MAX_SEND, MAX_SLOTS, MAX_WRITE};
use super::{Link, Soft, SoftBell, SoftContext, SoftCq, SoftMr, SoftPd, SoftQp};
use crate::device::{Context, ProtectionDomain};
use crate::error::Error;
use crate::types::{Access, DeviceAttr, QpCap};
use std::sync::Arc;

impl Context<Soft> for SoftContext {
    fn attr(&self) -> DeviceAttr {
        DeviceAttr {
            max_qp_wr: MAX_SLOTS / 2,
            max_cqe: 1 << 22,
            max_inline: MAX_WRITE,
            max_send: MAX_SEND,
            write_with_imm: self.has_write_imm(),
            foreign_remote_write: true,
            notices_peer: true,
        }
    }

    fn alloc_pd(&self, path: &Arc<Link>) -> Result<Arc<SoftPd>, Error> {
        SoftPd::of(path, self.has_write_imm())
    }

    fn create_bell(&self) -> Result<SoftBell, Error> {
        SoftBell::new()
    }
}

impl ProtectionDomain<Soft> for SoftPd {
    fn alloc_mr(self: &Arc<Self>, len: usize, access: Access) -> Result<SoftMr, Error> {
        SoftMr::alloc(self, len, access)
    }

    unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<SoftMr, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { SoftMr::register(self, addr, len, access) }
    }

    fn create_qp(
        self: &Arc<Self>,
        _ctx: &SoftContext,
        cap: QpCap,
    ) -> Result<(Arc<SoftCq>, SoftQp), Error> {
        let cq = Arc::new(SoftCq::new()?);
        let qp = SoftQp::new(self, &cq, &cap)?;
        Ok((cq, qp))
    }
}
