//! The cases of `awaits`, by what the futures belong to.

pub(crate) mod connections;
pub(crate) mod datagrams;
pub(crate) mod memory;
pub(crate) mod streams;
