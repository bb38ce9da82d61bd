//! Signal masks.

use rsock_verbs::raw;
use std::io;

/// Size of the kernel's signal set in bytes; libc's is larger.
pub(super) const KERNEL_SIGSET: usize = 8;

/// A kernel signal set as libc's type, whose first bytes it is.
pub(super) fn widen(kernel: u64) -> libc::sigset_t {
    // SAFETY: a signal set is plain words, and all zeros is the empty one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `sigset_t` is larger than eight bytes and aligned for words.
    unsafe { (&raw mut set).cast::<u64>().write(kernel) };
    set
}

fn sigprocmask(how: i32, new: Option<&mut u64>, old: Option<&mut u64>) -> io::Result<()> {
    let new = new.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both pointers are null or point to eight live bytes, the size given.
    unsafe { raw::syscall!(libc::SYS_rt_sigprocmask, how, new, old, KERNEL_SIGSET) }.map(|_| ())
}

/// Blocks every signal. Returns the signals that were blocked before, for [`restore_signals`].
///
/// # Errors
/// As `sigprocmask(2)`.
pub(crate) fn block_signals() -> io::Result<u64> {
    let mut all = u64::MAX;
    let mut old = 0;
    sigprocmask(libc::SIG_SETMASK, Some(&mut all), Some(&mut old))?;
    Ok(old)
}

/// Blocks these signals and no others.
pub(crate) fn restore_signals(mut blocked: u64) {
    // Cannot fail: the pointer and the size are right.
    let _ = sigprocmask(libc::SIG_SETMASK, Some(&mut blocked), None);
}
