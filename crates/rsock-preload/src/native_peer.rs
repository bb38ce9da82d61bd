//! Peers that speak rsockets alone, without TCP, where the configuration allows them.

pub(crate) mod accept;
pub(crate) mod connector;
pub(crate) mod listeners;
pub(crate) mod shared_listener;
