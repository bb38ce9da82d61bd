//! Models of concurrent algorithms of the crates above rsock-verbs, explored by loom.
//!
//! An algorithm lies in a file of its own in its crate, and takes its atomics from `crate::sync`.
//! There that is the standard library's; this crate compiles the same file with loom's. Of those
//! crates it depends on `rsock-proto` alone, for rules without atomics: what others depend on
//! (Tokio) cannot be built for loom. Outside of `--cfg loom` it is empty. The device's own models
//! are in `rsock-verbs/src/sync/loom_models.rs`.
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
