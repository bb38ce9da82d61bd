//! The processes that hold a stream: the one that made it, and the children that inherited it.
//!
//! They lie in family memory. They ensure that the bytes of a ring, which cannot be put back, are
//! taken by the relay of one process only once no other process can want them
//! ([`crate::accelerate::handoff`]).

use rsock_verbs::family::{FamilySafe, is_in_other_namespace, process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Processes that are known by their ids; with more, a stream counts as held by others for good.
const MOST: usize = 14;
/// In place of the id of a child that is being made.
const EXPECTED_CHILD: u32 = u32::MAX;

/// The processes that hold a stream.
#[derive(Debug)]
pub(in crate::accelerate) struct Holders {
    /// Process ids; 0 is a free place.
    pids: [AtomicU32; MOST],
    has_overflown: AtomicBool,
}

// SAFETY: atomics only.
unsafe impl FamilySafe for Holders {}

impl Holders {
    /// The calling process, alone.
    pub(in crate::accelerate) fn new() -> Self {
        let holders = Self {
            pids: [const { AtomicU32::new(0) }; MOST],
            has_overflown: AtomicBool::new(false),
        };
        holders.add(process().0);
        holders
    }

    pub(in crate::accelerate) fn add(&self, pid: u32) {
        if self.pids.iter().any(|at| at.load(Ordering::Relaxed) == pid) {
            return;
        }
        let take = |at: &AtomicU32, was| {
            at.compare_exchange(was, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let is_added = self.pids.iter().any(|at| take(at, 0))
            || self.pids.iter().any(|at| {
                let was = at.load(Ordering::Relaxed);
                !is_alive(was) && take(at, was)
            });
        if !is_added {
            self.has_overflown.store(true, Ordering::Release);
        }
    }

    /// Adds the child that this process is about to make, which will hold the stream too.
    pub(in crate::accelerate) fn expect_child(&self) {
        self.add(EXPECTED_CHILD);
    }

    /// Adds a process of which the id will not be known, and not the end.
    pub(in crate::accelerate) fn note_unknown(&self) {
        self.has_overflown.store(true, Ordering::Release);
    }

    /// Replaces the expected child by its id `pid`, in the child itself.
    pub(in crate::accelerate) fn add_child(&self, pid: u32) {
        // The child's id means nothing to the others, or may be the id of one of them.
        if is_in_other_namespace() {
            self.has_overflown.store(true, Ordering::Release);
        }
        let is_known = self.pids.iter().any(|at| at.load(Ordering::Relaxed) == pid);
        let take = |at: &AtomicU32| {
            at.compare_exchange(EXPECTED_CHILD, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if !is_known && !self.pids.iter().any(take) {
            self.add(pid);
        }
    }

    pub(in crate::accelerate) fn remove(&self, pid: u32) {
        for at in &self.pids {
            let _ = at.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether a process other than `me` holds the stream, as far as is known.
    pub(in crate::accelerate) fn has_others(&self, me: u32) -> bool {
        let is_other = |at: &AtomicU32| {
            let pid = at.load(Ordering::Acquire);
            if pid == 0 || pid == me {
                return false;
            }
            if is_alive(pid) {
                return true;
            }
            self.remove(pid);
            false
        };
        self.has_overflown.load(Ordering::Acquire) || self.pids.iter().any(is_other)
    }

    /// Forgets other processes that have no descriptor of the socket with this inode: a child that
    /// has become another program, which closed them.
    pub(in crate::accelerate) fn forget_former(&self, me: u32, inode: u64) {
        for at in &self.pids {
            let pid = at.load(Ordering::Acquire);
            let is_concerned = pid != 0 && pid != me && pid != EXPECTED_CHILD;
            if is_concerned && !crate::sys::may_have_socket(pid, inode) {
                self.remove(pid);
            }
        }
    }
}

/// Whether the process runs; one that has exited and was not waited for does not.
fn is_alive(pid: u32) -> bool {
    if pid == EXPECTED_CHILD {
        return true;
    }
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => {
            let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
            let has_exited = poll(&mut fds, Some(&Timespec::default())) == Ok(1);
            crate::sys::close(fd);
            !has_exited
        }
        Err(e) => e != Errno::SRCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_exited_holds_nothing_even_before_it_is_waited_for() {
        let holders = Holders::new();
        let me = process().0;
        assert!(!holders.has_others(me));
        let mut child =
            std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        holders.add(child.id());
        assert!(holders.has_others(me));
        child.kill().expect("kill");
        while holders.has_others(me) {
            std::thread::yield_now();
        }
        child.wait().expect("wait");
    }

    #[test]
    fn a_child_counts_as_a_holder_before_it_exists() {
        let holders = Holders::new();
        let me = process().0;
        holders.expect_child();
        assert!(holders.has_others(me));
        // Called once for each descriptor.
        holders.expect_child();
        holders.add_child(1);
        holders.add_child(1);
        assert!(holders.has_others(me));
        holders.remove(1);
        assert!(!holders.has_others(me));
    }

    #[test]
    fn with_more_holders_than_fit_the_stream_counts_as_shared_for_good() {
        let holders = Holders::new();
        // Process 1 always runs; the other holders are not checked before all places are taken.
        for at in &holders.pids {
            at.store(1, Ordering::Relaxed);
        }
        holders.add(process().0);
        holders.remove(1);
        assert!(holders.has_others(process().0));
    }
}
