//! Memory regions: memory that the device may read and write, pinned.

use super::RdmaPd;
use super::convert::{self, object};
use super::usage::Counted;
use crate::device::MemoryRegion;
use crate::error::Error;
use crate::high_fd::verb;
use crate::types::{Access, LKey, RKey, RemoteAddr};
use crate::wr::Sge;
use crate::{copy, fault};
use rsock_rdma_sys::verbs::ibv_mr;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A region.
///
/// # Invariants
/// `raw` came from `ibv_reg_mr` for the `len` bytes at `addr`, and ends exactly once, in `drop`,
/// before the memory does.
#[derive(Debug)]
pub struct RdmaMr {
    raw: NonNull<ibv_mr>,
    addr: NonNull<u8>,
    len: usize,
    lkey: LKey,
    rkey: RKey,
    pd: Arc<RdmaPd>,
    _counted: Counted,
    /// Memory that this region owns, if it does: dropped after `drop` has run.
    _pages: Option<Pages>,
}

// SAFETY: the memory is reached by bounded copies through raw pointers only.
unsafe impl Send for RdmaMr {}
// SAFETY: as above; a copy that another thread or a peer disturbs is torn, no worse.
unsafe impl Sync for RdmaMr {}

impl RdmaMr {
    pub(super) fn alloc(pd: &Arc<RdmaPd>, len: usize, access: Access) -> Result<Self, Error> {
        check(len, access)?;
        let pages = Pages::new(len)?;
        // SAFETY: the pages live in the region itself, and no reference into them exists.
        let mut mr = unsafe { Self::register(pd, pages.addr, len, access) }?;
        mr._pages = Some(pages);
        Ok(mr)
    }

    /// # Safety
    /// As for `reg_mr` of the trait.
    pub(super) unsafe fn register(
        pd: &Arc<RdmaPd>,
        addr: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        check(len, access)?;
        let rights = c_int::try_from(convert::access(access).0).unwrap_or(0);
        let verbs = pd.ctx().verbs();
        // SAFETY: the domain is live, and the caller promises the memory.
        let raw = unsafe { verbs.ibv_reg_mr(pd.raw(), addr.as_ptr().cast(), len, rights) };
        let raw = object("ibv_reg_mr", raw)?;
        // SAFETY: the region is live; its keys do not change.
        let lkey = LKey(unsafe { (*raw.as_ptr()).lkey });
        // SAFETY: as above.
        let rkey = RKey(unsafe { (*raw.as_ptr()).rkey });
        // INVARIANT: registered here for these bytes; `drop` ends it.
        let _counted = Counted::bytes(len);
        Ok(Self { raw, addr, len, lkey, rkey, pd: Arc::clone(pd), _counted, _pages: None })
    }

    /// A piece of the region.
    pub(super) fn sge(&self, offset: usize, len: u32) -> Sge {
        let addr = self.at(offset, len as usize).expose_provenance() as u64;
        Sge { addr, len, lkey: self.lkey }
    }

    /// As `copy_in`, from memory that need not be Rust's, and may be missing: false then.
    ///
    /// # Safety
    /// `len` bytes at `from` are readable or missing, and do not overlap the span.
    #[must_use]
    pub(super) unsafe fn try_copy_in(&self, offset: usize, from: *const u8, len: usize) -> bool {
        let to = self.at(offset, len);
        // SAFETY: the span is inside the region, and the caller promises the source.
        unsafe { fault::copy(from, to, len) }
    }

    /// The span's first byte.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "a span outside its region");
        // SAFETY: inside the region, as just checked.
        unsafe { self.addr.as_ptr().add(offset) }
    }
}

fn check(len: usize, access: Access) -> Result<(), Error> {
    if len == 0 {
        return Err(Error::Invalid("a region of length 0"));
    }
    if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid("remote write without local write"));
    }
    Ok(())
}

impl Drop for RdmaMr {
    fn drop(&mut self) {
        // SAFETY: registered by `ibv_reg_mr`; nothing uses the region any longer.
        let _ = unsafe { self.pd.ctx().verbs().ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

impl MemoryRegion for RdmaMr {
    fn addr(&self) -> RemoteAddr {
        RemoteAddr(self.addr.as_ptr().expose_provenance() as u64)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn lkey(&self) -> LKey {
        self.lkey
    }

    fn rkey(&self) -> RKey {
        self.rkey
    }

    #[inline]
    fn copy_in(&self, offset: usize, src: &[u8]) {
        let to = self.at(offset, src.len());
        // SAFETY: `src` is readable and the span is inside the region; a slice that Rust vouches
        // for does not overlap memory that others write.
        unsafe { copy::plain(src.as_ptr(), to, src.len()) };
    }

    #[inline]
    fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        let from = self.at(offset, dst.len());
        // SAFETY: as in `copy_in`, the other way.
        unsafe { copy::plain(from, dst.as_mut_ptr(), dst.len()) };
    }

    #[inline]
    fn try_copy_out(&self, offset: usize, dst: &mut [u8]) -> bool {
        let from = self.at(offset, dst.len());
        // SAFETY: as in `copy_in`, the other way.
        unsafe { fault::copy(from, dst.as_mut_ptr(), dst.len()) }
    }

    /// The device has pinned the pages, so none can be released.
    fn punch(&self, offset: usize, len: usize) {
        let _ = self.at(offset, len);
    }
}

/// Zeroed pages that the region owns.
///
/// # Invariants
/// A private anonymous mapping of `len` bytes at `addr`, unmapped exactly once, in `drop`.
#[derive(Debug)]
struct Pages {
    addr: NonNull<u8>,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Result<Self, Error> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let addr = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE) };
        let addr = NonNull::new(addr.map_err(verb("mmap"))?.cast::<u8>());
        // INVARIANT: mapped just here.
        Ok(Self { addr: addr.ok_or(Error::Exhausted("memory"))?, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer registered at the device.
        let _ = unsafe { munmap(self.addr.as_ptr().cast(), self.len) };
    }
}
