//! Whether the calling process owns the descriptor table.
//!
//! A `vfork` child runs in its parent's memory but has descriptors of its own. What it does to them
//! before it execs must not change the table, which describes the parent's descriptors.

use crate::tcp_only;
use rsock_verbs::family;

/// Whether the caller is a `vfork` child (or a `clone` child that shares its parent's memory). This
/// is a system call, so it is made only where a table entry or a recorded signal action is about to
/// change.
pub(crate) fn is_child() -> bool {
    if tcp_only::is_sandboxed() {
        // The table is empty, and the call may not be allowed.
        return false;
    }
    // A forked child's identity page was wiped and filled again with its own id; a vfork child
    // sees the parent's page.
    family::process().0 != rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_owns_its_own_memory() {
        assert!(!super::is_child());
    }
}
