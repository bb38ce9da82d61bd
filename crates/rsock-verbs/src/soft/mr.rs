//! Memory regions: allocated in the segment, so shared from the start, or foreign memory of the
//! caller.

use super::alloc::{LINE, is_block};
use super::creation_stamp::CreationStamp;
use super::foreign::Admission;
use super::layout::PAGE;
use super::pd::SoftPd;
use super::regions::Extent;
use crate::copy;
use crate::device::MemoryRegion;
use crate::error::Error;
use crate::fault;
use crate::types::{Access, LKey, RKey, RemoteAddr};
use std::ptr::NonNull;
use std::sync::Arc;

/// A memory region.
///
/// # Invariants
/// `at..at + len` is valid until `drop`: either a part of this process's segment that the allocator
/// gave to this region, or memory that the caller of `register` keeps valid.
#[derive(Debug)]
pub struct SoftMr {
    at: NonNull<u8>,
    len: usize,
    key: u32,
    /// Offset in this process's segment; `None` for foreign memory.
    offset: Option<u64>,
    /// Whether the peer may write it.
    open: bool,
    /// The permission that lets the peer write it, where one is needed.
    _admission: Option<Admission>,
    created: CreationStamp,
    pd: Arc<SoftPd>,
}

// SAFETY: the memory is reached by copies that tolerate foreign writes, from any thread.
unsafe impl Send for SoftMr {}
// SAFETY: as for `Send`.
unsafe impl Sync for SoftMr {}

fn check(len: usize, access: Access) -> Result<(), Error> {
    if len == 0 {
        return Err(Error::Invalid("a region of no bytes"));
    }
    if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid("remote write needs local write"));
    }
    Ok(())
}

/// Bytes to allocate for a region of `len`: short ones share pages.
fn allocated(len: usize) -> u64 {
    let len = len as u64;
    if len <= LINE { LINE } else { len.max(PAGE) }
}

impl SoftMr {
    pub(super) fn alloc(pd: &Arc<SoftPd>, len: usize, access: Access) -> Result<Self, Error> {
        check(len, access)?;
        let link = pd.link();
        let size = len as u64;
        let offset = link.alloc(allocated(len))?;
        let made =
            link.own_segment().bytes(offset, size).ok_or(Error::Exhausted("segment")).and_then(
                |at| {
                    let addr = at.as_ptr().expose_provenance() as u64;
                    let extent = Extent { addr, len: size, offset: Some(offset), access };
                    Ok((at, link.regions().add(link.own_segment(), extent)?))
                },
            );
        let open = access.contains(Access::REMOTE_WRITE);
        match made {
            Ok((at, key)) => {
                let pd = Arc::clone(pd);
                // INVARIANT: the allocator gave these bytes to no other region.
                let (offset, created) = (Some(offset), CreationStamp::now());
                Ok(Self { at, len, key, offset, open, _admission: None, created, pd })
            }
            Err(e) => {
                link.free(offset, allocated(len));
                Err(e)
            }
        }
    }

    /// # Safety
    /// As [`crate::ProtectionDomain::reg_mr`].
    pub(super) unsafe fn register(
        pd: &Arc<SoftPd>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        check(len, access)?;
        let at = NonNull::new(addr).ok_or(Error::Invalid("a region at address 0"))?;
        let link = pd.link();
        link.check_owner()?;
        let open = access.contains(Access::REMOTE_WRITE);
        let _admission = if open { link.foreign().check(link.own_segment())? } else { None };
        let extent =
            Extent { addr: addr.expose_provenance() as u64, len: len as u64, offset: None, access };
        let key = link.regions().add(link.own_segment(), extent)?;
        // INVARIANT: by the caller's promise.
        let (created, pd) = (CreationStamp::now(), Arc::clone(pd));
        Ok(Self { at, len, key, offset: None, open, _admission, created, pd })
    }

    fn span(&self, offset: usize, len: usize) -> NonNull<u8> {
        let inside = offset <= self.len && len <= self.len - offset;
        assert!(inside, "{len} bytes at {offset} of a region of {}", self.len);
        // SAFETY: inside the region, by the assertion.
        unsafe { self.at.add(offset) }
    }
}

impl MemoryRegion for SoftMr {
    fn addr(&self) -> RemoteAddr {
        RemoteAddr(self.at.as_ptr().expose_provenance() as u64)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    #[inline]
    fn copy_in(&self, offset: usize, src: &[u8]) {
        let to = self.span(offset, src.len());
        // SAFETY: `src` is readable, `to` is inside the region; a valid slice does not overlap
        // memory that others write.
        unsafe { copy::plain(src.as_ptr(), to.as_ptr(), src.len()) };
    }

    #[inline]
    fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        let from = self.span(offset, dst.len());
        // SAFETY: as in `copy_in`, the other way.
        unsafe { copy::plain(from.as_ptr(), dst.as_mut_ptr(), dst.len()) };
    }

    #[inline]
    fn try_copy_out(&self, offset: usize, dst: &mut [u8]) -> bool {
        let from = self.span(offset, dst.len());
        // SAFETY: as in `copy_in`, the other way.
        unsafe { fault::copy(from.as_ptr(), dst.as_mut_ptr(), dst.len()) }
    }

    fn punch(&self, offset: usize, len: usize) {
        let _ = self.span(offset, len);
        let (from, mut to) = (offset as u64, (offset + len) as u64);
        if offset + len == self.len && !is_block(allocated(self.len)) {
            // The rest of the last page belongs to this region too.
            to = to.next_multiple_of(PAGE);
        }
        if let Some(at) = self.offset {
            self.pd.link().own_segment().punch(at + from, to - from);
        }
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        // A region that existed during a fork belongs to the process family: another process may
        // use it.
        if !self.created.is_unshared() {
            return;
        }
        let link = self.pd.link();
        link.regions().remove(link.own_segment(), self.key);
        match self.offset {
            Some(at) => link.retire_region(at, allocated(self.len)),
            // From here on the caller may reuse the memory.
            None if self.open => link.wait_for_copies(),
            None => {}
        }
    }
}
