//! Protection domains: the memory that one peer process may write.

use super::Soft;
use super::context::SoftContext;
use super::link::Link;
use super::mr::SoftMr;
use super::qp::SoftQp;
use super::srq::SoftSrq;
use crate::device::{ProtectionDomain, QpInit};
use crate::error::Error;
use crate::types::Access;
use std::sync::Arc;

/// The protection domain of a link: one per peer process.
#[derive(Debug)]
pub struct SoftPd {
    link: Arc<Link>,
    write_imm: bool,
}

impl SoftPd {
    pub(super) fn of(ctx: &SoftContext, link: &Arc<Link>) -> Result<Arc<Self>, Error> {
        link.check_owner()?;
        if !link.is_alive() {
            return Err(Error::PeerGone);
        }
        let write_imm = ctx.has_write_imm();
        let make = || Arc::new(Self { link: Arc::clone(link), write_imm });
        let pd = link.pd(make);
        // A device with write-with-immediate and one without it are two devices.
        if pd.write_imm == write_imm { Ok(pd) } else { Ok(make()) }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(super) fn has_write_imm(&self) -> bool {
        self.write_imm
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

    fn create_srq(self: &Arc<Self>, depth: u32, max_sge: u32) -> Result<Arc<SoftSrq>, Error> {
        SoftSrq::new(self, depth, max_sge).map(Arc::new)
    }

    fn create_qp(self: &Arc<Self>, init: &QpInit<'_, Soft>) -> Result<SoftQp, Error> {
        SoftQp::new(self, init)
    }
}
