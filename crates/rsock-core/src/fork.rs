//! What a fork must find unlocked, and descriptors that agree with memory ([`fork_gate`]).
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

use crate::{engine, fork_gate};
use rsock_verbs::family;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The locks, held from before a fork until after it, in both processes.
#[must_use]
#[derive(Debug)]
pub struct Held {
    _gate: fork_gate::Held,
    _streams: engine::HeldStreams,
    _memory: family::ForkHold,
}

/// To be called by the thread that forks, last of what it prepares; what it returns is to be dropped first
/// after the fork, in both processes.
pub fn prepare() -> Held {
    // In the order in which they are taken elsewhere: who has the list may want memory.
    let _streams = engine::hold_for_fork();
    let _memory = family::hold_for_fork();
    Held { _gate: fork_gate::hold(), _streams, _memory }
}

/// Something calls [`prepare`] around every fork.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// What [`prepare`] returned to the handlers of [`watch`].
static HELD: AtomicPtr<Held> = AtomicPtr::new(ptr::null_mut());

/// To be called once, before anything else of this crate, by a program that calls [`prepare`]
/// around every fork itself.
pub fn note_program_prepares() {
    IS_WATCHED.store(true, Ordering::Relaxed);
}

/// Has libc call [`prepare`] around every fork from now on, unless the program does.
pub(crate) fn watch() {
    // Not by a `Once`: a child that is forked meanwhile would wait for it for ever.
    if IS_WATCHED.load(Ordering::Relaxed) || IS_WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    extern "C" fn before() {
        HELD.store(Box::into_raw(Box::new(prepare())), Ordering::Relaxed);
    }
    extern "C" fn after() {
        let held = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
        if !held.is_null() {
            // SAFETY: stored by `before` on this very thread (in a child, its copy), and taken once.
            drop(unsafe { Box::from_raw(held) });
        }
    }
    // SAFETY: three functions of the right type, which stay mapped as long as this library: it is
    // never unloaded while it has sockets.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}
