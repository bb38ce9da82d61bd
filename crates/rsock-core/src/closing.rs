//! A descriptor that one thread closes while another is in a call on it.
//!
//! The kernel looks a descriptor's number up once, when a system call begins. The call then keeps
//! the open file, and a later owner of the number is not concerned. A call of ours makes
//! several system calls with sleeps between them, so it must not look the number up again. It asks
//! [`Call::fd`] before each system call instead:
//!
//! 1. The thread that closes a number on which other calls are in progress duplicates it first and
//!    counts a closing ([`Closings::keep`]).
//! 2. It wakes those calls: by the ring's events where there is one, by [`notice`] elsewhere.
//! 3. Each finds that the count has changed since it began, and goes on with the duplicate, which
//!    it shares by a reference count. The last one closes it, and with it the file, as in the kernel.
//! 4. The closer waits until all have done so, then lets the kernel close the number.
//!
//! A call may answer late, on a busy machine, or never, because a `longjmp` has left it. So the
//! closer waits for a bounded time. Where a call has not answered by then, the duplicate stays for
//! it ([`GRACE`]) and is taken from it with the next closing after that.

use crate::fork_gate;
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_verbs::own_fd;
use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How many numbers of one socket were closed under calls in progress, and the duplicate that those
/// calls go on with.
///
/// `state` holds the count of closings in bits 23:0, references to the duplicate in bits 39:24, and
/// its number plus one in bits 63:40, or zero without one.
#[derive(Debug, Default)]
pub struct Closings {
    state: AtomicU64,
    /// Calls that wait in one system call, and look no number up after it.
    in_kernel: AtomicU32,
}

const COUNT: u64 = (1 << 24) - 1;
const REFERENCE: u64 = 1 << 24;
const REFERENCES: u64 = 0xffff << 24;
const NUMBER_SHIFT: u32 = 40;

/// Longest time that a closer waits for the calls in progress.
const BOUND: Duration = Duration::from_millis(20);
/// How long a duplicate stays for calls that have not answered. The peer hears of the close that much later,
/// and not before another descriptor is closed under a call.
const GRACE: Duration = Duration::from_secs(2);
/// Looks at those calls before the closer sleeps between two of them.
const YIELDS: u32 = 50;
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

/// A call in progress, which keeps to the socket that it began with.
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

    /// The descriptor to make the next system call with. Not to be kept over a sleep.
    ///
    /// # Errors
    /// `EBADF` if it was closed and no duplicate could be made, or not in time.
    #[inline]
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        // SYNC(closing): pairs with the Release in `keep`, which comes before the number is closed.
        let state = self.closings.state.load(Ordering::Acquire);
        if state & COUNT == u64::from(self.descriptor.seen) {
            return Ok(self.descriptor.fd);
        }
        self.kept()
    }

    #[cold]
    fn kept(&self) -> io::Result<BorrowedFd<'_>> {
        if !self.has_reference.get() {
            let more = |state: u64| (number(state).is_some()).then_some(state + REFERENCE);
            let state = &self.closings.state;
            state
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
                .map_err(|_| Errno::BADF)?;
            self.has_reference.set(true);
        }
        let number = number(self.closings.state.load(Ordering::Acquire)).ok_or(Errno::BADF)?;
        // SAFETY: our reference keeps it open, and is given back when `self` is dropped.
        Ok(unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Runs `call`, one system call with the descriptor that may sleep, after which this call needs
    /// the descriptor no more.
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
    /// With nothing closed.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), in_kernel: AtomicU32::new(0) }
    }

    /// How many numbers were closed under calls so far, modulo 2^24.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.state.load(Ordering::Acquire) & COUNT).unwrap_or(0)
    }

    /// To be called before the kernel closes `fd`, while `others` counts calls in progress that may
    /// use it. Returns once they use a duplicate. `None` as `fd`: the number is another file's
    /// already, so that nothing can be duplicated. `wake` ends the sleeps of those calls, beside
    /// those that watch [`notice`].
    pub fn keep(&self, fd: Option<BorrowedFd<'_>>, wake: impl Fn(), others: impl Fn() -> u64) {
        if others() == 0 {
            return;
        }
        let _section = Section::enter();
        duplicates::take_back(GRACE);
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
            // One reference is ours, so that no other call closes it meanwhile.
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
        let has_answered = self.wait_for(&others);
        match number(self.state.load(Ordering::Acquire)).filter(|_| is_kept) {
            // With our reference, which nothing gives back: `Closings` ends with the last call.
            Some(fd) if !has_answered => duplicates::leave(fd),
            Some(_) => self.release(),
            None => {}
        }
    }

    /// Waits until every other call has taken over the duplicate, or is not going to look at the number.
    /// False if that takes too long.
    fn wait_for(&self, others: impl Fn() -> u64) -> bool {
        let deadline = sys::now().checked_add(BOUND);
        let mut looks = 0;
        let has_answered = loop {
            // Again at each look: another closer may have taken the notice back.
            notice::give();
            let references = (self.state.load(Ordering::Acquire) & REFERENCES) / REFERENCE;
            let answered = references.saturating_sub(1);
            let in_kernel = u64::from(self.in_kernel.load(Ordering::Acquire));
            let has_answered = others() <= answered + in_kernel;
            if has_answered || sys::time_left(deadline) == Some(Duration::ZERO) {
                break has_answered;
            }
            looks += 1;
            if looks < YIELDS {
                rustix::thread::sched_yield();
            } else {
                let _ = sys::sleep(&mut [], Some(PAUSE), None, Watch::begin());
            }
        };
        notice::take_back();
        has_answered
    }

    /// In a forked child, whose only thread is in no call: the duplicate and its users are the parent's.
    pub fn forget_calls(&self) {
        self.in_kernel.store(0, Ordering::Relaxed);
        self.state.fetch_and(COUNT, Ordering::Relaxed);
    }

    fn release(&self) {
        let mut last = None;
        let less = |state: u64| {
            // None is left of what was forgotten in a forked child.
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

impl Drop for Closings {
    fn drop(&mut self) {
        // Every call has ended: what was left for them is needed no more.
        if let Some(fd) = number(*self.state.get_mut()) {
            duplicates::close(fd);
        }
    }
}

fn number(state: u64) -> Option<RawFd> {
    RawFd::try_from(state >> NUMBER_SHIFT).ok()?.checked_sub(1).filter(|fd| *fd >= 0)
}

fn shifted(fd: RawFd) -> u64 {
    u64::try_from(fd + 1).unwrap_or(0) << NUMBER_SHIFT
}

/// The duplicates of this process: a forked child has none of the calls that they are for.
mod duplicates {
    use super::{
        AtomicI32, AtomicU32, BorrowedFd, Duration, Ordering, OwnedFd, RawFd, fork_gate, own_fd,
        sys,
    };
    use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd};
    use rustix::io::DupFlags;
    use std::mem::ManuallyDrop;

    const NONE: i32 = -1;
    /// As many as there can be at a time. Calls on further numbers that are closed under them fail.
    const MOST: usize = 64;
    /// Larger numbers do not fit the state word.
    const LARGEST: RawFd = (1 << 23) - 2;

    static ALL: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
    /// In the place of one that [`take_back`] is at.
    const BUSY: i32 = -2;
    /// Beside each: when it was left for calls that have not answered, by [`sys::tick`]; 0 if it was not.
    static LEFT: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

    /// Another number for the file of `fd`.
    pub(super) fn make(fd: BorrowedFd<'_>) -> Option<RawFd> {
        super::notice::watch_forks();
        let _inside = fork_gate::enter();
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?;
        let fd = own_fd::raise(fd);
        let number = fd.as_raw_fd();
        let is_noted = number <= LARGEST
            && ALL.iter().any(|place| {
                place.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
        if is_noted {
            return Some(fd.into_raw_fd());
        }
        own_fd::close(fd);
        None
    }

    /// Closes what [`make`] returned.
    pub(super) fn close(fd: RawFd) {
        let _inside = fork_gate::enter();
        loop {
            let mut is_busy = false;
            for (place, left) in ALL.iter().zip(&LEFT) {
                match place.compare_exchange(fd, BUSY, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        left.store(0, Ordering::Relaxed);
                        place.store(NONE, Ordering::Release);
                        // SAFETY: taken from the list just now, so open and given up by its last user.
                        own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
                        return;
                    }
                    Err(other) => is_busy |= other == BUSY,
                }
            }
            if !is_busy {
                return;
            }
            rustix::thread::sched_yield();
        }
    }

    /// Leaves what [`make`] returned to calls that have not answered.
    pub(super) fn leave(fd: RawFd) {
        let place = ALL.iter().position(|place| place.load(Ordering::Acquire) == fd);
        if let Some(left) = place.and_then(|at| LEFT.get(at)) {
            left.store(sys::tick().max(1), Ordering::Relaxed);
        }
    }

    /// Ends the files behind duplicates that were left longer ago than `grace`. Their numbers stay ours, and
    /// name a file of no use, because calls may still come back to them.
    pub(super) fn take_back(grace: Duration) {
        let grace = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        for (place, left) in ALL.iter().zip(&LEFT) {
            let since = left.load(Ordering::Relaxed);
            if since == 0 || sys::tick().wrapping_sub(since) < grace {
                continue;
            }
            let useless = super::notice::fd();
            let _inside = fork_gate::enter();
            let fd = place.load(Ordering::Acquire);
            let is_ours = fd >= 0
                && useless >= 0
                && place.compare_exchange(fd, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if !is_ours {
                continue;
            }
            // SAFETY: open as long as the process: see `notice::with`.
            let useless = unsafe { BorrowedFd::borrow_raw(useless) };
            // SAFETY: taken from the list until it is put back below, so open and ours; not closed here.
            let mut kept = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
            let _ = rustix::io::dup3(useless, &mut kept, DupFlags::CLOEXEC);
            left.store(0, Ordering::Relaxed);
            place.store(fd, Ordering::Release);
        }
    }

    /// In a forked child: its copies would keep connections open.
    pub(super) fn close_all() {
        for place in &ALL {
            let fd = place.swap(NONE, Ordering::AcqRel);
            if fd >= 0 {
                // SAFETY: taken from the list just now; the threads that used it are not in this process.
                own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_listed(fd: RawFd) -> bool {
        ALL.iter().any(|place| place.load(Ordering::Relaxed) == fd)
    }
}

/// A descriptor that is readable while some number is being closed under calls in progress. Every sleep
/// that no ring can end watches it.
pub(crate) mod notice {
    use super::{AtomicI32, Ordering, RawFd, duplicates, fork_gate, own_fd};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
    use std::sync::atomic::AtomicBool;

    const NONE: i32 = -1;
    static FD: AtomicI32 = AtomicI32::new(NONE);

    /// What to watch: a descriptor of this process, or -1 if none can be had.
    pub(crate) fn fd() -> RawFd {
        match FD.load(Ordering::Acquire) {
            NONE => make(),
            fd => fd,
        }
    }

    /// An entry for `ppoll`.
    pub(crate) fn entry() -> libc::pollfd {
        libc::pollfd { fd: fd(), events: libc::POLLIN, revents: 0 }
    }

    #[cold]
    fn make() -> RawFd {
        watch_forks();
        let _inside = fork_gate::enter();
        let Ok(new) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
            return NONE;
        };
        let new = own_fd::raise(new).into_raw_fd();
        match FD.compare_exchange(NONE, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: made above, and not published.
                own_fd::close(unsafe { OwnedFd::from_raw_fd(new) });
                other
            }
        }
    }

    /// Wakes every sleeper that watches.
    pub(super) fn give() {
        with(|fd| {
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        });
    }

    /// Lets them sleep again.
    pub(super) fn take_back() {
        with(|fd| {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        });
    }

    fn with(f: impl FnOnce(BorrowedFd<'_>)) {
        let fd = FD.load(Ordering::Acquire);
        if fd != NONE {
            // SAFETY: only a forked child, which has one thread, ever closes it.
            f(unsafe { BorrowedFd::borrow_raw(fd) });
        }
    }

    /// A forked child must not share the parent's notice, nor keep its duplicates open.
    pub(super) fn watch_forks() {
        static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
        extern "C" fn in_child() {
            let fd = FD.swap(NONE, Ordering::AcqRel);
            if fd != NONE {
                // SAFETY: inherited, and the only thread of this process runs here.
                own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            duplicates::close_all();
            fork_gate::forget_all();
        }
        crate::fork::watch();
        if IS_REGISTERED.load(Ordering::Acquire) {
            return;
        }
        // Not by a `Once`: a child that is forked meanwhile would wait for it for ever. Threads that meet here register the
        // handler twice, which does no harm.
        // SAFETY: the handler makes system calls and touches atomics only, and stays mapped as long as
        // this library, which is never unloaded while it has sockets.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        IS_REGISTERED.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::{AsFd, AsRawFd};
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn inode(fd: BorrowedFd<'_>) -> u64 {
        rustix::fs::fstat(fd).expect("open").st_ino
    }

    /// A file of its own, unlike what takes its number's place.
    fn file() -> OwnedFd {
        rustix::fs::memfd_create("closing", rustix::fs::MemfdFlags::CLOEXEC).expect("a file")
    }

    #[test]
    fn a_call_keeps_to_its_file_when_its_number_is_closed_and_reused() {
        let closings = Closings::new();
        let victim = file();
        let original = inode(victim.as_fd());
        let number = victim.as_raw_fd();
        // SAFETY: open; closed below while `call` is in progress, which is what is tested.
        let named = unsafe { BorrowedFd::borrow_raw(number) };
        let call = Call::begin(&closings, Descriptor::new(named, closings.count()));
        assert_eq!(call.fd().expect("open").as_raw_fd(), number);
        let is_closed = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                closings.keep(Some(victim.as_fd()), || {}, || 1);
                is_closed.store(true, Ordering::Release);
            });
            while closings.count() == 0 {
                thread::yield_now();
            }
            // The closer waits for this.
            assert_ne!(call.fd().expect("kept").as_raw_fd(), number);
        });
        assert!(is_closed.load(Ordering::Acquire));
        let mut reused = victim;
        rustix::io::dup2(file(), &mut reused).expect("replaced");
        assert_ne!(inode(reused.as_fd()), original);
        assert_eq!(inode(call.fd().expect("kept")), original);
        let kept = call.fd().expect("kept").as_raw_fd();
        drop(call);
        assert!(!duplicates::is_listed(kept), "the duplicate outlived its last call");
        // A call that begins now has the number's new owner to itself.
        let next = Call::begin(&closings, Descriptor::new(reused.as_fd(), closings.count()));
        assert_eq!(next.fd().expect("open").as_raw_fd(), number);
    }

    /// As a call that gets no processor for long; or that a `longjmp` has left.
    #[test]
    fn a_call_that_answers_late_finds_its_file_until_another_closing_takes_it() {
        let closings = Closings::new();
        let victim = file();
        let original = inode(victim.as_fd());
        let call = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
        closings.keep(Some(victim.as_fd()), || {}, || 1);
        assert_eq!(inode(call.fd().expect("left for it")), original);
        duplicates::take_back(Duration::ZERO);
        let kept = call.fd().expect("a number of ours").as_raw_fd();
        assert_ne!(inode(call.fd().expect("a number of ours")), original);
        drop(call);
        assert!(own_fd::is_own(kept));
        drop(closings);
        assert!(!duplicates::is_listed(kept), "it outlived its socket");
    }

    #[test]
    fn a_call_whose_number_was_closed_behind_our_back_fails() {
        let closings = Closings::new();
        let victim = file();
        let late = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
        closings.keep(None, || {}, || 1);
        assert_eq!(late.fd().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn nothing_is_duplicated_while_no_other_call_is_in_progress() {
        let closings = Closings::new();
        let victim = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        closings.keep(Some(victim.as_fd()), || panic!("nothing to wake"), || 0);
        assert_eq!(closings.count(), 0);
    }

    #[test]
    fn two_closings_share_one_duplicate() {
        let closings = Closings::new();
        let victim = file();
        let call = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
        let answer = || {
            let _ = call.fd();
            1
        };
        closings.keep(Some(victim.as_fd()), || {}, answer);
        let first = call.fd().expect("kept").as_raw_fd();
        closings.keep(Some(victim.as_fd()), || {}, answer);
        assert_eq!(call.fd().expect("kept").as_raw_fd(), first);
        assert_eq!(inode(call.fd().expect("kept")), inode(victim.as_fd()));
    }
}
