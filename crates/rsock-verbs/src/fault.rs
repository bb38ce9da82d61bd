//! Copies to and from a program's memory that may not be there.
//!
//! The kernel answers `EFAULT` when a program gives it memory that is not mapped, or that lies past
//! the end of a file. A copy through shared memory gets a signal instead. Here such a copy ends
//! with an error: the handler of `SIGSEGV` and `SIGBUS` calls [`recover`], which lets the
//! interrupted thread go on behind the copy.
//!
//! Without the handler ([`arm`]) copies are ordinary ones.
//!
//! Only leaf functions are left in this way. They hold no lock, own nothing and have no
//! destructors, so no code that should run is skipped.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A copy of `len` bytes; the last argument is its own.
pub(crate) type Copy = unsafe extern "C" fn(src: *const u8, dst: *mut u8, len: usize, with: usize);

/// Whether a handler calls [`recover`].
#[unsafe(link_section = "rsock_startup")]
static ARMED: AtomicBool = AtomicBool::new(false);

/// Promises that a handler of `SIGSEGV` and `SIGBUS` calls [`recover`] from now on.
pub fn arm() {
    ARMED.store(true, Ordering::Relaxed);
}

/// Whether a copy may end early.
#[inline(always)]
pub(crate) fn is_armed() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && ARMED.load(Ordering::Relaxed)
}

/// Ordinary copy; false if it faulted. Then any part of it may have been made.
///
/// # Safety
/// `src` is as long as `len` says, and so is `dst`; either may be memory that is not there, if
/// `is_armed`. The two do not overlap. Another process may write either meanwhile: the bytes are
/// then torn.
#[inline]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) -> bool {
    unsafe extern "C" fn plain(src: *const u8, dst: *mut u8, len: usize, _: usize) {
        // SAFETY: the promise of the caller of `copy`.
        unsafe { crate::copy::plain(src, dst, len) };
    }
    if !is_armed() {
        // SAFETY: the caller's promise.
        unsafe { plain(src, dst, len, 0) };
        return true;
    }
    #[cfg(target_arch = "x86_64")]
    if len <= SMALL {
        // SAFETY: the caller's promise; a fault inside is recovered from.
        return unsafe { rsock_fault_copy(src, dst, len) } != 0;
    }
    // SAFETY: the caller's promise, and `plain` is a leaf.
    unsafe { attempt(plain, src, dst, len, 0) }
}

/// Loads up to 48 bytes into words, the rest zero; `None` if that faulted. For processors that have
/// a shorter way than [`copy`].
///
/// # Safety
/// As [`copy`], of `src`; [`is_armed`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn load<const N: usize>(src: *const u8, len: usize) -> Option<[u64; N]> {
    const { assert!(N == 6) };
    debug_assert!(len <= N * 8);
    let mut words = [0; N];
    // SAFETY: room for `len` bytes; a fault inside is recovered from.
    let is_done = unsafe { rsock_fault_load(src, words.as_mut_ptr(), len) } != 0;
    is_done.then_some(words)
}

/// Runs a copy; false if it faulted.
///
/// # Safety
/// As `f`, but for memory that is not there. `f` is a leaf that owns nothing: it may be left at any
/// instruction.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline]
pub(crate) unsafe fn attempt(
    f: Copy,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    with: usize,
) -> bool {
    let stack = STACK.with(Cell::as_ptr);
    // SAFETY: the caller's promise; the cell is this thread's.
    unsafe { rsock_fault_attempt(f, src, dst, len, with, stack) != 0 }
}

/// There is no way back on this processor.
///
/// # Safety
/// As `f`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) unsafe fn attempt(
    f: Copy,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    with: usize,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { f(src, dst, len, with) };
    true
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
crate::per_thread! {
    /// The stack pointer of this thread's `rsock_fault_attempt` that is running; 0 if none is.
    STACK: Cell<usize>, "fault_stack"
}

/// Has the interrupted thread go on behind its copy, if it was copying here. To be called by a
/// handler of `SIGSEGV` or `SIGBUS` for a signal of the thread's own doing, which then returns.
///
/// # Safety
/// `context` is that of a signal handler that the kernel has called.
#[must_use]
pub unsafe fn recover(context: *mut libc::c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the kernel's own context, by the caller's promise.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let (rip, rsp) = (libc::REG_RIP as usize, libc::REG_RSP as usize);
        let at = usize::try_from(registers[rip]).unwrap_or(0);
        let small =
            (&raw const rsock_fault_small).addr()..(&raw const rsock_fault_small_end).addr();
        if small.contains(&at) {
            // These use no stack, so the return address is on top.
            registers[rip] = word((&raw const rsock_fault_small_failed).addr());
            return true;
        }
        let Some(stack) = copying(usize::try_from(registers[rsp]).unwrap_or(0)) else {
            return false;
        };
        registers[rsp] = word(stack);
        registers[rip] = word((&raw const rsock_fault_failed).addr());
        true
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: the kernel's own context, by the caller's promise.
        let registers = unsafe { &mut (*context).uc_mcontext };
        let Some(stack) = copying(registers.sp as usize) else { return false };
        registers.sp = stack as u64;
        registers.pc = (&raw const rsock_fault_failed).addr() as u64;
        true
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        false
    }
}

/// The stack of this thread's attempt, if `now` can be that of the copy itself. A handler on top of
/// the copy is further away.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn copying(now: usize) -> Option<usize> {
    /// More than the frames of a leaf, less than the kernel's frame of a signal handler and what
    /// lies below it.
    const LEAF: usize = 640;
    let stack = STACK.with(Cell::get);
    (stack != 0 && stack.checked_sub(now).is_some_and(|below| below <= LEAF)).then_some(stack)
}

#[cfg(target_arch = "x86_64")]
fn word(address: usize) -> i64 {
    address.cast_signed() as i64
}

/// Most bytes of `rsock_fault_copy`.
#[cfg(target_arch = "x86_64")]
const SMALL: usize = 64;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe extern "C" {
    /// Calls the function with its four arguments and keeps a way back at the last one. 0 if it was
    /// taken.
    fn rsock_fault_attempt(
        f: Copy,
        src: *const u8,
        dst: *mut u8,
        len: usize,
        with: usize,
        stack: *mut usize,
    ) -> usize;
    /// Where it goes on if the copy faulted.
    static rsock_fault_failed: u8;
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Copies at most 64 bytes. 0 if that faulted.
    fn rsock_fault_copy(src: *const u8, dst: *mut u8, len: usize) -> usize;
    /// Stores bytes as words, whole words only; what they have beyond `len` is 0. 0 if that
    /// faulted.
    fn rsock_fault_load(src: *const u8, words: *mut u64, len: usize) -> usize;
    /// From here to the next the two above lie, which may fault at any load and store.
    static rsock_fault_small: u8;
    static rsock_fault_small_end: u8;
    /// Returns 0.
    static rsock_fault_small_failed: u8;
}
