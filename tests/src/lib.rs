//! What the tests of the whole share: the real programs they run, what the workspace builds for
//! them, and guards against hanging and against leaving processes behind.
//!
//! Above every other crate and never published. The tests themselves are in `tests/tests/`.

#![forbid(unsafe_code)]

mod artifacts;
mod blocks;
mod copied;
pub mod datagrams;
mod device;
mod ended;
pub mod hosts;
mod listening;
pub mod lockstep;
mod own_network;
mod piped;
pub mod report;
mod running;
mod stuck_network;
pub mod tools;
mod transports;
mod watchdog;

pub use artifacts::{c_library, c_library_dir, preload_library, rsock_command};
pub use blocks::Blocks;
pub use copied::copy_program;
pub use device::{OwnDevice, packets_received, run};
pub use ended::assert_worked;
pub use listening::{
    await_listening, await_rdma_listener, await_tcp_listener, await_udp_socket, free_port,
    has_tcp_listener,
};
pub use own_network::in_own_network;
pub use piped::Piped;
pub use running::Running;
pub use stuck_network::StuckNetwork;
pub use transports::{fallback_reasons, has_left_tcp, has_used_ring, n_that_used_ring};
pub use watchdog::{Watchdog, await_that};

/// The README's Rust example is compiled and run like any other.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
