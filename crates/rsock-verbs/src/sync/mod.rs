//! The lock-free algorithms of the soft device, generic over the kind of their atomics.
//!
//! In production the words are atomics inside a mapped segment; under `--cfg loom` the same code
//! runs on loom's atomics on the heap. Nothing in this module knows about segments.

pub(crate) mod bells;
pub(crate) mod copy_guard;
pub(crate) mod lane_users;
#[cfg(all(test, loom))]
mod loom_models;
pub(crate) mod owner;
pub(crate) mod parking;
#[cfg(all(test, not(loom)))]
mod plain_tests;
pub(crate) mod primitive;
pub(crate) mod ready_set;
pub(crate) mod room_request;
pub(crate) mod slot;
pub(crate) mod waiter;
