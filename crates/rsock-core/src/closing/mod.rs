//! Calls in progress on a descriptor that another thread closes.
//!
//! The kernel looks a descriptor's number up once, when a system call begins. The call then keeps
//! the open file, and a later owner of the number is not affected. A call of this library makes
//! several system calls with sleeps between them, so it must not look the number up again. It asks
//! [`Call::fd`] before each system call instead:
//!
//! 1. The thread that closes a number on which other calls are in progress duplicates it first and
//!    counts a closing ([`Closings::keep`]).
//! 2. It wakes those calls: by the ring's events where there is a ring, by [`notice`] elsewhere.
//! 3. Each call finds that the count has changed since it began, and continues with the duplicate.
//!    Calls share the duplicate by a reference count; the last one closes it, and with it the file,
//!    as in the kernel.
//! 4. The closer waits until all calls have switched, then lets the kernel close the number.
//!
//! A call may switch late, on a busy machine, or never, because a `longjmp` has left it. So the
//! closer waits for a bounded time. If a call has not switched by then, the duplicate stays for it
//! ([`DUPLICATE_LIFETIME`]), and the next closing after that revokes it.
//!
//! A socket may have several numbers. A call that came by another one switches too, unless the
//! duplicate has been closed by then: its own number still names the file.

mod duplicates;
pub(crate) mod notice;

use crate::fork;
use crate::interrupt::{Section, Watch};
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How many numbers of one socket were closed under calls in progress, and the duplicate that those
/// calls continue with.
///
/// `state` holds the count of closings in bits 23:0, references to the duplicate in bits 39:24, and
/// its number plus one in bits 63:40, or zero without one.
#[derive(Debug, Default)]
pub struct Closings {
    state: AtomicU64,
    /// Calls that are in their last system call, and do not look the number up after it.
    in_kernel: AtomicU32,
    /// The numbers that were closed, each as the bit of its remainder.
    closed: AtomicU64,
}

const COUNT: u64 = (1 << 24) - 1;
const REFERENCE: u64 = 1 << 24;
const REFERENCES: u64 = 0xffff << 24;
const NUMBER_SHIFT: u32 = 40;

/// Longest time that a closer waits for the calls in progress.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// How long a duplicate stays for calls that have not switched. The peer learns of the close that
/// much later, and not before another descriptor is closed under a call.
const DUPLICATE_LIFETIME: Duration = Duration::from_secs(2);
/// Checks with a yield between them, before the closer sleeps between two checks.
const YIELDS: u32 = 50;
/// Sleep between two checks.
const PAUSE: Duration = Duration::from_micros(100);

/// The descriptor by which a call came, as of a count of [`Closings`].
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    fd: BorrowedFd<'a>,
    seen: u32,
}

impl<'a> Descriptor<'a> {
    /// `fd`, which named the socket when [`Closings::count`] was `seen`.
    #[inline]
    #[must_use]
    pub fn new(fd: BorrowedFd<'a>, seen: u32) -> Self {
        Self { fd, seen }
    }

    /// The descriptor as the program named it.
    #[inline]
    #[must_use]
    pub fn named(self) -> BorrowedFd<'a> {
        self.fd
    }
}

/// A call in progress, which keeps the socket that it began with.
#[derive(Debug)]
pub struct Call<'a> {
    closings: &'a Closings,
    descriptor: Descriptor<'a>,
    has_reference: Cell<bool>,
}

impl<'a> Call<'a> {
    /// Begins a call that came by `descriptor`, on the socket of `closings`.
    #[inline]
    #[must_use]
    pub fn begin(closings: &'a Closings, descriptor: Descriptor<'a>) -> Self {
        Self { closings, descriptor, has_reference: Cell::new(false) }
    }

    /// The descriptor by which the call came.
    #[inline]
    pub(crate) fn descriptor(&self) -> Descriptor<'a> {
        self.descriptor
    }

    /// The descriptor for the next system call. The caller must not keep it over a sleep.
    ///
    /// # Errors
    /// `EBADF` if it was closed and no duplicate could be made, or the duplicate was revoked.
    #[inline]
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.closings.is_open(self.descriptor) { Ok(self.descriptor.fd) } else { self.kept() }
    }

    #[cold]
    fn kept(&self) -> io::Result<BorrowedFd<'_>> {
        if !self.has_reference.get() {
            let more = |state: u64| (number(state).is_some()).then_some(state + REFERENCE);
            let state = &self.closings.state;
            if state.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
                return self.still_named();
            }
            self.has_reference.set(true);
        }
        let number = number(self.closings.state.load(Ordering::Acquire)).ok_or(Errno::BADF)?;
        // SAFETY: this call's reference keeps it open, and is released when `self` is dropped.
        Ok(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// The descriptor by which the call came, if it was another one that was closed.
    fn still_named(&self) -> io::Result<BorrowedFd<'_>> {
        if self.was_closed() { Err(Errno::BADF.into()) } else { Ok(self.descriptor.fd) }
    }

    /// Whether another thread has closed the descriptor since the call began, or one whose number
    /// has the same remainder.
    #[must_use]
    pub fn was_closed(&self) -> bool {
        // SYNC(closing): set before the count that this call sees.
        !self.closings.is_open(self.descriptor)
            && self.closings.closed.load(Ordering::Acquire) & bit(self.descriptor.fd) != 0
    }

    /// Runs `call`, a system call that may sleep, with the descriptor. This call does not use the
    /// descriptor after it.
    ///
    /// # Errors
    /// As [`Self::fd`]; what `call` returns is its own.
    pub fn last<R>(&self, call: impl FnOnce(BorrowedFd<'_>) -> R) -> io::Result<R> {
        let fd = self.fd()?;
        let in_kernel = &self.closings.in_kernel;
        in_kernel.fetch_add(1, Ordering::AcqRel);
        let result = call(fd);
        in_kernel.fetch_sub(1, Ordering::AcqRel);
        Ok(result)
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.has_reference.get() {
            self.closings.release();
        }
    }
}

impl Closings {
    /// A socket of which no number was closed.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), in_kernel: AtomicU32::new(0), closed: AtomicU64::new(0) }
    }

    /// Number of closings under calls so far, modulo 2^24.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.state.load(Ordering::Acquire) & COUNT).unwrap_or(0)
    }

    /// Whether no other thread has closed the descriptor under the call that came by it.
    #[inline]
    pub(crate) fn is_open(&self, descriptor: Descriptor<'_>) -> bool {
        // SYNC(closing): pairs with the Release in `keep`, which comes before the number is closed.
        self.state.load(Ordering::Acquire) & COUNT == u64::from(descriptor.seen)
    }

    /// Keeps the file for the calls in progress. The caller calls this before the kernel closes
    /// `fd`; `others` counts the calls in progress that may use it. Returns once they use a
    /// duplicate. `fd` is `None` if the number already belongs to another file, so that nothing can
    /// be duplicated. `wake` ends the sleeps of those calls that do not poll [`notice`].
    pub fn keep(&self, fd: Option<BorrowedFd<'_>>, wake: impl Fn(), others: impl Fn() -> u64) {
        if others() == 0 {
            return;
        }
        let _section = Section::enter();
        duplicates::revoke(DUPLICATE_LIFETIME);
        // SYNC(closing): before the count, see `Call::was_closed`.
        self.closed.fetch_or(fd.map_or(u64::MAX, bit), Ordering::Release);
        let duplicate = fd.and_then(duplicates::make);
        let mut is_used = false;
        let close = |state: u64| {
            let count = (state + 1) & COUNT;
            let (kept, references) = match (state >> NUMBER_SHIFT, &duplicate) {
                (0, Some(fd)) => {
                    is_used = true;
                    (shifted(*fd), 0)
                }
                (0, None) => return Some(count),
                (kept, _) => {
                    is_used = false;
                    (kept << NUMBER_SHIFT, state & REFERENCES)
                }
            };
            // One reference is the closer's, so that no call closes the duplicate meanwhile.
            Some(kept | (references + REFERENCE) | count)
        };
        // SYNC(closing): the count changes before the number is closed. Pairs with the Acquire in
        // `Call::fd`.
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, close);
        let is_kept = is_used || number(self.state.load(Ordering::Acquire)).is_some();
        if let Some(surplus) = duplicate.filter(|_| !is_used) {
            duplicates::close(surplus);
        }
        wake();
        let have_switched = self.wait_for(&others);
        match number(self.state.load(Ordering::Acquire)).filter(|_| is_kept) {
            // The closer's reference stays: `Closings` is dropped after the last call.
            Some(fd) if !have_switched => duplicates::leave(fd),
            Some(_) => self.release(),
            None => {}
        }
    }

    /// Waits until every other call uses the duplicate, or is in its last system call. False if
    /// that takes too long.
    fn wait_for(&self, others: impl Fn() -> u64) -> bool {
        wake_calls_until(|| {
            let references = (self.state.load(Ordering::Acquire) & REFERENCES) / REFERENCE;
            let switched = references.saturating_sub(1);
            let in_kernel = u64::from(self.in_kernel.load(Ordering::Acquire));
            others() <= switched + in_kernel
        })
    }

    /// Forgets the calls in progress, in a forked child: its only thread is in no call, and the
    /// duplicate belongs to the parent.
    pub fn forget_calls(&self) {
        self.in_kernel.store(0, Ordering::Relaxed);
        self.state.fetch_and(COUNT, Ordering::Relaxed);
    }

    fn release(&self) {
        let mut last = None;
        let less = |state: u64| {
            // A forked child has forgotten its references.
            let left = state.checked_sub(REFERENCE).filter(|_| state & REFERENCES != 0)?;
            last = (left & REFERENCES == 0).then(|| number(left)).flatten();
            Some(if last.is_some() { left & COUNT } else { left })
        };
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if let Some(fd) = last {
            duplicates::close(fd);
        }
    }
}

/// Wakes the calls that poll [`notice`] until `have_answered` holds. False if that takes too long.
pub(crate) fn wake_calls_until(have_answered: impl Fn() -> bool) -> bool {
    let deadline = sys::now().checked_add(MAX_WAIT);
    let mut n_checks = 0;
    let is_answered = loop {
        // Again at each check: another thread may have cleared the notice.
        notice::raise();
        let is_answered = have_answered();
        if is_answered || sys::time_left(deadline) == Some(Duration::ZERO) {
            break is_answered;
        }
        n_checks += 1;
        if n_checks < YIELDS {
            rustix::thread::sched_yield();
        } else {
            let _ = sys::sleep(&mut [], Some(PAUSE), None, Watch::begin());
        }
    };
    if is_answered {
        notice::clear();
    } else {
        notice::leave_raised();
    }
    is_answered
}

impl Drop for Closings {
    fn drop(&mut self) {
        // Every call has ended, so none needs the duplicate.
        if let Some(fd) = number(*self.state.get_mut()) {
            duplicates::close(fd);
        }
    }
}

/// Has every forked child close its copies of the parent's notices and duplicates. To be called
/// before one is made.
fn watch_forks() {
    fork::close_in_children(|| {
        notice::close_all();
        duplicates::close_all();
    });
}

/// The bit of a number in [`Closings::closed`].
fn bit(fd: BorrowedFd<'_>) -> u64 {
    1 << (fd.as_raw_fd() % 64)
}

fn number(state: u64) -> Option<RawFd> {
    RawFd::try_from(state >> NUMBER_SHIFT).ok()?.checked_sub(1).filter(|fd| *fd >= 0)
}

fn shifted(fd: RawFd) -> u64 {
    u64::try_from(fd + 1).unwrap_or(0) << NUMBER_SHIFT
}

#[cfg(test)]
mod tests;
