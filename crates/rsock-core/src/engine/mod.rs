//! The engine: runs the sans-I/O protocol over a verbs device, and waits.
//!
//! One [`QpStream`] is one connected queue pair with the receive memory behind it. It has
//! non-blocking calls and ways to wait; blocking calls, timeouts and descriptors belong to the
//! modules above. [`Preparing`] is a stream before its peer is known.
//!
//! # Locks
//!
//! There are two, one per direction, taken in this order: `send`, then `recv`. The holder of `recv`
//! is also the *pump*: it polls the completion queue and dispatches for both directions. Data goes
//! to the receive half that it has locked, credits go through atomics to the send half. So a sender
//! with credit takes `recv` only where its queue is full, and never waits for it. Neither lock is
//! held during a sleep.

mod announce;
mod buffers;
mod config;
mod delivery_timeout;
mod end;
mod exposed_region;
mod extensions;
mod keepalive;
mod park;
mod progress;
mod ready;
mod recv;
mod remote_memory;
mod resources;
mod send;
mod setup;
mod shared;
mod wait;
mod working_set;

pub use config::{Config, Wire};
pub use exposed_region::ExposedRegion;
pub(crate) use exposed_region::ExposesMemory;
pub use park::Armed;
pub(crate) use park::WITHOUT_BELL;
pub use ready::{Arrived, Ready};
pub use recv::{ReadMode, RecvError};
pub use remote_memory::{CallerMemory, IomapError, RemoteAccess};
pub use send::SendError;
pub use setup::Preparing;
pub(crate) use wait::offer_cpu;
pub use wait::{
    Interest, ThreadBell, Wake, cpu_contention, longest_spin, poll_entries, spin_briefly_on,
    spin_on, spin_on_peers,
};

use buffers::adaptive::AdaptiveBuffer;
use buffers::ring::Ring;
use delivery_timeout::DeliveryTimeout;
use keepalive::KeepaliveProber;
use remote_memory::Iomaps;
use resources::Resources;
use rsock_verbs::Backend;
use std::sync::Arc;

/// One connected stream.
#[derive(Debug)]
pub struct QpStream<B: Backend> {
    resources: Resources<B>,
    ring: Arc<Ring<B>>,
    config: Config,
    extensions: bool,
    /// Whether the peer keeps no receives posted for control messages (rdma-core's librdmacm), so
    /// that sends wait until it posts some.
    limits_ctrl: bool,
    delivery: DeliveryTimeout,
    prober: KeepaliveProber,
    /// These two are dropped after the queue pair: nothing may arrive in memory that is freed.
    adaptive: AdaptiveBuffer<B>,
    iomaps: Iomaps<B>,
}
