//! Memory that a process shares with the children it forks, and with no other process.
//!
//! The state of a stream (cursors, locks, queues) outlives `fork`: parent and child both own the
//! descriptor, either may go on. State on the heap would split in two at the fork and each copy
//! would be wrong. So it lives here, in anonymous shared mappings that `fork` inherits at the same
//! address. A peer process never sees this memory; what a peer may write is in [`crate::soft`].
//!
//! A child allocates only from mappings of its own. A block that was alive during a fork is never
//! reused, because the other process may still hold it; its pages go when the last of them exits.

mod arena;
mod lock;
mod process;

pub use arena::{
    FamilyBox, FamilySafe, FamilySlice, ForkHold, ZeroInit, hold, hold_for_fork, is_forking,
};
pub use lock::{Guard, Lock};
pub use process::{ProcessId, forks, is_in_other_namespace, note_fork, process, thread_id};
