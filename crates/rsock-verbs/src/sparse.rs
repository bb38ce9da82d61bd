//! Sparse shared mappings: address space, of which pages are taken when they are touched.
//!
//! They must cost a program nothing but address space, and not much of that where it is limited.
//! So they are kept out of core dumps, which would touch every page of them, and out of what
//! `mlockall(MCL_FUTURE)` locks, which would take every page at once.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use rustix::mm::{mprotect, munlock, munmap};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr;

/// Of the address space that a process has left, one mapping may take this part: the rest is the
/// program's.
const PART: u64 = 32;

/// Whether the process's address space is limited (`RLIMIT_AS`).
pub(crate) fn is_limited() -> bool {
    getrlimit(Resource::As).current.is_some()
}

/// Whether a mapping of that many bytes leaves the program what it may expect.
pub(crate) fn has_room(len: u64) -> bool {
    let limit = getrlimit(Resource::As).current.unwrap_or_else(address_space);
    in_use().is_some_and(|used| len <= limit.saturating_sub(used) / PART)
}

/// Bytes of address space that the processor and the kernel give a process. Its stacks lie in the
/// upper half of it.
fn address_space() -> u64 {
    let on_the_stack = 0u8;
    (&raw const on_the_stack).addr().checked_next_power_of_two().map_or(u64::MAX, |len| len as u64)
}

/// Bytes of address space that the process uses.
fn in_use() -> Option<u64> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = open(c"/proc/self/statm", flags, Mode::empty()).ok()?;
    let mut text = [0u8; 128];
    let n = rustix::io::read(&file, &mut text);
    crate::own_fd::close(file);
    let text = std::str::from_utf8(text.get(..n.ok()?)?).ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)
}

/// A fresh shared mapping, of `fd` or of anonymous memory, readable and writable.
pub(crate) fn map(len: usize, fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<*mut c_void> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // Without access, so that no page is allocated even if new mappings are locked (`mlockall`).
    let none = ProtFlags::empty();
    let at = match fd {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces no memory that is
        // in use.
        Some(fd) => unsafe { mmap(ptr::null_mut(), len, none, flags, fd, 0) },
        // SAFETY: as above.
        None => unsafe { mmap_anonymous(ptr::null_mut(), len, none, flags) },
    }?;
    // Best effort: what fails leaves the mapping in core dumps.
    // SAFETY: the mapping just made, of which nothing else knows.
    let _ = unsafe { madvise(at, len, Advice::LinuxDontDump) };
    // SAFETY: as above.
    let unlocked = unsafe { munlock(at, len) };
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: as above.
    let opened = unlocked.and_then(|()| unsafe { mprotect(at, len, access) });
    if let Err(e) = opened {
        // SAFETY: as above.
        let _ = unsafe { munmap(at, len) };
        return Err(e);
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line of `/proc/self/smaps` that begins with `name`, for the mapping at `at`.
    fn smaps_field(at: *mut c_void, name: &str) -> String {
        let all = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let start = format!("{:x}-", at.expose_provenance());
        let mut lines = all.lines().skip_while(|line| !line.starts_with(&start));
        lines.find(|line| line.starts_with(name)).expect("a line").to_owned()
    }

    #[test]
    fn the_address_space_holds_heap_and_stack_and_is_not_much_larger() {
        let space = address_space();
        let heap = Box::new(0u8);
        assert!((&raw const *heap).addr() as u64 <= space, "{space:#x}");
        let most = usize::try_from(space).expect("64 bits");
        assert!(most > 1 << 36 && map(most, None).is_err(), "{space:#x}");
    }

    #[test]
    fn a_mapping_is_left_out_of_core_dumps() {
        let at = map(1 << 30, None).expect("address space");
        assert!(smaps_field(at, "VmFlags").split(' ').any(|flag| flag == "dd"));
        // SAFETY: made above, and used by nothing.
        unsafe { munmap(at, 1 << 30) }.expect("unmapped");
    }

    #[test]
    fn a_mapping_takes_no_pages_where_all_future_ones_are_to_be_locked() {
        const LEN: usize = 4 << 20;
        // SAFETY: the child reads its own list of mappings, and exits at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ok = std::panic::catch_unwind(|| {
                // SAFETY: takes no pointers.
                assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
                let at = map(LEN, None).expect("address space");
                assert_eq!(smaps_field(at, "Rss:").split_whitespace().nth(1), Some("0"));
                // SAFETY: the first byte of the mapping, which is readable and writable.
                unsafe { at.cast::<u8>().write_volatile(1) };
            });
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(ok.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
