//! Discovery: how the two ends of a TCP connection find each other, verify that they are its ends,
//! and connect a faster path beside it.

mod candidate;
pub(super) mod limit;
pub(super) mod local;
pub(super) mod remote;
pub(super) mod schedule;
