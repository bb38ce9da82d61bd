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
//! with credit never takes `recv`. Neither lock is held during a sleep.

mod buffers;
mod config;
mod delivery_timeout;
mod extensions;
mod keepalive;
mod progress;
mod ready;
mod recv;
mod remote_memory;
mod resources;
mod send;
mod setup;
mod shared;
mod stream;
mod wait;

pub use config::{Config, Wire};
pub use ready::Ready;
pub use recv::{ReadMode, RecvError};
pub use remote_memory::{CallerMemory, IomapError, RemoteAccess};
pub use send::SendError;
pub use setup::Preparing;
pub use stream::QpStream;
pub(crate) use wait::WITHOUT_BELL;
pub use wait::{Armed, Interest, ThreadBell, Wake, longest_spin, spin_on};
