//! The verbs objects that a process has on RDMA devices, as text and as JSON.

use crate::table::bytes;
use rsock_verbs::rdma::{Usage, peak_usage};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts of queues, and bytes of registered memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RdmaUsage {
    queue_pairs: u64,
    completion_queues: u64,
    registered_bytes: u64,
}

impl RdmaUsage {
    pub(crate) fn new(usage: &Usage) -> Self {
        Self {
            queue_pairs: usage.n_qps,
            completion_queues: usage.n_cqs,
            registered_bytes: usage.registered,
        }
    }

    /// The most that this process has had at a time; `None` if it never had anything.
    pub(crate) fn peak() -> Option<Self> {
        let most = peak_usage();
        (most != Usage::default()).then(|| Self::new(&most))
    }
}

impl fmt::Display for RdmaUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue_pairs, completion_queues, registered_bytes } = self;
        let registered = bytes(*registered_bytes);
        write!(f, "{queue_pairs} QPs, {completion_queues} CQs, {registered} registered")
    }
}
