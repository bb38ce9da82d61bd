//! Whether the calling process owns the descriptor table.
//!
//! A `vfork` child runs in its parent's memory but has descriptors of its own. What it does to them
//! before it execs must not change the table, which describes the parent's descriptors.

use crate::tcp_only;
use rsock_verbs::family;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process has made a child that may run in its memory, by a hooked call. Where those
/// calls cannot be hooked it is taken for granted.
static SHARES_MEMORY: AtomicBool =
    AtomicBool::new(cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))));

/// To be called before the process makes such a child.
pub(crate) fn note_shared_memory() {
    // Relaxed: the child is made by this thread, so it sees the flag.
    SHARES_MEMORY.store(true, Ordering::Relaxed);
}

/// Whether the caller is a `vfork` child (or a `clone` child that shares its parent's memory). In a
/// process that has made such children this is a system call, so it is asked only where a table
/// entry or a recorded signal action is about to change.
///
/// PERF: `getpid` takes 0.3 us on a virtual machine, a hundredth of what a short connection takes;
/// each of its ends would call it at its close.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn is_child() -> bool {
    child().is_some()
}

/// The process id of the caller, if it is such a child.
pub(crate) fn child() -> Option<u32> {
    if !SHARES_MEMORY.load(Ordering::Relaxed) || tcp_only::is_sandboxed() {
        // In a sandbox the table is empty, and the call may not be allowed.
        return None;
    }
    // A forked child's identity page was wiped and filled again with its own id; a vfork child
    // sees the parent's page.
    let own = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    (own != family::process().0).then_some(own)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_owns_its_own_memory() {
        assert!(!super::is_child());
        super::note_shared_memory();
        assert!(!super::is_child());
    }
}
