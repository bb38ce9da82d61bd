//! Blocks in family memory.

use super::process::{ProcessId, forks, note_fork, process, thread_id};
use crate::sparse;
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Types that may live in family memory.
///
/// # Safety
/// The type holds no heap pointer, no reference and no descriptor ownership; all shared mutation
/// goes through atomics or a [`super::Lock`]; and an all-zero or constructed value stays valid when
/// two processes use it.
pub unsafe trait FamilySafe: Sync {}

/// Types whose all-zero bytes are a value.
///
/// # Safety
/// All-zero bytes are a valid value of the type.
pub unsafe trait ZeroInit: FamilySafe {}

// SAFETY: an atomic 0.
unsafe impl ZeroInit for AtomicU32 {}
// SAFETY: an atomic 0.
unsafe impl ZeroInit for std::sync::atomic::AtomicU64 {}

// SAFETY: plain atomics.
unsafe impl FamilySafe for AtomicU32 {}
// SAFETY: plain atomics.
unsafe impl FamilySafe for std::sync::atomic::AtomicU64 {}
// SAFETY: an array of family-safe values holds nothing more than they do.
unsafe impl<T: FamilySafe, const N: usize> FamilySafe for [T; N] {}

const CHUNK: usize = 64 << 20;
const SMALL_CHUNK: usize = 1 << 20;
const ALIGN: usize = 128;
const PAGE: usize = 4096;
/// Blocks of up to so many bytes come in multiples of [`ALIGN`], larger ones in powers of two.
const SMALL: usize = 2048;
/// Size classes of small blocks, and of all.
const SMALL_CLASSES: usize = SMALL / ALIGN;
const CLASSES: usize = SMALL_CLASSES + 15;

#[derive(Debug)]
struct Arena {
    owner: ProcessId,
    next: usize,
    end: usize,
    free: [Vec<usize>; CLASSES],
}

static ARENA: Mutex<Option<Arena>> = Mutex::new(None);
/// The thread that holds the arena for its fork; 0 for none.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The arena, held from before a fork until after it, in both processes.
#[must_use]
#[derive(Debug)]
pub struct ForkHold {
    _arena: MutexGuard<'static, Option<Arena>>,
}

/// Takes the arena over a fork, which a child would find locked for ever if another thread was
/// using it, and calls [`note_fork`]. Until what it returns is dropped the calling thread gets no
/// family memory, and what it gives back is lost.
pub fn hold_for_fork() -> ForkHold {
    let held = hold();
    // Under the lock: what is made after it, the child does not know.
    note_fork();
    held
}

/// As [`hold_for_fork`], of a program that does not share what it has with its child: it does not
/// call [`note_fork`].
pub fn hold() -> ForkHold {
    let arena = arena();
    FORKING.store(thread_id(), Ordering::Relaxed);
    ForkHold { _arena: arena }
}

/// Whether the calling thread holds the arena for its fork.
#[must_use]
pub fn is_forking() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == thread_id()
}

impl Drop for ForkHold {
    fn drop(&mut self) {
        FORKING.store(0, Ordering::Relaxed);
    }
}

fn arena() -> MutexGuard<'static, Option<Arena>> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size class of a block for `bytes`, which are not 0.
fn class_of(bytes: usize) -> usize {
    if bytes <= SMALL {
        return (bytes - 1) / ALIGN;
    }
    let doublings = (bytes.next_power_of_two() / SMALL).trailing_zeros();
    SMALL_CLASSES - 1 + doublings as usize
}

/// Bytes of the blocks of a class.
fn size_of_class(class: usize) -> usize {
    match (class + 1).checked_sub(SMALL_CLASSES) {
        Some(doublings) => SMALL << doublings,
        None => (class + 1) * ALIGN,
    }
}

/// A block of zeros. Pages that were never used, or were given back, are not touched.
fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    if bytes == 0 {
        return NonNull::new(ptr::without_provenance_mut(ALIGN));
    }
    let class = class_of(bytes);
    if class >= CLASSES || is_forking() {
        return None;
    }
    let size = size_of_class(class);
    let mut slot = arena();
    let here = process();
    if slot.as_ref().is_none_or(|a| a.owner != here) {
        // First use, or this is a forked child: what it inherited belongs to the family as it is.
        *slot = Some(Arena { owner: here, next: 0, end: 0, free: Default::default() });
    }
    let arena = slot.as_mut()?;
    if let Some(at) = arena.free[class].pop() {
        return NonNull::new(ptr::with_exposed_provenance_mut(at));
    }
    if arena.end - arena.next < size {
        // The program may need the rest of a limited address space.
        let chunk = if sparse::is_limited() { SMALL_CHUNK } else { CHUNK };
        let len = chunk.max(size);
        arena.next = sparse::map(len, None).ok()?.expose_provenance();
        arena.end = arena.next + len;
    }
    let at = arena.next;
    arena.next += size;
    NonNull::new(ptr::with_exposed_provenance_mut(at))
}

fn release(at: NonNull<u8>, bytes: usize, created: (ProcessId, u32)) {
    // A block that lived through a fork may still be in use on the other side.
    if created != (process(), forks()) || is_forking() || bytes == 0 {
        return;
    }
    clear(at, size_of_class(class_of(bytes)));
    if let Some(arena) = arena().as_mut()
        && arena.owner == created.0
    {
        arena.free[class_of(bytes)].push(at.as_ptr().expose_provenance());
    }
}

/// Zeroes a free block; its whole pages go back to the system.
fn clear(at: NonNull<u8>, len: usize) {
    let start = at.as_ptr().expose_provenance();
    let end = start + len;
    let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
    let punched = first < last && {
        let pages = ptr::with_exposed_provenance_mut(first);
        let advice = rustix::mm::Advice::LinuxRemove;
        // SAFETY: whole pages of a block that is no longer in use, in a mapping of this arena.
        unsafe { rustix::mm::madvise(pages, last - first, advice) }.is_ok()
    };
    let (head, tail) = if punched { (first - start, end - last) } else { (len, 0) };
    // SAFETY: the front of the block, which is free.
    unsafe { at.write_bytes(0, head) };
    // SAFETY: inside the block.
    let tail_at = unsafe { at.add(len - tail) };
    // SAFETY: the end of the block, which is free.
    unsafe { tail_at.write_bytes(0, tail) };
}

/// One value in family memory.
///
/// # Invariants
/// `at` points to a live, initialised `T` in a shared mapping that is never unmapped.
pub struct FamilyBox<T: FamilySafe> {
    at: NonNull<T>,
    created: (ProcessId, u32),
}

impl<T: FamilySafe> FamilyBox<T> {
    /// Puts `value` into family memory; `None` when the machine has no room.
    #[must_use]
    pub fn new(value: T) -> Option<Self> {
        const { assert!(align_of::<T>() <= ALIGN && !std::mem::needs_drop::<T>()) };
        let at: NonNull<T> = allocate(size_of::<T>())?.cast();
        // SAFETY: the block is large enough, aligned to 128, and no other code has it until this
        // returns it.
        unsafe { at.write(value) };
        // INVARIANT: initialised just now; chunks are never unmapped.
        Some(Self { at, created: (process(), forks()) })
    }
}

impl<T: FamilySafe> Deref for FamilyBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: by the type's invariant; shared mutation is atomic, by `FamilySafe`.
        unsafe { self.at.as_ref() }
    }
}

impl<T: FamilySafe> Drop for FamilyBox<T> {
    fn drop(&mut self) {
        release(self.at.cast(), size_of::<T>(), self.created);
    }
}

// SAFETY: the box gives shared access only, and `T: Sync` (from `FamilySafe`).
unsafe impl<T: FamilySafe> Send for FamilyBox<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: FamilySafe> Sync for FamilyBox<T> {}

impl<T: FamilySafe + fmt::Debug> fmt::Debug for FamilyBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A run of values in family memory, of a length fixed when it is made.
///
/// # Invariants
/// `at` points to `len` live, initialised `T`s in a shared mapping that is never unmapped.
pub struct FamilySlice<T: FamilySafe> {
    at: NonNull<T>,
    len: usize,
    created: (ProcessId, u32),
}

impl<T: FamilySafe> FamilySlice<T> {
    /// `len` values made by `init`; `None` when the machine has no room.
    #[must_use]
    pub fn new(len: usize, mut init: impl FnMut(usize) -> T) -> Option<Self> {
        const { assert!(align_of::<T>() <= ALIGN && !std::mem::needs_drop::<T>()) };
        let at: NonNull<T> = allocate(size_of::<T>().checked_mul(len)?)?.cast();
        for i in 0..len {
            // SAFETY: `i < len`, and the block holds `len` values.
            let slot = unsafe { at.add(i) };
            // SAFETY: inside the block, aligned, and no other code has it until this returns it.
            unsafe { slot.write(init(i)) };
        }
        // INVARIANT: all `len` values were initialised just now; chunks are never unmapped.
        Some(Self { at, len, created: (process(), forks()) })
    }
}

impl<T: ZeroInit> FamilySlice<T> {
    /// `len` zero values, on pages that are taken when they are first touched; `None` when the
    /// machine has no room.
    #[must_use]
    pub fn zeroed(len: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= ALIGN && !std::mem::needs_drop::<T>()) };
        let at: NonNull<T> = allocate(size_of::<T>().checked_mul(len)?)?.cast();
        // INVARIANT: blocks are zero, which is a value by `ZeroInit`; chunks are never unmapped.
        Some(Self { at, len, created: (process(), forks()) })
    }
}

impl<T: FamilySafe> Deref for FamilySlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: by the type's invariant; shared mutation is atomic, by `FamilySafe`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: FamilySafe> Drop for FamilySlice<T> {
    fn drop(&mut self) {
        release(self.at.cast(), size_of::<T>() * self.len, self.created);
    }
}

// SAFETY: the slice gives shared access only, and `T: Sync` (from `FamilySafe`).
unsafe impl<T: FamilySafe> Send for FamilySlice<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: FamilySafe> Sync for FamilySlice<T> {}

impl<T: FamilySafe> fmt::Debug for FamilySlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FamilySlice").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_block_is_the_smallest_of_a_class_that_holds_it() {
        for class in 0..CLASSES {
            let size = size_of_class(class);
            assert!(class_of(size) == class && class_of(size - 1) == class);
            assert_eq!(class_of(size + 1), class + 1);
            assert!(size.is_multiple_of(ALIGN));
        }
        assert_eq!([1, 128, 129, 768, 2048, 2049, 5000].map(class_of), [0, 0, 1, 5, 15, 16, 17]);
        assert_eq!(size_of_class(17), 8192);
    }

    #[test]
    fn a_forked_child_writes_what_its_parent_reads() {
        let cell = FamilyBox::new(AtomicU64::new(1)).expect("room");
        // SAFETY: the child only writes an atomic and exits at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            cell.store(2, Ordering::Relaxed);
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((status, cell.load(Ordering::Relaxed)), (0, 2));
    }

    #[test]
    fn a_child_finds_the_arena_unlocked_even_if_another_thread_used_it_at_the_fork() {
        let _dog = crate::conformance::Watchdog::new("fork");
        let user = arena();
        std::thread::scope(|s| {
            let forker = s.spawn(|| {
                // Does not announce a fork, which would affect other tests.
                let held = hold();
                assert!(FamilyBox::new(AtomicU64::new(1)).is_none());
                // SAFETY: the child takes blocks of memory, and exits at once.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // A child that hangs is not left behind.
                    // SAFETY: the default action of the signal ends the child.
                    unsafe { libc::alarm(60) };
                }
                drop(held);
                let block = FamilyBox::new(AtomicU64::new(1));
                if child == 0 {
                    // SAFETY: ends the child without running the test harness's exit handlers.
                    unsafe { libc::_exit(i32::from(block.is_none())) };
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                status
            });
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            // The forking thread gets to this point, and no further.
            assert!(!forker.is_finished() && FORKING.load(Ordering::Relaxed) == 0);
            drop(user);
            assert_eq!(forker.join().expect("no panic"), 0);
        });
    }

    #[test]
    fn recycled_blocks_are_zero_and_hold_no_pages() {
        for len in [1usize, 100, 5000, 40_000] {
            for _ in 0..3 {
                let s = FamilySlice::<AtomicU64>::zeroed(len).expect("room");
                assert!(s.iter().all(|v| v.load(Ordering::Relaxed) == 0));
                s.iter().for_each(|v| v.store(7, Ordering::Relaxed));
            }
        }
        let resident = |at: usize, pages: usize| {
            let mut seen = vec![0u8; pages];
            let at = ptr::with_exposed_provenance_mut(at);
            // SAFETY: whole pages of a live block; one byte of answer for each.
            assert_eq!(unsafe { libc::mincore(at, pages * PAGE, seen.as_mut_ptr()) }, 0);
            seen.iter().filter(|b| **b & 1 != 0).count()
        };
        let s = FamilySlice::<AtomicU64>::zeroed(20 * PAGE / 8).expect("room");
        let first = (s.as_ptr() as usize).next_multiple_of(PAGE);
        assert_eq!(resident(first, 19), 0);
        s.iter().for_each(|v| v.store(7, Ordering::Relaxed));
        assert_eq!(resident(first, 19), 19);
        drop(s);
        let again = FamilySlice::<AtomicU64>::zeroed(20 * PAGE / 8).expect("room");
        assert!(again.iter().all(|v| v.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn blocks_do_not_overlap_and_are_aligned() {
        let slices: Vec<_> = (1..200)
            .map(|n| FamilySlice::new(n, |_| AtomicU64::new(n as u64)).expect("room"))
            .collect();
        for (i, s) in slices.iter().enumerate() {
            assert_eq!(s.as_ptr() as usize % ALIGN, 0);
            assert!(s.iter().all(|v| v.load(Ordering::Relaxed) == i as u64 + 1));
        }
    }
}
