//! Models of concurrent algorithms, explored by loom.
//!
//! An algorithm lies in a file of its own in its crate, and takes its atomics from `crate::sync`.
//! There that is the standard library's; this crate compiles the same file with loom's. The soft
//! device's algorithms are generic over their atomics instead. Of those crates this one depends on
//! `rsock-proto` alone, for rules without atomics: what others depend on (Tokio) cannot be built
//! for loom, or takes long to build once more. Outside of `--cfg loom` it is empty.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rsock-models --lib --release`

#[cfg(all(test, loom))]
mod loom_models;

/// What the included files are made of.
#[cfg(all(test, loom))]
mod sync {
    pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};

    /// What loom takes for sequential consistency, which it knows of fences only.
    pub(crate) fn sequential() {
        atomic::fence(atomic::Ordering::SeqCst);
    }
}
