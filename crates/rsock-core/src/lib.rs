//! The rsockets stream protocol, its engine, and sockets over RDMA, shared memory or TCP.

pub mod interrupt;
pub mod proto;
pub mod stat;
mod sys;
pub mod twin;
