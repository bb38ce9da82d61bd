//! The rsockets stream protocol, its engine, and sockets over RDMA, shared memory or TCP.

pub mod accelerate;
pub mod closing;
pub mod config;
pub mod datagram;
mod doorbell;
pub mod engine;
pub mod fork;
#[cfg(test)]
mod fuzz_corpus;
pub mod interrupt;
mod iov;
pub mod metrics;
mod rdma_options;
pub mod rsocket;
mod sync;
mod sys;

pub use doorbell::Doorbell;
