//! The switch: for each direction of an accelerated stream, whether the next byte goes through the
//! kernel's TCP socket or through the ring, and when that changes.
//!
//! A stream begins on TCP. Once the two ends have found each other, an rsockets stream lies beside
//! it: the *ring*, in shared memory or on an RDMA device. Each direction moves on its own, by
//! messages in order with the bytes of the ring ([`Message`]):
//!
//! 1. The receiver sends `Ready` when no thread sleeps where the ring cannot wake it, and its own
//!    count of bytes equals the kernel's.
//! 2. The sender sends `Up`, with the count of bytes at which TCP ends, and writes to the ring.
//! 3. The receiver reads TCP up to that count, then the ring.
//! 4. The sender sends `Down` and goes back to TCP: when the receiver asks for it (`Leave`), the
//!    stream is pinned, or the ring has been full for long. The receiver reads the rest of the
//!    ring, then TCP, and may invite again. A sender that will not use the ring again sends another
//!    `Down`: a `Down` without an `Up` is a refusal.
//!
//! # A table, not a driver
//!
//! [`Receiver`] and [`Sender`] are plain integers. A query takes one of them and the facts that the
//! call has [seen](Seen) so far, with the [conditions](Conditions); it returns the next [`Step`]:
//! make an observation, send a message, pin the stream, or the answer. The caller takes the step,
//! notes the outcome, and asks again. So one function in the caller makes all observations for all
//! queries, no other code decides by the state of a direction, and the order of observations, which
//! most of the rules are about, is part of the table:
//!
//! * Bytes that were in TCP's queue before the messages were observed come before an `Up` that
//!   arrives later ([`Observation::Queued`], then [`Observation::AllMessages`]).
//! * All that the peer sent on the ring before it ended TCP has arrived once that end is observed
//!   ([`Observation::Peek`] or [`Observation::TcpEnded`], then [`Observation::AllMessages`], then
//!   [`Observation::RingBytes`]).
//! * Once `Down` has arrived, all bytes before it on the ring are counted
//!   ([`Observation::AllMessages`], then [`Observation::RingBytes`]).
//! * The kernel counts the end of TCP as one byte ([`Observation::KernelRead`], then
//!   [`Observation::TcpEnded`]).
//!
//! # What each call asks
//!
//! | call | query |
//! | --- | --- |
//! | `recv`, `read`, each try | [`Receiver::read`] |
//! | the same, with room left | [`Receiver::read_continues`], then `read` again |
//! | `MSG_PEEK` | [`Receiver::read`], then [`Receiver::peek_order`] |
//! | `send`, `write`, each try | [`Sender::write`] |
//! | `poll`, `select`: input, and room | [`Receiver::poll_input`], [`Sender::poll_output`] |
//! | `epoll_ctl`, a proxy is needed | [`Receiver::poll_input`], unless [`RingInput::Unused`] |
//! | `FIONREAD`, `SO_RCVLOWAT` | [`Receiver::count_readable`] |
//! | a call about to sleep | [`Sender::settle`], if a `Leave` has no answer, or bytes are lost |
//! | a call that pins the stream | [`Sender::settle`], then [`Receiver::settle`] |
//! | a handoff, `fork` between hosts | [`Sender::settle`], then [`Receiver::leave`] |
//! | `shutdown` of sending | [`Sender::end`] |
//! | `shutdown` of both | [`Receiver::request_leave`] as well |
//! | may calls go straight to the kernel | [`DirectionSwitch::is_settled`] |
//! | `rsock stat` | [`DirectionSwitch::is_on_ring`] |
//!
//! The caller is `rsock-core/src/accelerate/ask.rs`.
//!
//! # What the caller keeps
//!
//! The caller keeps the clocks: how long the ring has been full, how long the end is overdue, and
//! how often a call checks the socket are [`Conditions`]. It keeps the locks: a query and all of
//! its steps happen under the lock of the direction, and a thread sleeps without it. A thread that
//! is about to wait on TCP alone is counted before that lock is released.

mod conditions;
mod direction_switch;
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

pub use conditions::{Conditions, FlagConditions};
pub use direction_switch::DirectionSwitch;
pub use message::{Counts, Message, ReceivedMessages};
pub use receive::{
    Input, KernelInput, LeaveStatus, PeekOrder, Read, Readable, Receiver, RingInput, WaitFor,
};
pub use rules::{Rules, Wire};
pub use seen::{Fact, Peeked, Seen};
pub use send::{End, Output, Room, Sender, SettleStatus, Write};
pub use step::{Cause, Fault, Observation, Step};
