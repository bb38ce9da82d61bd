//! Atomics and locks of the algorithms that rsock-models runs under loom, where this module is loom's.

pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
