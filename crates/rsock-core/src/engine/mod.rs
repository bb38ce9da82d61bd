//! The engine: pumps the sans-IO protocol over a verbs device, and waits.
//!
//! One [`Stream`] is one connected queue pair with the receive memory behind it. It offers
//! non-blocking calls and a way to wait; blocking, timeouts and descriptors belong to the faces
//! above it. [`Preparing`] is a stream before its peer is known.
//!
//! # Locks
//!
//! Two, one per direction, in this order: `send`, then `recv`. The holder of `recv` is also the one
//! who polls the completion queue (the *pump*) and dispatches for both directions: data to
//! the receive half that it holds, credits through atomics to the send half, so a sender with
//! credit never touches `recv`. Neither lock is held while sleeping.

mod adaptive_buffer;
mod config;
mod delivery_timeout;
mod extensions;
mod iomap;
mod keepalive;
mod layout;
mod marks;
mod page_reclaim;
mod progress;
mod ready;
mod resources;
mod ring;
mod setup;
mod shared;
mod spin;
mod stream;
mod trim;
mod wait;
mod wake_coalescing;

#[cfg(test)]
pub(crate) use page_reclaim::total as resident_total;

pub use config::{Config, Wire};
pub use iomap::{CallerMemory, IomapError};
pub(crate) use page_reclaim::{Held as HeldStreams, hold_for_fork};
pub use ready::Ready;
pub use setup::Preparing;
pub use spin::{longest_spin, spin_on};
pub use stream::{RecvError, SendError, Stream};
pub(crate) use wait::WITHOUT_BELL;
pub use wait::{Armed, Interest, ThreadBell, Wake};
