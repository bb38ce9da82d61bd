//! The engine of rsock and the sockets below its faces.
//!
//! **This crate promises nothing**: its modules are public so that the faces of rsock can use them,
//! and they change without notice and without a new major version. Rust programs depend on the
//! crate `rsock`, Tokio programs on its feature `tokio`, C programs on `librsock.so`.
//!
//! * [`accelerate`]: a TCP socket and its faster connection.
//! * [`rsocket`]: stream sockets of the rsockets API.
//! * [`datagram`]: datagram sockets, which begin with UDP.
//! * [`engine`]: the rsockets stream protocol over a device.
//! * [`config`], [`metrics`]: the environment, and what `rsock stat` reads.

pub mod accelerate;
pub mod closing;
pub mod config;
pub mod datagram;
mod doorbell;
pub mod engine;
pub mod fork;
mod fork_gate;
#[cfg(test)]
mod fuzz_corpus;
pub mod interrupt;
mod iov;
pub mod metrics;
mod page_reclaim;
mod rdma_options;
pub mod rsocket;
mod sync;
mod sys;

pub use doorbell::Doorbell;
pub use rsock_verbs::soft::{ReadyNumber, SoftReadySet};
