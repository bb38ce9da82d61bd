//! Real RDMA: a device of rdma-core's libibverbs, which is loaded at the first use of a device.
//!
//! Mirrors `soft/` file by file where the two have the same parts. Two things that verbs leave to
//! their users are done here, so that the engine need not know which device it has:
//!
//! * slots of a send queue become free only when a *signaled* request completes, and a device
//!   copies only a few bytes while it posts: `outstanding_sends.rs` signals some unsignaled
//!   requests, and copies;
//! * sleeping: every completion queue has a completion channel of its own, which bells and parked
//!   threads watch (`cq.rs`, `waiters.rs`).
//!
//! Datagrams have a queue pair of their own with the memory that it receives in (`ud.rs`), and
//! handles for the hosts that they go to (`address_handles.rs`). Queue pairs of streams share a few
//! completion queues (`shared_cq.rs`, `event_watchers.rs`), and memory for what they send
//! (`pool.rs`).

mod address_handles;
mod attributes;
mod bell;
mod context;
mod convert;
mod cq;
mod device_cq;
mod event_watchers;
mod mr;
mod objects;
mod outstanding_sends;
mod path;
mod pd;
mod pool;
mod qp;
mod requests;
mod shared_cq;
mod ud;
mod usage;
mod waiters;

pub use bell::RdmaBell;
pub use context::{GidEntry, WeakRdmaContext};
pub use cq::RdmaCq;
pub use mr::RdmaMr;
pub use path::{Negotiated, RETRIES, RdmaPath};
pub use pd::RdmaPd;
pub use qp::RdmaQp;
pub use ud::{RdmaDestination, RdmaUd};
pub use usage::{Usage, UsageBoard, peak_usage, show_usage, usage};

use context::OpenDevice;
use std::sync::{Arc, Mutex};

/// Most scatter/gather entries of one request: they are converted on the stack.
const MAX_SGE: u32 = 16;

/// Bytes that the device is asked to copy by itself while posting.
const MAX_INLINE: u32 = 64;

/// The backend of real devices.
#[derive(Clone, Copy, Debug)]
pub struct Rdma;

impl crate::device::sealed::Sealed for Rdma {}

impl crate::device::Backend for Rdma {
    const NAME: &'static str = "rdma";
    // One less than a power of two: drivers round up, and soft RoCE rounds up one more than this.
    // The slots of a send queue are most of the kernel memory of a stream.
    const SEND_DEPTH: u32 = 127;
    const SENDS_WAIT: bool = true;
    const PINS: bool = true;
    type Context = RdmaContext;
    type Pd = RdmaPd;
    type Mr = RdmaMr;
    type Cq = RdmaCq;
    type Qp = RdmaQp;
    type Path = RdmaPath;
    type Bell = RdmaBell;
}

// What is made from these refers to them, and they refer to it: so they belong to none of the files
// above.

/// An opened device.
#[derive(Clone, Debug)]
pub struct RdmaContext(Arc<OpenDevice>);

/// The memory of one domain.
#[derive(Debug, Default)]
struct Pool {
    /// Free pieces, by size: a slab, and the offset in it.
    free: Mutex<FreePieces>,
}

type FreePieces = [Vec<(Arc<RdmaMr>, usize)>; N_PIECE_SIZES];

/// Sizes of pieces: each is twice the one before.
const N_PIECE_SIZES: usize = 5;
