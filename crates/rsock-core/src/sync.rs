//! Atomics of the algorithms that rsock-models runs under loom, where this module is loom's.

pub(crate) use std::sync::atomic;

/// A fence under loom between two accesses that `Ordering::SeqCst` orders here: loom models
/// sequential consistency for fences only.
#[inline(always)]
pub(crate) fn sequential() {}
