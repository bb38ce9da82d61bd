//! The program's action for each signal, where the kernel has the wrapper instead.

use crate::{errno, next};
use libc::{c_int, sigaction as Action};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// Signal numbers are below this.
const SIGNALS: usize = 65;

/// The program's handler and flags of a signal, where the kernel has those of the wrapper.
pub(super) struct Record {
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicI32,
}

#[unsafe(link_section = "rsock_startup")]
static RECORDS: [Record; SIGNALS] =
    [const { Record { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0) } };
        SIGNALS];

/// Serialises changes of actions. Held inside a section only, so its holder is never a thread that
/// a handler has interrupted.
#[unsafe(link_section = "rsock_startup")]
static CHANGING: AtomicBool = AtomicBool::new(false);

/// `SA_RESETHAND`: the next such signal finds the default action. Mask and flags stay.
pub(super) fn reset(signal: c_int, flags: c_int) {
    let _errno = errno::Kept::now();
    // SAFETY: zeroes are a valid `sigaction`.
    let mut action: Action = unsafe { mem::zeroed() };
    // SAFETY: null and a live action.
    unsafe { next::sigaction(signal, ptr::null(), &raw mut action) };
    action.sa_sigaction = libc::SIG_DFL;
    action.sa_flags = flags;
    // SAFETY: a live action and null.
    unsafe { next::sigaction(signal, &raw const action, ptr::null_mut()) };
}

pub(super) fn record_of(signal: c_int) -> Option<&'static Record> {
    let index = usize::try_from(signal).ok()?;
    (index != 0).then(|| RECORDS.get(index)).flatten()
}

pub(super) fn is_handler(action: usize) -> bool {
    action != libc::SIG_DFL && action != libc::SIG_IGN
}

pub(super) fn lock() {
    // SYNC(actions): Acquire pairs with the Release in `unlock`.
    while CHANGING.swap(true, Ordering::Acquire) {
        rustix::thread::sched_yield();
    }
}

pub(super) fn unlock() {
    CHANGING.store(false, Ordering::Release);
}
