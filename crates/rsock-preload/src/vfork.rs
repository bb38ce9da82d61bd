//! Whether we still are the process that owns the table.
//!
//! A `vfork` child runs in its parent's memory while having descriptors of its own. Whatever it
//! does to them before it execs must not touch the table, which describes the parent's.

use crate::tcp_only;
use rsock_verbs::family;

/// Whether the caller is a `vfork` child (or a `clone` child that shares our memory). A system
/// call, so asked only where a descriptor or a signal action of ours is about to change.
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
