//! Datagrams: sockets that send through a kernel UDP socket, and past it once they know how.
//!
//! [`header`] is what travels, [`table`] is what is known of destinations; both are values without
//! clock, descriptor or lock.

mod generations;
pub mod header;
pub mod table;
