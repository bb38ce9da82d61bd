//! What a fork must find unlocked.
//!
//! A child has one thread. A lock that another thread of its parent held at the fork stays locked in
//! the child for ever. These are the locks that a child may want, and why it gets them:
//!
//! * The arena of family memory and the list of streams that are trimmed: [`prepare`] holds them. The lists
//!   of signal actions and of doors: the preload library does.
//! * The list of opened devices: a child tries, and does without.
//! * Locks in family memory tell the id of their owner: one that the child does not have is waited
//!   for, since it runs on in the parent.
//! * `AcceleratedStream::search`, `stand_in`, and what is computed once under `search`: a child only tries. A path
//!   between hosts is never used by a child, and neither are its locks.
//! * `Link::state`, the list of links, the free numbers, the feeds: a child makes a device of its own,
//!   and tries only where it meets an inherited link.
//! * The ports and queue pairs of a queue beyond the first: streams have one of each.
//! * What is read once (environment, trusted hosts): cells that no thread waits for.
//! * The inlets of datagram queues: tried only. Datagram sockets go back to UDP before a fork.

#![forbid(unsafe_code)]

use crate::engine;
use rsock_verbs::family;

/// The locks, held from before a fork until after it, in both processes.
#[must_use]
#[derive(Debug)]
pub struct Held {
    _streams: engine::HeldStreams,
    _memory: family::ForkHold,
}

/// To be called by the thread that forks, last of what it prepares; what it returns is to be dropped first
/// after the fork, in both processes.
pub fn prepare() -> Held {
    // In the order in which they are taken elsewhere: who has the list may want memory.
    let _streams = engine::hold_for_fork();
    Held { _streams, _memory: family::hold_for_fork() }
}
