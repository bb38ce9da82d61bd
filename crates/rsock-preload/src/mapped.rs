//! Memory that the kernel gives for the time of one call. A thread may have a stack of 16 KiB
//! (`PTHREAD_STACK_MIN`), and a signal handler must not allocate.

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

/// Bytes that begin with a page, zeroed at first. PERF: to map and unmap them costs some
/// microseconds, and only the pages that the call uses take memory.
///
/// # Invariants
/// `len` bytes are mapped at `at` until this is dropped.
pub(crate) struct Mapped {
    at: NonNull<u8>,
    len: usize,
}

impl Mapped {
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new(len: usize) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces no other.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        Ok(Self { at: NonNull::new(at.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialized, by the invariant.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Mapped {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and borrowed once.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no borrow of it is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
