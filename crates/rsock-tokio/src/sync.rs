//! The atomics and locks of the algorithms that rsock-models runs under loom, which replaces this
//! module by loom's.

pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
