//! A full fence in every running thread of all registered processes, by one system call of the
//! caller (`membarrier(2)`).
//!
//! The sender of a large WRITE begins a copy guard and then checks that the region still exists;
//! the region's owner withdraws the region and then checks for copies under way. That is a
//! store-load race on both sides. The owner's side is rare, so the owner pays for both fences.

use crate::raw;
use rustix::thread::{Timespec, nanosleep};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Whether [`full`] works here, once a thread has tried. Not a lock: registration may take long in
/// the kernel, and a child forked meanwhile would wait for a thread that it does not have.
static ABLE: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const UNABLE: u8 = 1;
const WORKS: u8 = 2;

/// Registers this process as a target of the fence; several threads may do so at once. Returns
/// whether [`full`] works here. A forked child inherits the registration.
pub(super) fn register() -> bool {
    let mut able = ABLE.load(Ordering::Acquire);
    if able == UNTRIED {
        let works = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && full();
        able = if works { WORKS } else { UNABLE };
        ABLE.store(able, Ordering::Release);
    }
    able == WORKS
}

/// [`full`] for the two ends of one link after both agreed to rely on it. A program that has since
/// restricted its own system calls may be refused the call; then this waits for [`LONG`] instead.
pub(super) fn full_or_long() {
    if full() {
        return;
    }
    // SYNC(barrier): if the peer's load missed this side's store, the peer's earlier store is in
    // its store buffer or its instruction window. Both drain in far less time than this, and at
    // once when its thread is interrupted, so the caller's next load sees what the peer stored.
    std::sync::atomic::fence(Ordering::SeqCst);
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        // The kernel may refuse this call too; reading the clock needs no system call.
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: LONG.subsec_nanos().into() });
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// A thousand times longer than a store takes to become visible.
const LONG: Duration = Duration::from_millis(1);

/// Executes the fence in every running thread of every registered process.
pub(super) fn full() -> bool {
    #[cfg(test)]
    CALLS.with(|n| n.set(n.get() + 1));
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

#[cfg(test)]
thread_local! {
    /// Calls of [`full`] on this thread.
    pub(super) static CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointers.
    unsafe { raw::syscall!(libc::SYS_membarrier, command, 0, 0) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the kernel refuse one system call of this thread.
    fn refuse(number: libc::c_long) {
        let number = u32::try_from(number).expect("a small number");
        let statement = |code: u32, k| libc::sock_filter {
            code: u16::try_from(code).expect("a code"),
            jt: 0,
            jf: 0,
            k,
        };
        let mut filter = [
            // The system call's number is the first word.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | 1),
        ];
        filter[1].jt = 1;
        let len = u16::try_from(filter.len()).expect("short");
        let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
        // SAFETY: takes no pointers.
        let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(done, 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: a live filter.
        let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_refused_barrier_waits_instead_of_being_skipped() {
        std::thread::spawn(|| {
            refuse(libc::SYS_membarrier);
            assert!(!full());
            let begun = Instant::now();
            full_or_long();
            assert!(begun.elapsed() >= LONG);
        })
        .join()
        .expect("no panic");
    }
}
