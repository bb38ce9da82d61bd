//! Atomics behind traits, so that the same algorithm runs on mapped memory and under loom.

use std::fmt::Debug;
use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// An atomic integer.
pub(crate) trait Word<T>: Debug + Send + Sync {
    /// A word that holds `value`.
    fn new(value: T) -> Self;
    /// Atomic load.
    fn load(&self, order: Ordering) -> T;
    /// Atomic store.
    fn store(&self, value: T, order: Ordering);
    /// Atomic addition, which wraps; the old value.
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    /// Atomic bit mask; the old value.
    fn fetch_and(&self, bits: T, order: Ordering) -> T;
    /// Atomic bit set; the old value.
    fn fetch_or(&self, bits: T, order: Ordering) -> T;
    /// Atomic subtraction, which wraps; the old value.
    fn fetch_sub(&self, value: T, order: Ordering) -> T;
    /// Atomic exchange; the old value.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Atomic exchange if the word holds `old`; otherwise the value that it holds, as an error.
    fn compare_exchange(&self, old: T, new: T, done: Ordering, failed: Ordering) -> Result<T, T>;
}

/// A set of atomics that work together, and their full fence.
pub(crate) trait Platform: Debug + 'static {
    /// 32-bit word.
    type U32: Word<u32>;
    /// 64-bit word.
    type U64: Word<u64>;
    /// Orders everything before it with everything after it, stores before loads too.
    fn fence();
}

/// The processor's own atomics.
#[derive(Debug)]
pub(crate) enum Native {}

impl Platform for Native {
    type U32 = AtomicU32;
    type U64 = AtomicU64;

    #[inline(always)]
    fn fence() {
        atomic::fence(Ordering::SeqCst);
    }
}

macro_rules! word {
    ($atomic:ty, $int:ty) => {
        impl Word<$int> for $atomic {
            #[inline(always)]
            fn new(value: $int) -> Self {
                Self::new(value)
            }
            #[inline(always)]
            fn load(&self, order: Ordering) -> $int {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: $int, order: Ordering) {
                self.store(value, order);
            }
            #[inline(always)]
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.fetch_add(value, order)
            }
            #[inline(always)]
            fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                self.fetch_and(bits, order)
            }
            #[inline(always)]
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                self.fetch_or(bits, order)
            }
            #[inline(always)]
            fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.fetch_sub(value, order)
            }
            #[inline(always)]
            fn swap(&self, value: $int, order: Ordering) -> $int {
                self.swap(value, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                done: Ordering,
                failed: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(old, new, done, failed)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);

/// Loom's atomics: the model checker decides what each load sees.
#[cfg(all(test, loom))]
#[derive(Debug)]
pub(crate) enum Loom {}

#[cfg(all(test, loom))]
impl Platform for Loom {
    type U32 = loom::sync::atomic::AtomicU32;
    type U64 = loom::sync::atomic::AtomicU64;

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
word!(loom::sync::atomic::AtomicU32, u32);
#[cfg(all(test, loom))]
word!(loom::sync::atomic::AtomicU64, u64);
