//! Native listeners: beside a listening socket of the program, a listener at the same port of the
//! RDMA devices, for peers that speak rsockets alone. Only where the configuration wants them.
//!
//! `listen` opens one, as it opens the kernel's queue. A process that forks before it has waited
//! for a connection closes it again: the first process that waits, parent or child, opens the next.
//! A port of a device has one listener, so of several processes that wait on one socket one has the
//! native listener.
//!
//! Invariant: the list is locked inside a [`Section`] only, so a signal handler that waits for a
//! listening socket never waits for the code that it interrupted; and over a fork.

use super::shared_listener::SharedListener;
use crate::{fdtable, guard, log, vfork};
use libc::c_int;
use rsock_core::accelerate::NativeListener;
use rsock_core::interrupt::Section;
use rustix::fd::BorrowedFd;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

static LISTENERS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// The lock on the list while the process forks.
static HELD: AtomicPtr<MutexGuard<'static, Vec<Entry>>> = AtomicPtr::new(ptr::null_mut());

/// A listening socket.
struct Entry {
    inode: u64,
    listener: Option<Arc<SharedListener>>,
    /// Whether this process has waited for the socket.
    is_awaited: bool,
    tried: Option<Instant>,
}

/// The reason to look a native listener up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Listen,
    Wait,
}

/// How long after a failure to open a native listener the next attempt is made.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// `fd` listens now.
pub(crate) fn note_listening(fd: c_int) {
    let _section = Section::enter();
    let _ = guard::call_core(|| {
        if NativeListener::is_wanted() {
            drop(find(fd, Purpose::Listen));
        }
        Ok(())
    });
}

/// `fd` is about to be closed. To be called before the table's entry of `fd` is removed.
pub(crate) fn note_closing(fd: c_int) {
    if !fdtable::is_listening(fd) || guard::is_in_core() || vfork::is_child() {
        return;
    }
    let _section = Section::enter();
    let _ = guard::call_core(|| {
        let inode = inode_of(fd)?;
        let is_same = |other: &c_int| *other != fd && inode_of(*other).is_ok_and(|i| i == inode);
        if !fdtable::listening().any(|other| is_same(&other)) {
            let mut listeners = lock();
            let closed = listeners.iter().position(|entry| entry.inode == inode);
            let closed = closed.map(|i| listeners.swap_remove(i));
            drop(listeners);
            drop(closed);
        }
        Ok(())
    });
}

/// The native listener of socket `fd`, for a thread that is about to wait.
pub(crate) fn of(fd: c_int) -> Option<Arc<SharedListener>> {
    if guard::is_in_core() {
        return None;
    }
    let _section = Section::enter();
    guard::call_core(|| find(fd, Purpose::Wait)).ok().flatten()
}

/// The process is about to fork, inside a section.
pub(crate) fn prepare_fork() {
    let mut listeners = lock();
    let _ = guard::call_core(|| {
        for entry in listeners.iter_mut().filter(|entry| !entry.is_awaited) {
            entry.listener = None;
            entry.tried = None;
        }
        Ok(())
    });
    HELD.store(Box::into_raw(Box::new(listeners)), Ordering::Relaxed);
}

/// Ends what [`prepare_fork`] began.
pub(crate) fn after_fork_in_parent() {
    drop(held());
}

/// Ends what [`prepare_fork`] began, in the child: the parent's native listeners are not the
/// child's.
pub(crate) fn after_fork_in_child() {
    let Some(mut listeners) = held() else { return };
    let _ = guard::call_core(|| {
        for entry in listeners.iter_mut() {
            entry.is_awaited = false;
            entry.tried = None;
            // `None` where a thread held it that this process does not have.
            if let Some(listener) = entry.listener.take().and_then(Arc::into_inner) {
                listener.native.abandon();
            }
        }
        Ok(())
    });
}

fn held() -> Option<MutexGuard<'static, Vec<Entry>>> {
    let held = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: not null, so stored by `prepare_fork` on this very thread (in a child, its copy), and
    // taken once.
    (!held.is_null()).then(|| *unsafe { Box::from_raw(held) })
}

fn lock() -> MutexGuard<'static, Vec<Entry>> {
    guard::lock(&LISTENERS)
}

/// The native listener of `fd`, opened if need be and if the last attempt was long enough ago.
fn find(fd: c_int, purpose: Purpose) -> io::Result<Option<Arc<SharedListener>>> {
    let inode = inode_of(fd)?;
    let is_awaited = purpose == Purpose::Wait;
    let mut listeners = lock();
    let known = listeners.iter().position(|entry| entry.inode == inode);
    let at = known.unwrap_or(listeners.len());
    if known.is_none() {
        listeners.push(Entry { inode, listener: None, is_awaited, tried: None });
    }
    let entry = &mut listeners[at];
    entry.is_awaited |= is_awaited;
    if entry.listener.is_none() && entry.tried.is_none_or(|tried| tried.elapsed() >= RETRY_AFTER) {
        entry.tried = Some(Instant::now());
        match SharedListener::open(fd) {
            Ok(listener) => {
                log::line(format_args!("fd {fd}: has a native listener"));
                entry.listener = Some(Arc::new(listener));
            }
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                // Never possible: the socket is not one for native listeners.
                listeners.swap_remove(at);
                return Ok(None);
            }
            Err(e) => log::line(format_args!("fd {fd}: has no native listener, {e}")),
        }
    }
    fdtable::note_listening(fd);
    Ok(listeners[at].listener.clone())
}

fn inode_of(fd: c_int) -> io::Result<u64> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: not negative; only asked about, and nothing follows if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::fs::fstat(fd)?.st_ino)
}
