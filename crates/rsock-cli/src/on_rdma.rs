//! What a process has on RDMA devices, as text and as JSON.

use crate::stat::bytes;
use rsock_verbs::rdma::{Usage, peak_usage};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Queues, and registered memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct OnRdma {
    queue_pairs: u64,
    completion_queues: u64,
    shared_receive_queues: u64,
    registered_bytes: u64,
}

impl OnRdma {
    pub(crate) fn new(usage: &Usage) -> Self {
        Self {
            queue_pairs: usage.n_qps,
            completion_queues: usage.n_cqs,
            shared_receive_queues: usage.n_srqs,
            registered_bytes: usage.registered,
        }
    }

    /// The most that this process has had; `None` if nothing.
    pub(crate) fn at_most() -> Option<Self> {
        let most = peak_usage();
        (most != Usage::default()).then(|| Self::new(&most))
    }
}

impl fmt::Display for OnRdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue_pairs, completion_queues, shared_receive_queues, registered_bytes } = self;
        let registered = bytes(*registered_bytes);
        write!(
            f,
            "{queue_pairs} QPs, {completion_queues} CQs, {shared_receive_queues} SRQs, \
             {registered} registered"
        )
    }
}
