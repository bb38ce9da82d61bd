//! A complete verbs device in shared memory, between processes of one host.
//!
//! Two processes that communicate hold a [`Link`]: each has mapped a *segment* of the other, a
//! sealed memory file that holds everything this one peer may write: memory regions, and one
//! *receive lane* for each queue pair. An RDMA WRITE is a copy into the peer's segment while the
//! request is posted; an operation that completes at the peer also takes a 64-byte slot of the
//! peer's lane, which carries small payloads. Polling checks the next slot.
//!
//! A peer is not trusted. It can corrupt the segments that it shares, and so its own streams, and
//! nothing else: state that controls this process is kept in private memory, and every number that
//! a peer wrote is copied once and then checked.
//!
//! State that must survive `fork` lives in [`crate::family`] memory.
//!
//! Where to read on: `layout.rs` (what a segment holds), `link.rs` (how two processes are linked),
//! `qp/` (the data path), `ud/` (datagrams), `wait.rs` (sleeping and waking).

mod alloc;
mod barrier;
mod bell;
mod channel;
mod context;
mod copy;
mod copy_policy;
mod cq;
mod creation_stamp;
mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hello;
mod layout;
mod link;
mod mr;
mod objects;
mod pd;
mod qp;
mod queue;
mod regions;
mod segment;
mod srq;
#[cfg(any(test, fuzzing, feature = "conformance"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod ud;
mod wait;

pub use bell::{SoftBell, ringer};
pub use channel::SoftChannel;
pub use context::SoftContext;
pub use cq::SoftCq;
pub use hello::{HELLO_LEN, LinkId, NodeId};
pub use link::{Link, Offer};
pub use mr::SoftMr;
pub use pd::SoftPd;
pub use qp::SoftQp;
pub use srq::SoftSrq;
pub use ud::{SoftDestination, SoftUd};

use std::sync::Arc;

/// The shared-memory backend.
#[derive(Clone, Copy, Debug)]
pub struct Soft;

/// How a queue pair reaches its peer: the link to the peer's process.
pub type Path = Arc<Link>;

impl crate::device::sealed::Sealed for Soft {}

impl crate::device::Backend for Soft {
    const NAME: &'static str = "soft";
    const SEND_DEPTH: u32 = 8;
    const SENDS_WAIT: bool = false;
    const PINS: bool = false;
    type Context = SoftContext;
    type Pd = SoftPd;
    type Mr = SoftMr;
    type Channel = SoftChannel;
    type Cq = SoftCq;
    type Srq = SoftSrq;
    type Qp = SoftQp;
    type Path = Path;
    type Bell = SoftBell;
}
