//! What a forked child inherits of descriptors that exist for calls in progress. A fork concerns a
//! whole process, so this test has one of its own.

use rsock_core::closing::{Call, Closings, Descriptor};
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const FORKS: u32 = 1_000;
const CLOSERS: usize = 3;
/// More names than a file has here.
const CHILD_FAILED: i32 = 1_000;

/// Numbers of this process that name `file`, without looking into a folder: a child of a process
/// with threads should not allocate.
fn count_names(inode: u64) -> usize {
    let names = |number| {
        // SAFETY: only asked about; a number that is not open is an error.
        let mut about = unsafe { std::mem::zeroed::<libc::stat>() };
        // SAFETY: `about` is a `stat` to write to.
        unsafe { libc::fstat(number, &raw mut about) == 0 && about.st_ino == inode }
    };
    (0..10_000).filter(|number| names(*number)).count()
}

/// Closes a number under a call in progress, again and again: each time a duplicate is made for the
/// call and closed after it.
fn close_under_calls(file: &OwnedFd, is_over: &AtomicBool, n_closed: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let closings = Closings::new();
        let call = Call::begin(&closings, Descriptor::new(file.as_fd(), closings.count()));
        let answer = || {
            let _ = call.fd();
            1
        };
        closings.keep(Some(file.as_fd()), || {}, answer);
        assert_ne!(call.fd().expect("a duplicate").as_raw_fd(), file.as_raw_fd());
        n_closed.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_child_keeps_no_duplicate_that_a_call_of_its_parent_goes_on_with() {
    let file = memfd_create("victim", MemfdFlags::CLOEXEC).expect("a file");
    let inode = rustix::fs::fstat(&file).expect("open").st_ino;
    let is_over = AtomicBool::new(false);
    let n_closed = AtomicU64::new(0);
    let worst = thread::scope(|scope| {
        for _ in 0..CLOSERS {
            scope.spawn(|| close_under_calls(&file, &is_over, &n_closed));
        }
        while n_closed.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let counts = (0..FORKS).map(|_| {
            // SAFETY: the child makes system calls only, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let n = count_names(inode);
                // SAFETY: always allowed.
                unsafe { libc::_exit(i32::try_from(n).unwrap_or(99)) };
            }
            let mut status = 0;
            // SAFETY: `status` is an integer to write to.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            let is_orderly = child > 0 && waited == child && libc::WIFEXITED(status);
            // Not an assertion: the threads must be told that it is over.
            if is_orderly { libc::WEXITSTATUS(status) } else { CHILD_FAILED }
        });
        let worst = counts.max();
        is_over.store(true, Ordering::Relaxed);
        worst
    });
    // The program's own number, and nothing else.
    assert_eq!(worst, Some(1));
}
