//! A large flat array whose memory is mapped chunk by chunk, on first use, and never moved or
//! unmapped.
//!
//! Reading costs two loads and takes no lock; growing is a system call and a compare-and-swap, so
//! signal handlers and forked children may do both. Guards that a `&'static T` handed out stays
//! valid for ever: that is what makes the slots built on it type-stable.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// Types for which memory full of zero bytes is a valid, shareable value.
///
/// # Safety
/// As the sentence above says; and `T` needs no drop and an alignment of at most a page.
pub(crate) unsafe trait Zeroed: Sync + 'static {}

// SAFETY: an atomic integer; zero is a value of it.
unsafe impl Zeroed for std::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl Zeroed for std::sync::atomic::AtomicU32 {}

/// `CHUNKS` chunks of `PER_CHUNK` zeroed values each.
///
/// # Invariants
/// A non-null chunk pointer is the start of a live mapping of `PER_CHUNK` values, never unmapped.
#[repr(C)]
pub(crate) struct Chunked<T: Zeroed, const PER_CHUNK: usize, const CHUNKS: usize> {
    /// No chunk from here on is in use. It shares a page with the first chunks.
    ///
    /// PERF: a process looks for the last chunk whenever it forks or ends. Searching the array
    /// would touch all its pages, at 0.7 us each the first time.
    n_chunks: AtomicUsize,
    chunks: [AtomicPtr<T>; CHUNKS],
}

impl<T: Zeroed, const PER_CHUNK: usize, const CHUNKS: usize> Chunked<T, PER_CHUNK, CHUNKS> {
    const BYTES: usize = PER_CHUNK * size_of::<T>();

    pub(crate) const fn new() -> Self {
        const { assert!(PER_CHUNK.is_power_of_two() && align_of::<T>() <= PAGE) };
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            n_chunks: AtomicUsize::new(0),
        }
    }

    /// The value at `index`, if its chunk has been used.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&'static T> {
        let chunk = self.chunks.get(index / PER_CHUNK)?.load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: by the type's invariant the chunk holds `PER_CHUNK` values.
        let at = unsafe { chunk.add(index % PER_CHUNK) };
        // SAFETY: in bounds, aligned (a mapping is page-aligned), initialised with zeroes, which
        // `Zeroed` makes a value; never unmapped; only shared references exist.
        Some(unsafe { &*at })
    }

    /// The value at `index`, whose chunk is mapped if need be. `None` out of range or memory.
    #[unsafe(link_section = "rsock_hooks")]
    pub(crate) fn get_or_map(&self, index: usize) -> Option<&'static T> {
        if let Some(found) = self.get(index) {
            return Some(found);
        }
        let chunk = self.chunks.get(index / PER_CHUNK)?;
        // PERF: the caller is about to read and then to write its value, which are two page faults
        // unless the kernel maps the page here. With this and the frame of `recv`, the library
        // costs `redis-cli ping` 23 page faults; without, 27.
        let at_once = if Self::BYTES <= PAGE { MapFlags::POPULATE } else { MapFlags::empty() };
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces no other.
        let fresh = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                Self::BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | at_once,
            )
        }
        .ok()?;
        // Relaxed: the Release below publishes it with the chunk, so a thread that sees a chunk in
        // use finds it counted.
        self.n_chunks.fetch_max(index / PER_CHUNK + 1, Ordering::Relaxed);
        // SYNC(chunk): publishes the mapping. Pairs with the Acquire in `get`.
        // INVARIANT: a live mapping of `BYTES` zero bytes.
        if chunk
            .compare_exchange(ptr::null_mut(), fresh.cast(), Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread's chunk won; this one was mapped above and is not known
            // elsewhere.
            let _ = unsafe { munmap(fresh, Self::BYTES) };
        }
        self.get(index)
    }

    /// One past the last index whose chunk is in use, or is about to be.
    pub(crate) fn end(&self) -> usize {
        self.n_chunks.load(Ordering::Relaxed) * PER_CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn memory_appears_on_first_use_only_and_stays() {
        static ARRAY: Chunked<AtomicU64, 512, 4> = Chunked::new();
        assert!(ARRAY.get(700).is_none());
        assert_eq!(ARRAY.end(), 0);
        let value = ARRAY.get_or_map(700).expect("room");
        assert_eq!(value.swap(9, Ordering::Relaxed), 0);
        assert!(ptr::eq(value, ARRAY.get(700).expect("mapped")));
        assert!(ARRAY.get(511).is_none() && ARRAY.get(512).is_some());
        assert_eq!(ARRAY.end(), 1024);
        assert!(ARRAY.get_or_map(2048).is_none(), "past the end");
    }
}
