//! The rsockets protocol without any input or output: values that are fed and drained.
//!
//! Nothing here knows a clock, a descriptor, a pointer or a lock. The engine owns the memory, posts
//! the messages that the halves return, and passes them what arrived; the protocol handles only
//! numbers. Each direction of a stream is one small `Copy` value ([`SendHalf`], [`RecvHalf`]) that
//! can live in memory shared by a family of processes, and each method takes constant time.
//!
//! Every number that a peer supplies is checked here once, on a copy: breaking the protocol answers
//! a [`PeerError`], never a panic. What the words mean is written in `docs/protocol.md`.

#![forbid(unsafe_code)]

mod conn_data;
mod ctrl;
mod error;
pub mod event_set;
mod imm;
mod iomap;
mod keepalive;
mod recv;
mod send;
mod sgl;
#[cfg(any(test, fuzzing))]
pub mod sim;
mod state;
pub mod switch;

#[cfg(test)]
mod fuzz_corpus;
#[cfg(test)]
mod tests;

pub use conn_data::{
    CONN_DATA_LEN, ConnData, ConnFlags, PROTOCOL_VERSION, iomap_size_from_wire, iomap_size_to_wire,
};
pub use ctrl::{CTRL_DEPTH, CTRL_RESERVE, CtrlWindow};
pub use error::PeerError;
pub use imm::{Ctrl, Ext, Imm, MAX_DATA_LEN, Msg, SeqNo, UP_BITS, UP_MASK};
pub use iomap::{
    IOMAP_ENTRY, IomapEntry, IomapSlots, IomapTarget, IomapWrite, RemoteIomap, checked_index,
    lookup,
};
pub use keepalive::{Keepalive, KeepaliveStep};
pub use recv::{Grant, RecvConfig, RecvHalf, RingConfig, Span};
pub use send::{DataWrite, MAX_SLOTS, SendBlocked, SendConfig, SendHalf, TransferSize};
pub use sgl::{EMPTY_SLOT, RemoteSge, TABLE_ENTRY, iomap_table_offset, slot_offset};
pub use state::{IllegalEvent, Lifecycle, LifecycleEvent};
