//! Process and thread identity that stays right across `fork` and `vfork`.
//!
//! `getpid` on every call would be a system call on the data path. Instead one page carries the
//! process id and is marked `MADV_WIPEONFORK`: in a forked child it reads as zero, and is filled
//! again. A `vfork` child shares the page with its parent and [`process`]'s callers compare with
//! the kernel where the difference matters.

use crate::raw;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A process of this family, and how many forks it has gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u32);

#[repr(C)]
struct Page {
    pid: AtomicU32,
    /// Process id and namespace, as in the tags of its threads.
    key: AtomicU32,
}

/// The state that all processes of a family share.
#[repr(C)]
struct Common {
    /// Process-id namespaces that processes of the family are in, beside the first one.
    n_namespaces: AtomicU32,
    /// The identity of a process of the family.
    word: AtomicU64,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static COMMON: AtomicPtr<Common> = AtomicPtr::new(ptr::null_mut());
/// Number of this process's namespace in its family.
static NAMESPACE: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Thread ids are below 2^22 (`pid_max`); the bits above, but for the last one, number the
/// namespace.
const TID: u32 = (1 << 22) - 1;
const NAMESPACE_SHIFT: u32 = 22;
/// The number for namespaces beyond the last number, and where namespaces cannot be counted.
const UNKNOWN: u32 = (1 << 9) - 1;

crate::per_thread! {
    /// Key of the process that the tag was made in, and the tag.
    TAG: Cell<(u32, u32)>, "tag"
}

/// The calling process, at the cost of two loads.
#[must_use]
#[inline]
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
    thread_tag() & TID
}

/// The calling thread, as the threads of all processes of the family know it: its id, and the
/// number of the namespace that the id is of. Cached per thread and process.
#[inline]
pub(super) fn thread_tag() -> u32 {
    let here = key();
    TAG.with(|cell| {
        let (at, tag) = cell.get();
        if at == here {
            return tag;
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let tag = tid & TID | NAMESPACE.load(Ordering::Relaxed) << NAMESPACE_SHIFT;
        cell.set((here, tag));
        tag
    })
}

/// Whether the thread of that tag runs, as far as can be known: a thread of another namespace is
/// taken to run.
pub(super) fn is_thread_alive(tag: u32) -> bool {
    let (tid, namespace) = (tag & TID, tag >> NAMESPACE_SHIFT);
    if namespace == UNKNOWN || namespace != NAMESPACE.load(Ordering::Relaxed) {
        return true;
    }
    // SAFETY: signal 0 is never delivered; the call only checks that the thread exists.
    let found = unsafe { raw::syscall!(libc::SYS_tkill, tid, 0) };
    if found.err().and_then(|e| e.raw_os_error()) == Some(libc::ESRCH) {
        return false;
    }
    is_of_family(tid) != Some(false)
}

/// Whether thread `tid` is one of the family's: another program may have been given the id, or the
/// owner's process have become one. `None` if the system does not tell, as under Yama.
fn is_of_family(tid: u32) -> Option<bool> {
    let common = COMMON.load(Ordering::Acquire);
    // SAFETY: null, or a page that is never unmapped.
    let word = unsafe { common.as_ref() }?.word.load(Ordering::Relaxed);
    // SAFETY: the page is the same in every process of the family, at the same address.
    let at = unsafe { &raw const (*common).word };
    let mut seen = 0u64;
    let local = libc::iovec { iov_base: (&raw mut seen).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: 8 };
    // SAFETY: `local` names `seen`; the remote side is the kernel's to check.
    let n = unsafe {
        let (local, remote) = (&raw const local, &raw const remote);
        raw::syscall!(libc::SYS_process_vm_readv, tid, local, 1usize, remote, 1usize, 0usize)
    };
    match n.map_err(|e| e.raw_os_error()) {
        Ok(8) => Some(seen == word),
        Err(Some(libc::EFAULT | libc::ESRCH)) => Some(false),
        _ => None,
    }
}

/// Whether this process is in another process-id namespace than the one that its family began in:
/// then process ids mean something else to others of the family.
#[must_use]
pub fn is_in_other_namespace() -> bool {
    let _ = process();
    NAMESPACE.load(Ordering::Relaxed) != 0
}

#[inline]
fn key() -> u32 {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: a published page is never unmapped.
        let key = unsafe { &(*page).key }.load(Ordering::Relaxed);
        if key != 0 {
            return key;
        }
    }
    let pid = refresh().0;
    pid | NAMESPACE.load(Ordering::Relaxed) << NAMESPACE_SHIFT
}

/// Announces that the process is about to fork: blocks alive now are shared from here on. Called by
/// the fork hook of the preload library or of the program.
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
        make_common();
        let Some(fresh) = map_page() else { return ProcessId(pid) };
        // SYNC(pid-page): publishes the mapping. Pairs with the Acquire loads above.
        match PAGE.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page = fresh,
            // Another thread won; this thread's page stays mapped, which happens at most a few
            // times per process.
            Err(theirs) => page = theirs,
        }
    } else if rustix::process::getppid().is_none() {
        // A child whose parent has no id here: in a namespace of its own, or in one that it was put
        // in.
        let common = COMMON.load(Ordering::Acquire);
        // SAFETY: null, or a page that is never unmapped.
        let count = unsafe { common.as_ref() };
        let number = count.map_or(UNKNOWN, |c| c.n_namespaces.fetch_add(1, Ordering::Relaxed) + 1);
        NAMESPACE.store(number.min(UNKNOWN), Ordering::Relaxed);
    }
    // SAFETY: a published page is never unmapped.
    let page = unsafe { &*page };
    page.key.store(pid | NAMESPACE.load(Ordering::Relaxed) << NAMESPACE_SHIFT, Ordering::Relaxed);
    page.pid.store(pid, Ordering::Relaxed);
    ProcessId(pid)
}

/// Makes the shared state of the family, in its first process.
fn make_common() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice replaces no memory that is in
    // use.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), 4096, access, MapFlags::SHARED) };
    let Ok(at) = at else { return };
    let common = at.cast::<Common>();
    let mut word = [0u8; 8];
    let _ = rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::empty());
    // SAFETY: the page just mapped, zeroed, and larger than that.
    unsafe { &(*common).word }.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    let none = ptr::null_mut();
    // SYNC(pid-page): publishes the mapping. Pairs with the Acquire loads above. If another thread
    // was faster, this thread's page stays mapped, as below.
    let _ = COMMON.compare_exchange(none, common, Ordering::Release, Ordering::Relaxed);
}

fn map_page() -> Option<*mut Page> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    // SAFETY: a fresh private mapping at an address of the kernel's choice replaces no memory that
    // is in use.
    let at = unsafe {
        mmap_anonymous(ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: `at` is the page just mapped, and no other thread knows it.
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
