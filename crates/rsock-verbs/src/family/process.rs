//! Who we are: process and thread identity that stays right across `fork` and `vfork`.
//!
//! `getpid` on every call would be a system call on the data path. Instead one page carries our
//! process id and is marked `MADV_WIPEONFORK`: in a forked child it reads as zero, and is filled
//! again. A `vfork` child shares the page with its parent and is told apart by [`process`]'s
//! callers, which compare with the kernel where it matters.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A process of this family, and how many forks it has gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

#[repr(C)]
struct Page {
    pid: AtomicU32,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Process that `TID` was read in, and the thread id there.
    static TID: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The calling process, at the cost of two loads.
#[must_use]
pub fn process() -> ProcessId {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: a published page is never unmapped.
        let pid = unsafe { &(*page).pid }.load(Ordering::Relaxed);
        if pid != 0 {
            return ProcessId(pid);
        }
    }
    refresh()
}

/// The calling thread's id (`gettid`), cached per thread and process.
#[must_use]
pub fn thread_id() -> u32 {
    let here = process().0;
    TID.with(|cell| {
        let (at, tid) = cell.get();
        if at == here {
            return tid;
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        cell.set((here, tid));
        tid
    })
}

/// Tells this module that the process is about to fork: blocks alive now are shared from here on.
/// Called by the fork hook of whoever owns the process (the preload library, or a program's own).
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Forks noted so far.
#[must_use]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

#[cold]
fn refresh() -> ProcessId {
    let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let Some(fresh) = map_page() else { return ProcessId(pid) };
        // SYNC(pid-page): publishes the mapping. Pairs with the Acquire loads above.
        match PAGE.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page = fresh,
            // Another thread won; our page stays mapped, once per process at most a few times.
            Err(theirs) => page = theirs,
        }
    }
    // SAFETY: a published page is never unmapped.
    unsafe { &(*page).pid }.store(pid, Ordering::Relaxed);
    ProcessId(pid)
}

fn map_page() -> Option<*mut Page> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing of ours.
    let at = unsafe {
        mmap_anonymous(ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: `at` is the page just mapped, and nobody else knows it.
    unsafe { madvise(at, 4096, Advice::LinuxWipeOnFork) }.ok()?;
    Some(at.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_the_kernels() {
        assert_eq!(process().0, std::process::id());
        assert_eq!(thread_id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        std::thread::spawn(|| {
            assert_eq!(
                thread_id(),
                rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
            );
        })
        .join()
        .expect("thread");
    }

    #[test]
    fn a_forked_child_sees_its_own_identity() {
        let before = process();
        // SAFETY: the child only reads atomics and exits at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ok = process() != before
                && process().0 == std::process::id()
                && thread_id() == std::process::id();
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
