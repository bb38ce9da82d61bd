//! Whether the process has a second thread.

use crate::next;
use libc::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's flag for that, where it has one (glibc from 2.32 on).
#[unsafe(link_section = "rsock_startup")]
static IS_ALONE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Finds the C library's flag. Runs in the constructor: `dlsym` must not run in a signal handler.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn find_flag() {
    IS_ALONE.store(next::find_anywhere(c"__libc_single_threaded").cast(), Ordering::Relaxed);
}

/// Whether the calling thread is certainly the only one of this process.
#[inline]
pub(crate) fn is_alone() -> bool {
    let flag = IS_ALONE.load(Ordering::Relaxed);
    // SAFETY: null, or a variable of the C library, which is mapped as long as the process lives.
    // Only the thread that is alone could change it, by the calls of its own that make threads.
    !flag.is_null() && unsafe { ptr::read_volatile(flag) } != 0
}
