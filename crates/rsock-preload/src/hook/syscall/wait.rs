//! System calls that wait under a signal mask, with times that the kernel counts down.

use super::kernel;
use super::words::{at, int};
use crate::hook::{epoll_wait, poll, select};
use libc::{c_long, sigset_t, timespec};
use rsock_verbs::clock;
use std::ptr;
use std::time::Duration;

/// # Safety
/// As `ppoll(2)`, of the kernel.
pub(super) unsafe fn ppoll(all: [usize; 6]) -> c_long {
    let [fds, n, limit, mask, size, _] = all;
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { Mask::of(at(mask), size) }) else {
        // SAFETY: the caller's promise; the kernel refuses the size.
        return unsafe { kernel(libc::SYS_ppoll, all) };
    };
    // SAFETY: the caller's promise.
    let timed = unsafe { Timed::begin(at(limit)) };
    // SAFETY: the caller's promise.
    let n = unsafe { poll::ppoll(at(fds), n as libc::nfds_t, timed.limit(), mask.get()) };
    // SAFETY: as above.
    unsafe { timed.put_back() };
    c_long::from(n)
}

/// # Safety
/// As `pselect(2)`, of the kernel.
pub(super) unsafe fn pselect6(all: [usize; 6]) -> c_long {
    /// What the sixth argument points to.
    #[repr(C)]
    struct Given {
        mask: *const u64,
        size: usize,
    }
    let [n, read, write, except, limit, given] = all;
    let given: *const Given = at(given);
    // SAFETY: null or readable, by the caller's promise.
    let given = unsafe { given.as_ref() }.map_or((ptr::null(), 8), |g| (g.mask, g.size));
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { Mask::of(given.0, given.1) }) else {
        // SAFETY: the caller's promise; the kernel refuses the size.
        return unsafe { kernel(libc::SYS_pselect6, all) };
    };
    // SAFETY: the caller's promise.
    let timed = unsafe { Timed::begin(at(limit)) };
    // SAFETY: the caller's promise.
    let n = unsafe {
        select::pselect(int(n), at(read), at(write), at(except), timed.limit(), mask.get())
    };
    // SAFETY: as above.
    unsafe { timed.put_back() };
    c_long::from(n)
}

/// # Safety
/// As `epoll_pwait(2)` or `epoll_pwait2(2)`, of the kernel.
pub(super) unsafe fn epoll_pwait(number: c_long, all: [usize; 6]) -> c_long {
    let [set, events, n, limit, mask, size] = all;
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { Mask::of(at(mask), size) }) else {
        // SAFETY: the caller's promise; the kernel refuses the size.
        return unsafe { kernel(number, all) };
    };
    let (set, events, n) = (int(set), at(events), int(n));
    let n = if number == libc::SYS_epoll_pwait {
        // SAFETY: the caller's promise.
        unsafe { epoll_wait::epoll_pwait(set, events, n, int(limit), mask.get()) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { epoll_wait::epoll_pwait2(set, events, n, at(limit), mask.get()) }
    };
    c_long::from(n)
}

/// The kernel's signal set in libc's form.
struct Mask(Option<sigset_t>);

impl Mask {
    /// `None` if the kernel would refuse the size.
    ///
    /// # Safety
    /// `at` is null or a readable set of the kernel.
    unsafe fn of(at: *const u64, size: usize) -> Option<Self> {
        if at.is_null() {
            return Some(Self(None));
        }
        if size != size_of::<u64>() {
            return None;
        }
        // SAFETY: not null, so readable by the caller's promise.
        let bits = unsafe { at.read_unaligned() };
        // SAFETY: plain words, of which all zeroes is the empty set.
        let mut set: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: libc's set is larger than the kernel's, and begins with it.
        unsafe { (&raw mut set).cast::<u64>().write_unaligned(bits) };
        Some(Self(Some(set)))
    }

    fn get(&self) -> *const sigset_t {
        self.0.as_ref().map_or(ptr::null(), ptr::from_ref)
    }
}

/// A time limit that the kernel, unlike libc's functions, counts down for the caller.
struct Timed {
    at: *mut timespec,
    given: Option<timespec>,
    began: Duration,
}

impl Timed {
    /// # Safety
    /// `at` is null or readable.
    unsafe fn begin(at: *mut timespec) -> Self {
        // SAFETY: the caller's promise.
        let given = unsafe { at.as_ref() }.copied();
        Self { at, given, began: clock::monotonic() }
    }

    fn limit(&self) -> *const timespec {
        self.given.as_ref().map_or(ptr::null(), ptr::from_ref)
    }

    /// # Safety
    /// `at` of `begin` is null or writable.
    unsafe fn put_back(&self) {
        let Some(given) =
            self.given.filter(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec))
        else {
            return;
        };
        const SECOND: i128 = 1_000_000_000;
        let passed = clock::monotonic().saturating_sub(self.began).as_nanos();
        let passed = i128::try_from(passed).unwrap_or(i128::MAX);
        let given = i128::from(given.tv_sec) * SECOND + i128::from(given.tv_nsec);
        let left = (given - passed).max(0);
        let left = timespec {
            tv_sec: libc::time_t::try_from(left / SECOND).unwrap_or(libc::time_t::MAX),
            tv_nsec: (left % SECOND).try_into().unwrap_or(0),
        };
        // SAFETY: not null, since it was read; writable by the caller's promise.
        unsafe { self.at.write_unaligned(left) };
    }
}
