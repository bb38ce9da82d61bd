//! A full fence in every thread of the processes that asked for it, at the cost of one system call
//! here and none there.
//!
//! The sender of a large WRITE marks itself busy and then looks whether the region still exists;
//! the region's owner withdraws the region and then looks whether anyone is busy. That is a
//! store-load race on both sides. The owner's side is rare, so it pays for both.

use crate::raw;
use rustix::thread::{Timespec, nanosleep};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Whether [`full`] works here, once somebody has tried. Not a lock: the kernel takes its time, and the child
/// of a fork meanwhile would wait for a thread that it does not have.
static ABLE: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const UNABLE: u8 = 1;
const WORKS: u8 = 2;

/// Registers this process as a target; several threads may, at once. Answers whether [`full`] works here; a
/// forked child inherits the registration.
pub(super) fn register() -> bool {
    let mut able = ABLE.load(Ordering::Acquire);
    if able == UNTRIED {
        let works = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && full();
        able = if works { WORKS } else { UNABLE };
        ABLE.store(able, Ordering::Release);
    }
    able == WORKS
}

/// As [`full`] for the two ends of one link, once it has been agreed that the peer relies on it. A program that
/// restricts its own system calls later may be refused the call; then it takes [`LONG`].
pub(super) fn full_or_long() {
    if full() {
        return;
    }
    // SYNC(barrier): what the peer has stored before a load that missed our store is in its store buffer, or
    // earlier in its instruction window. Both empty themselves within far less than this, and at once when its
    // thread is interrupted. What the caller loads next is what the peer stored, therefore.
    std::sync::atomic::fence(Ordering::SeqCst);
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        // It may be refused as well, and the clock is none.
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: LONG.subsec_nanos().into() });
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// A thousand times as long as a store may take to become visible.
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

    /// Has the kernel refuse this thread one system call.
    fn refuse(number: libc::c_long) {
        let number = u32::try_from(number).expect("a small number");
        let statement = |code: u32, k| libc::sock_filter {
            code: u16::try_from(code).expect("a code"),
            jt: 0,
            jf: 0,
            k,
        };
        let mut filter = [
            // The number is the first word.
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
    fn a_refused_barrier_takes_long_rather_than_nothing() {
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
