//! The lock-free algorithms of the soft device, generic over the kind of their atomics.
//!
//! In production the words are atomics inside a mapped segment. `rsock-models` compiles this module
//! too, and runs the same code on loom's atomics on the heap. Nothing in it knows about segments,
//! or about anything else outside of it.

pub(crate) mod bells;
pub(crate) mod copy_guard;
pub(crate) mod lane_users;
pub(crate) mod owner;
pub(crate) mod parking;
#[cfg(all(test, not(loom)))]
mod plain_tests;
pub(crate) mod primitive;
pub(crate) mod ready_set;
pub(crate) mod room_request;
pub(crate) mod slot;
pub(crate) mod versioned_words;
pub(crate) mod waiter;
