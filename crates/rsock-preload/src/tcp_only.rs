//! Whether the whole process stays on TCP for good: then no socket is adopted any more.
//! `process_handoff` moves its streams when that begins.

use crate::log;
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rustix::fs::{CWD, readlinkat_raw};
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

/// The reason; `FallbackReason::None` as long as streams may leave TCP.
static REASON: AtomicU8 = AtomicU8::new(FallbackReason::None as u8);

/// Whether the process stays on TCP.
#[inline]
pub(crate) fn is_on() -> bool {
    REASON.load(Ordering::Relaxed) != FallbackReason::None as u8
}

/// Whether the program restricts its own system calls: the hooks make none of their own then.
#[inline]
pub(crate) fn is_sandboxed() -> bool {
    REASON.load(Ordering::Relaxed) == FallbackReason::Sandbox as u8
}

/// Keeps the process on TCP from now on. Streams that are on a ring stay there.
pub(crate) fn note(why: FallbackReason) {
    REASON.store(why as u8, Ordering::SeqCst);
    // SYNC(tcp-only): a thread that adopts a candidate which the caller does not see below loads
    // the reason after this fence in the order of `SeqCst`, for it claims the entry by a
    // compare-and-swap first.
    fence(Ordering::SeqCst);
}

/// Sockets that the process was about to adopt.
static N_ADOPTIONS: AtomicU32 = AtomicU32::new(0);

/// Numbers of descriptors that are looked at.
const MOST_LOOKED_AT: c_int = 1024;

/// Keeps the process on TCP if it has an io_uring that no hook has seen: one that was made by
/// system call instructions of the program's own, as in a program that contains liburing. Called
/// before the socket `fd` is adopted. Most rings are older than the sockets that they serve, so
/// they have smaller numbers.
///
/// It looks before the first adoption, the second, the fourth, the eighth and so on: a look costs a
/// system call for each number.
pub(crate) fn look_for_io_uring(fd: c_int) {
    let n_adoptions = N_ADOPTIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if !n_adoptions.is_power_of_two() {
        return;
    }
    if let Some(ring) = (0..fd.min(MOST_LOOKED_AT)).find(|&number| is_io_uring(number)) {
        log::line(format_args!("io_uring found, fd {ring}: the process stays on TCP"));
        note(FallbackReason::IoUring);
    }
}

/// A child of a fork may make an io_uring of its own.
pub(crate) fn after_fork_in_child() {
    N_ADOPTIONS.store(0, Ordering::Relaxed);
}

/// Whether a descriptor of this process names an io_uring. No descriptor is opened for the answer,
/// because it would have a number for a moment that the program expects to get.
fn is_io_uring(fd: c_int) -> bool {
    const NAME: &[u8] = b"anon_inode:[io_uring]";
    let mut path = [0; 32];
    if write!(&mut path[..], "/proc/self/fd/{fd}").is_err() {
        return false;
    }
    let len = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    let mut name = [MaybeUninit::uninit(); NAME.len() + 1];
    readlinkat_raw(CWD, &path[..len], &mut name).is_ok_and(|(found, _)| found == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsock_verbs::raw;

    #[test]
    fn an_io_uring_is_known_by_its_descriptor() {
        // The kernel's parameters have 120 bytes.
        let mut params = [0u64; 15];
        // SAFETY: the parameters live, and are as long as the kernel wants them.
        let ring = unsafe { raw::syscall!(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        let ring = c_int::try_from(ring.expect("an io_uring")).expect("a descriptor");
        assert!(is_io_uring(ring));
        // SAFETY: made above.
        unsafe { rustix::io::close(ring) };
        assert!(!is_io_uring(ring) && !is_io_uring(0) && !is_io_uring(-1));
    }
}
