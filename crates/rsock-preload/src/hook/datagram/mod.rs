//! The one way by which datagrams go from hooks to a UDP socket's queue and back.
//!
//! `None` always means that the kernel is to make the call.

mod recv;
mod send;
mod shortcut;

pub(super) use recv::{recv_bytes, recv_message, recv_vector};
pub(super) use send::{send_bytes, send_first, send_message, send_vector};
pub(super) use shortcut::{recv_at_once, send_at_once};
