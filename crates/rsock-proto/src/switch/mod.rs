//! The switch: for each direction of an accelerated stream, whether the next byte goes through the
//! kernel's TCP socket or through the ring, and when that changes.
//!
//! A stream begins on TCP. Once the two ends have found each other, an rsockets stream lies beside
//! it: the *ring*, in shared memory or on an RDMA device. Each direction moves on its own, by
//! messages in order with the bytes of the ring ([`Message`]):
//!
//! 1. The receiver says `Ready` when no thread sleeps where the ring cannot wake it, and its own
//!    count of bytes is the kernel's.
//! 2. The sender says `Up`, with the count of bytes at which TCP ends, and writes to the ring.
//! 3. The receiver reads TCP up to that count, then the ring.
//! 4. The sender says `Down` and goes back to TCP: when it is asked (`Leave`), pinned, or finds the
//!    ring full for long. The receiver empties the ring, then reads TCP, and may invite again. A
//!    sender that will not come again says `Down` once more: a `Down` without an `Up` is a refusal.
//!
//! # A table, not a driver
//!
//! [`Receiver`] and [`Sender`] are plain integers. A query takes one of them, what the call has
//! [seen](Seen) so far, and what [holds](Conditions); it answers with the next [`Step`]: make an
//! observation, send a message, pin the stream, or the answer. The caller does that, notes what
//! came of it, and asks again. So one function in the caller makes all observations for all
//! queries, nothing in the caller knows where a direction is, and the order of observations, which
//! most of the rules are about, is the table's:
//!
//! * Bytes that were queued on TCP before the look for `Up` come before it ([`Look::Queued`], then
//!   [`Look::Messages`]).
//! * What the peer did before it ended TCP is on the ring once that end is seen ([`Look::Peek`] or
//!   [`Look::TcpEnded`], then [`Look::Messages`], then [`Look::RingBytes`]).
//! * With `Down` seen, every byte before it on the ring is counted ([`Look::Messages`], then
//!   [`Look::RingBytes`]).
//! * The kernel counts the end of TCP as a byte ([`Look::KernelRead`], then [`Look::TcpEnded`]).
//!
//! # What each call asks
//!
//! | call | query |
//! | --- | --- |
//! | `recv`, `read`, each try | [`Receiver::read`] |
//! | the same, with room left | [`Receiver::reads_on`], then `read` again |
//! | `MSG_PEEK` | [`Receiver::read`], then [`Receiver::look_ahead`] |
//! | `send`, `write`, each try | [`Sender::write`] |
//! | `poll`, `select`: input, and room | [`Receiver::poll_input`], [`Sender::poll_output`] |
//! | `epoll_ctl`, a proxy is needed | [`Receiver::poll_input`], unless [`RingInput::Unused`] |
//! | `FIONREAD`, `SO_RCVLOWAT` | [`Receiver::count_readable`] |
//! | anything that is about to sleep | [`Sender::is_asked_by`], and if so [`Sender::settle`] |
//! | whatever pins a stream | [`Sender::settle`], then [`Receiver::settle`] |
//! | a handover, `fork` between hosts | [`Sender::settle`], then [`Receiver::leave`] |
//! | `shutdown` of sending | [`Sender::end`] |
//! | `shutdown` of both | [`Receiver::decline_more`] as well |
//! | may calls go straight to the kernel | [`Receiver::is_settled`], [`Sender::is_settled`] |
//! | `rsock stat` | [`Receiver::is_on_ring`], [`Sender::is_on_ring`] |
//!
//! The caller is `rsock-core/src/accelerate/ask.rs`.
//!
//! # What the caller keeps
//!
//! Clocks (how long the ring has been full, how long the end is overdue) come in as [`Conditions`];
//! so does how often a call looks at the socket. Locks: a query, and all that its steps ask for,
//! happen under the lock of the direction; a thread sleeps without it. A thread that is about to
//! wait on TCP alone is counted before that lock is released.

mod conditions;
#[cfg(test)]
mod explore;
mod message;
#[cfg(test)]
pub(crate) mod mistake;
mod receive;
mod rules;
mod seen;
mod send;
#[cfg(test)]
mod shortcuts;
mod step;
#[cfg(test)]
mod table;

pub use conditions::Conditions;
pub use message::{Counts, Heard, Message};
pub use receive::{Ahead, Input, KernelInput, Left, Read, Readable, Receiver, RingInput, WaitFor};
pub use rules::{Rules, Wire};
pub use seen::{Fact, Peeked, Seen};
pub use send::{End, Output, Room, Sender, Settled, Write};
pub use step::{Cause, Fault, Look, Step};
