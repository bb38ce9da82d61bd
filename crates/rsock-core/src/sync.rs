//! Atomics of the algorithms that rsock-models runs under loom, where this module is loom's.

pub(crate) use std::sync::atomic;

/// Stands between two accesses whose order `Ordering::SeqCst` keeps, for loom, which knows sequential
/// consistency of fences only.
#[inline(always)]
pub(crate) fn sequential() {}
