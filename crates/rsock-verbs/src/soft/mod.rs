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
//! Where to read on: `layout.rs` (what a segment holds), `link/` (how two processes are linked),
//! `qp/` (the data path), `ud/` (datagrams), `wait.rs` (sleeping and waking).

mod alloc;
mod barrier;
mod bell;
mod connection_table;
mod context;
mod copy_policy;
mod cq;
mod creation_stamp;
mod doorbell_pipe;
mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hello;
mod layout;
mod line_writer;
mod link;
mod mr;
mod objects;
mod pd;
mod peer_copy;
mod qp;
mod queue;
mod ready_set;
mod regions;
mod retired;
mod segment;
#[cfg(any(test, fuzzing, feature = "conformance"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod ud;
mod wait;
mod wake;

pub use bell::{SoftBell, ringer};
pub use connection_table::{ConnectionEntry, ConnectionKey, ConnectionNote, PeerNote};
pub use hello::{HELLO_LEN, LinkId};
pub use link::Offer;
pub use mr::SoftMr;
pub use pd::SoftPd;
pub use qp::SoftQp;
pub use ready_set::{ReadyNumber, SoftReadySet};
pub use ud::{SoftDestination, SoftUd};

use crate::untrusted::PeerSocket;
use connection_table::OwnEntries;
use context::Node;
use doorbell_pipe::PeerPipes;
use foreign::Foreign;
use qp::QpCore;
use regions::Regions;
use segment::Mapping;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, Mutex, OnceLock};
use wait::Waiters;

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
    type Cq = SoftCq;
    type Qp = SoftQp;
    type Path = Path;
    type Bell = SoftBell;
}

// What is made from these refers to them, and they refer to it: so they belong to none of the files
// above.

/// The device of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SoftContext {
    node: &'static Node,
    write_imm: bool,
}

/// A link to a peer process, or one of the two ends of a process's link to itself.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    number: u64,
    offering: bool,
    node: &'static Node,
    peer: link::Peer,
    is_dead: AtomicBool,
    /// Whether the peer is known to have its end: from the beginning at the offering end, which has
    /// the peer's reply. What the accepting end has replied may still be on its way.
    has_peers_end: AtomicBool,
    socket: PeerSocket,
    /// In a process that is linked to itself: the accepting end, stored in the offering one.
    other_end: OnceLock<Arc<Self>>,
    state: Mutex<link::State>,
    regions: Regions,
    foreign: Foreign,
    doorbell_pipes: PeerPipes,
    connections: OwnEntries,
    /// The peer's segment, which this process writes.
    peer_segment: Mapping,
    /// This process's segment, which the peer writes.
    own_segment: Mapping,
}

/// A completion queue, which polls the queue pair that it was made with.
#[derive(Debug)]
pub struct SoftCq {
    /// Set once. It stays known after the queue pair is gone, so that spinning needs no lock.
    qp: OnceLock<Arc<QpCore>>,
    /// That queue pair until it goes away, and null before and after.
    attached: AtomicPtr<QpCore>,
    /// Held while the peer's sender is paused, and while the queue pair is detached.
    pausing: Mutex<()>,
    waiters: Arc<Waiters>,
}
