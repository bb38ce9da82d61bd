//! Datagrams: sockets that send through a kernel UDP socket, and past it once they know how.
//!
//! [`header`] is what travels, [`table`] is what is known of destinations; both are values without
//! clock, descriptor or lock. `udp.rs` sends and receives packets, `meet.rs` finds peers on this host,
//! `local.rs` is the queue that they share memory with, and `socket.rs` with its neighbours
//! `sending.rs`, `receiving.rs` and `waiting.rs` puts it together.

mod generations;
pub mod header;
mod local;
mod meet;
mod receiving;
mod sending;
mod socket;
pub mod table;
#[cfg(test)]
mod tests;
mod udp;
mod waiting;

pub use socket::{Counters, Datagram, Received};
