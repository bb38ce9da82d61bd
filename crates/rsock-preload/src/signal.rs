//! Signal handlers around the data path.
//!
//! A wrapper of this library calls every handler that the program installs, and does three things.
//! It marks the thread as inside a handler, where nothing is allocated. It counts the handlers that
//! ran, for blocking calls that have to end with `EINTR`. And when the thread is inside a
//! [`Section`](rsock_core::interrupt::Section) it defers an asynchronous signal: queues it again,
//! with its original `siginfo`, blocked in the interrupted context, until the section ends. So no
//! handler, and no `longjmp` out of one, sees a half-done change of a stream.
//!
//! The program sees none of this: `sigaction` reports its own handler and flags. The kernel keeps
//! the mask; this module keeps what the wrapper hides. `SA_RESETHAND` is done here, because a
//! deferred signal must still find its handler.
//!
//! `SIGSEGV` and `SIGBUS` come to the wrapper even where the program wants the default action,
//! because a copy of the core may access memory that the program does not have
//! ([`fault`](rsock_verbs::fault)). The program sees neither the signal nor the wrapper then; any
//! other such signal gets the action that the program asked for.

mod actions;
mod cancellation;
mod context;
mod deferral;
mod records;
mod sigpipe;
mod wrapper;

pub(crate) use actions::{
    SelfMask, change, interrupts, lock_for_fork, set_handler, set_interrupts, unlock_after_fork,
    watch_faults,
};
pub(crate) use cancellation::{cancel_self, send_cancellation, wrap_cancellation};
pub(crate) use deferral::defer_in_sections;
pub(crate) use sigpipe::raise_sigpipe;

use libc::{c_int, c_ulong, siginfo_t};
use rsock_verbs::raw;

/// Size of the kernel's signal set, not libc's.
pub(crate) const KERNEL_SIGSET: usize = 8;

/// The signal by which glibc cancels threads. It uses the next one for other purposes.
pub(crate) const SIGCANCEL: c_int = 32;

/// `struct sigaction` as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelAction {
    pub(crate) handler: usize,
    pub(crate) flags: c_ulong,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

impl KernelAction {
    /// The action in libc's form. libc sets a restorer of its own.
    pub(crate) fn to_libc(self) -> libc::sigaction {
        // SAFETY: zeroes are a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = self.handler;
        #[expect(clippy::cast_possible_truncation, reason = "the kernel's flags have 32 bits")]
        let flags = self.flags as c_int;
        action.sa_flags = flags;
        // SAFETY: libc's set is larger than the kernel's, and begins with it.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask) };
        action
    }

    /// `action` in the kernel's form.
    pub(crate) fn of_libc(action: &libc::sigaction) -> Self {
        // SAFETY: libc's set is larger than the kernel's, and begins with it.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        let flags = c_ulong::from(action.sa_flags.cast_unsigned());
        let restorer = action.sa_restorer.map_or(0, |restorer| restorer as usize);
        Self { handler: action.sa_sigaction, flags, restorer, mask }
    }
}

/// The signals of a copy from or to memory that does not exist.
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

fn bit(signal: c_int) -> u64 {
    u32::try_from(signal).ok().and_then(|n| 1u64.checked_shl(n.wrapping_sub(1))).unwrap_or(0)
}

fn queue_to_self(signal: c_int, info: *const siginfo_t) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: valid information; a thread may send itself any signal.
    let sent = unsafe { raw::syscall!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) };
    if sent.is_err() {
        // The queue is full: the signal is sent without its information, which is lost.
        // SAFETY: integers only.
        let _ = unsafe { raw::syscall!(libc::SYS_tgkill, pid, tid, signal) };
    }
}
