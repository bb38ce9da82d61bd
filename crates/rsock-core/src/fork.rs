//! The locks around a fork, descriptors that agree with memory ([`fork_gate`]), and what a child
//! closes.
//!
//! A child has one thread. A lock that another thread of its parent held at the fork stays locked
//! in the child for ever. These are the locks that a child may need, and why they do not block it:
//!
//! * The arena of family memory, the list of streams whose pages are reclaimed, and the places of
//!   searches: [`prepare`] holds them. The preload library holds its lists of signal actions and of
//!   native listeners.
//! * The list of opened devices: a child uses `try_lock`, and works without the list if that fails.
//! * Locks in family memory record the id of their owner. A child waits for an owner that it does
//!   not have, because that owner keeps running in the parent.
//! * `AcceleratedStream::search`, the epoll proxy, and what is computed once under `search`: a
//!   child uses `try_lock`. A child never uses a connection between hosts, so it does not take its
//!   locks either.
//! * `Link::state`, the list of links, the free numbers, the submit locks: a child opens a device
//!   of its own, and uses `try_lock` on an inherited link.
//! * The ports and queue pairs of a queue beyond the first: streams have one of each.
//! * Values that are read once (environment, trusted hosts): cells that no thread waits for.
//! * The receivers of datagram queues: `try_lock` only. Datagram sockets go back to UDP before a
//!   fork.

use crate::{fork_gate, page_reclaim};
use rsock_verbs::family;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{mem, ptr};

/// Held by a thread that uses the places of searches.
pub(crate) static SEARCH_PLACES: Mutex<()> = Mutex::new(());

/// The locks, held from before a fork until after it, in both processes.
#[must_use]
#[derive(Debug)]
pub struct ForkGuard {
    _gate: fork_gate::Held,
    _searches: MutexGuard<'static, ()>,
    _streams: page_reclaim::LockedStreams,
    _memory: family::ForkHold,
}

/// Takes the locks. The thread that forks calls this as its last preparation, and drops the result
/// first after the fork, in both processes.
pub fn prepare() -> ForkGuard {
    lock(family::hold_for_fork)
}

fn lock(hold_memory: fn() -> family::ForkHold) -> ForkGuard {
    // In the order in which they are taken elsewhere: a thread that has locked a list may allocate
    // memory, and one that has locked the places may end a stream that was being prepared.
    let _searches = SEARCH_PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let _streams = page_reclaim::lock_for_fork();
    let _memory = hold_memory();
    ForkGuard { _gate: fork_gate::hold(), _searches, _streams, _memory }
}

/// Whether something calls [`prepare`] and [`in_child`] around every fork.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// What [`prepare`] returned to the handlers of [`watch`].
static HELD: AtomicPtr<ForkGuard> = AtomicPtr::new(ptr::null_mut());
/// The function of [`close_in_children`].
static CLOSE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// A program that calls [`prepare`] around every fork itself, and [`in_child`], calls this once,
/// before anything else of this crate.
#[inline]
pub fn note_program_prepares() {
    IS_WATCHED.store(true, Ordering::Relaxed);
}

/// From now on a forked child closes its copies of descriptors that are the parent's alone, with
/// `close`: every call passes the same function, which may run twice.
pub(crate) fn close_in_children(close: fn()) {
    CLOSE.store(close as *mut (), Ordering::Release);
    watch();
}

/// In a forked child, after what [`prepare`] returned has been dropped: forgets the parent's other
/// threads, and closes what is the parent's alone.
pub fn in_child() {
    fork_gate::forget_all();
    let close = CLOSE.load(Ordering::Acquire);
    if !close.is_null() {
        // SAFETY: only `close_in_children` stores here, and only values of this very type.
        let close: fn() = unsafe { mem::transmute::<*mut (), fn()>(close) };
        close();
    }
}

/// Has libc take the locks around every fork from now on, and call [`in_child`], unless the program
/// does. The streams stay those of the parent alone: only the preload library hands them on.
pub(crate) fn watch() {
    if IS_WATCHED.load(Ordering::Acquire) {
        return;
    }
    // Two threads at the same time register the handlers twice: only the first of two finds
    // something to do.
    extern "C" fn before() {
        if HELD.load(Ordering::Relaxed).is_null() {
            HELD.store(Box::into_raw(Box::new(lock(family::hold))), Ordering::Relaxed);
        }
    }
    extern "C" fn after() {
        let held = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
        if !held.is_null() {
            // SAFETY: stored by `before` on this very thread (in a child, its copy), and taken
            // once.
            drop(unsafe { Box::from_raw(held) });
        }
    }
    extern "C" fn after_in_child() {
        after();
        in_child();
    }
    // Not by a `Once`: a child that is forked meanwhile would wait for it for ever.
    // SAFETY: three functions of the right type, which stay mapped as long as this library: it is
    // never unloaded while it has sockets. That of the child makes system calls and touches atomics
    // only.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
    IS_WATCHED.store(true, Ordering::Release);
}
