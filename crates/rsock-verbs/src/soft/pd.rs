//! Protection domains: the memory that one peer process may write.

use super::Link;
use crate::error::Error;
use std::sync::Arc;

/// The protection domain of a link: one per peer process.
#[derive(Debug)]
pub struct SoftPd {
    link: Arc<Link>,
    write_imm: bool,
}

impl SoftPd {
    /// The domain of `link`, on a device that has write-with-immediate or not.
    pub(super) fn of(link: &Arc<Link>, write_imm: bool) -> Result<Arc<Self>, Error> {
        link.check_owner()?;
        if !link.is_alive() {
            return Err(Error::PeerGone);
        }
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
