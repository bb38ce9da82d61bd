//! Signal actions: the program's, and the kernel's where the two differ.

use super::records::{is_handler, lock, record_of, unlock};
use super::wrapper::wrapper_address;
use super::{FAULTS, bit, deferral};
use crate::{errno, next, vfork};
use libc::{c_int, sigaction as Action};
use rsock_core::interrupt::Section;
use rsock_verbs::fault;
use std::cell::Cell;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Signals whose `signal` handlers interrupt system calls (`siginterrupt`), by bit number.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Held from before a fork of this thread until after it, in both processes.
    static FORKING: Cell<Option<ManuallyDrop<Section>>> = const { Cell::new(None) };
}

/// As `sigaction(2)`, but the program does not see the wrapper.
///
/// # Safety
/// As `sigaction(2)`: null or valid pointers.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) unsafe fn change(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let Some(record) = record_of(signal) else {
        // SAFETY: the caller's promise; the next definition rejects the number.
        return unsafe { next::sigaction(signal, new, old) };
    };
    // SAFETY: null or valid by the caller's promise.
    let wanted = unsafe { new.as_ref() };
    let section = Section::enter();
    lock();
    let before = (record.handler.load(Ordering::Relaxed), record.flags.load(Ordering::Relaxed));
    let mut kernel = wanted.copied();
    let is_fault = FAULTS.contains(&signal);
    if let Some(action) = &mut kernel
        && (is_handler(action.sa_sigaction) || is_fault && action.sa_sigaction == libc::SIG_DFL)
        && !vfork::is_child()
    {
        deferral::defer_in_sections();
        // Before the kernel's change, because a signal may come at once after it.
        record.handler.store(action.sa_sigaction, Ordering::Relaxed);
        record.flags.store(action.sa_flags, Ordering::Relaxed);
        if !is_handler(action.sa_sigaction) {
            // Flags of handlers have no effect for the program then.
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        }
        action.sa_sigaction = wrapper_address();
        action.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    }
    let kernel_new = kernel.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut was = MaybeUninit::<Action>::zeroed();
    // SAFETY: null or a live action, and room for the old one.
    let result = unsafe { next::sigaction(signal, kernel_new, was.as_mut_ptr()) };
    if result == 0 {
        // SAFETY: zeroes are a valid `sigaction`, and the call has filled it.
        let mut was = unsafe { was.assume_init() };
        if was.sa_sigaction == wrapper_address() {
            (was.sa_sigaction, was.sa_flags) = before;
        }
        if !old.is_null() {
            // SAFETY: not null, so writable by the caller's promise.
            unsafe { old.write(was) };
        }
    } else {
        record.handler.store(before.0, Ordering::Relaxed);
        record.flags.store(before.1, Ordering::Relaxed);
    }
    unlock();
    drop(section);
    result
}

/// Has the wrapper called for signals that a copy of the core may cause, unless the program ignores
/// them.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn watch_faults() {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return;
    }
    for signal in FAULTS {
        // SAFETY: zeroes are a valid `sigaction`.
        let mut action: Action = unsafe { mem::zeroed() };
        // SAFETY: null and a live action.
        let known = unsafe { change(signal, ptr::null(), &raw mut action) };
        if known == 0 && action.sa_sigaction != libc::SIG_IGN {
            // SAFETY: a live action and null.
            unsafe { change(signal, &raw const action, ptr::null_mut()) };
        }
    }
    fault::arm();
}

/// Whether a signal is blocked while its handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelfMask {
    Blocked,
    Unchanged,
}

/// As the C functions of the `signal` family: one handler, these flags, and whether the signal
/// itself is masked meanwhile. Returns the previous handler, or `SIG_ERR`.
pub(crate) fn set_handler(signal: c_int, handler: usize, flags: c_int, mask: SelfMask) -> usize {
    if handler == libc::SIG_ERR || record_of(signal).is_none() {
        errno::set(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: zeroes are a valid `sigaction`.
    let mut new: Action = unsafe { mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if mask == SelfMask::Blocked {
        // SAFETY: a live set, and a number that `record_of` knows.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    let mut old = new;
    // SAFETY: live actions.
    if unsafe { change(signal, &raw const new, &raw mut old) } == 0 {
        old.sa_sigaction
    } else {
        libc::SIG_ERR
    }
}

/// Whether a handler set by `signal` ends system calls with `EINTR`.
pub(crate) fn interrupts(signal: c_int) -> bool {
    INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0
}

/// As `siginterrupt(3)`.
pub(crate) fn set_interrupts(signal: c_int, interrupts: bool) -> c_int {
    // SAFETY: zeroes are a valid `sigaction`.
    let mut action: Action = unsafe { mem::zeroed() };
    // SAFETY: null and a live action.
    if unsafe { change(signal, ptr::null(), &raw mut action) } != 0 {
        return -1;
    }
    if interrupts {
        INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
        action.sa_flags &= !libc::SA_RESTART;
    } else {
        INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
        action.sa_flags |= libc::SA_RESTART;
    }
    // SAFETY: a live action and null.
    unsafe { change(signal, &raw const action, ptr::null_mut()) }
}

/// Takes the lock before a fork, so that the child does not inherit it from another thread.
pub(crate) fn lock_for_fork() {
    let section = Section::enter();
    lock();
    FORKING.set(Some(ManuallyDrop::new(section)));
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    unlock();
    drop(FORKING.take().map(ManuallyDrop::into_inner));
}
