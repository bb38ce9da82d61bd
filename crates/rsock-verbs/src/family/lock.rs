//! A lock in family memory. Its word names its owner, so that the death of a holder is noticed;
//! without contention it costs one compare-and-swap and one swap.

use super::arena::FamilySafe;
use super::process::{is_thread_alive, thread_tag};
use crate::sync::owner::{Obtained, OwnerWord, Threads};
use crate::sync::primitive::Native;
use rustix::io::Errno;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;

/// How long a sleeper waits before it checks whether the owner is still alive. Nanoseconds.
const OWNER_CHECK_NS: i64 = 20_000_000;

/// A mutual exclusion lock for the threads of a process family.
///
/// Not recursive: a thread that already holds it gets `None` from [`Lock::try_lock`], and
/// [`Lock::lock`] would wait for itself, so callers keep critical sections short and free of user
/// code, and signal handlers are kept out of them.
#[repr(C)]
pub struct Lock<T> {
    word: OwnerWord,
    value: UnsafeCell<T>,
}

// SAFETY: the word admits one thread at a time to `value`.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: the word is atomic; `T: Copy` rules out heap pointers that own, and users place only
// plain values behind it (no references, by `'static`).
unsafe impl<T: Copy + Send + 'static> FamilySafe for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { word: OwnerWord { word: AtomicU32::new(0) }, value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it. A holder that died is replaced; its change may be
    /// incomplete, which [`Guard::is_recovered`] reports.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let me = thread_tag();
        let recovered =
            !self.word.try_lock(me) && self.word.lock_slow(me, &Kernel) == Obtained::FromDeadOwner;
        Guard { lock: self, recovered }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.try_lock(thread_tag()).then(|| Guard { lock: self, recovered: false })
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("owner", &self.word.owner()).finish_non_exhaustive()
    }
}

/// Futexes, and thread ids of this process-id namespace.
struct Kernel;

impl Threads<Native> for Kernel {
    fn wait(&self, word: &AtomicU32, value: u32) -> bool {
        let wait = futex::Timespec { tv_sec: 0, tv_nsec: OWNER_CHECK_NS };
        futex::wait(word, futex::Flags::empty(), value, Some(&wait)) == Err(Errno::TIMEDOUT)
    }

    fn wake_one(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    fn is_alive(&self, thread: u32) -> bool {
        is_thread_alive(thread)
    }
}

/// Holds a [`Lock`].
#[must_use]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    recovered: bool,
}

impl<T> Guard<'_, T> {
    /// Whether the previous holder died inside: the value may be changed in part.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.recovered
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.word.unlock(&Kernel);
    }
}

impl<T> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("recovered", &self.recovered).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::FamilyBox;
    use crate::sync::owner::{CONTENDED, FREE};
    use std::sync::atomic::Ordering;

    #[test]
    fn threads_take_turns() {
        let lock = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..50_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 200_000);
    }

    #[test]
    fn a_try_that_fails_leaves_the_lock_with_its_owner() {
        let lock = Lock::new(0u64);
        let held = lock.lock();
        std::thread::scope(|s| {
            s.spawn(|| assert!(lock.try_lock().is_none())).join().expect("no panic");
        });
        assert_eq!(lock.word.owner(), thread_tag());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    /// A process that ran when this test began, and whose memory is not the family's.
    fn unrelated_process() -> std::process::Child {
        std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts")
    }

    #[test]
    fn a_dead_holder_is_replaced_although_its_id_is_in_use_again() {
        let mut holder = unrelated_process();
        let lock = Lock::new(7u32);
        lock.word.word.store(holder.id(), Ordering::Relaxed);
        assert!(lock.lock().is_recovered());
        holder.kill().expect("kill");
        holder.wait().expect("wait");
    }

    #[test]
    fn a_holder_in_another_namespace_is_waited_for_although_its_id_means_nothing_here() {
        let mut gone = unrelated_process();
        gone.kill().expect("kill");
        gone.wait().expect("wait");
        let lock = Lock::new(7u32);
        lock.word.word.store(gone.id() | 3 << 22, Ordering::Relaxed);
        std::thread::scope(|s| {
            let waiting = s.spawn(|| lock.lock().is_recovered());
            // Each sleep of the waiter checks once whether the owner has ended.
            let mut n = 0;
            while n < 3 && !waiting.is_finished() {
                while lock.word.word.load(Ordering::Relaxed) & CONTENDED == 0 {
                    std::thread::yield_now();
                }
                let wait = futex::Timespec { tv_sec: 0, tv_nsec: 2 * OWNER_CHECK_NS };
                let word = lock.word.word.load(Ordering::Relaxed);
                let _ = futex::wait(&lock.word.word, futex::Flags::empty(), word, Some(&wait));
                n += 1;
            }
            assert!(!waiting.is_finished());
            // The holder releases the lock.
            lock.word.word.store(FREE, Ordering::Release);
            let _ = futex::wake(&lock.word.word, futex::Flags::empty(), u32::MAX >> 1);
            assert!(!waiting.join().expect("no panic"), "not from the dead");
        });
    }

    #[test]
    fn a_holder_that_died_is_replaced() {
        let lock = FamilyBox::new(Lock::new(7u32)).expect("room");
        // SAFETY: the child only takes the lock and exits at once, holding it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::mem::forget(lock.lock());
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        let guard = lock.lock();
        assert!(guard.is_recovered());
        assert_eq!(*guard, 7);
    }
}
