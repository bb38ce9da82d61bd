//! The rsockets stream protocol, its engine, and sockets over RDMA, shared memory or TCP.

pub mod closing;
pub mod dgram;
mod doorbell;
pub mod engine;
mod env;
pub mod fork;
#[cfg(test)]
mod fuzz_corpus;
pub mod interrupt;
mod iov;
pub mod socket;
pub mod stat;
mod sync;
mod sys;
pub mod trust;
pub mod twin;
pub mod udp;

pub use doorbell::Doorbell;
