//! `librsock.so`: the `rsocket(3)` interface.
//!
//! Every function of `rdma/rsocket.h` under its name and with its signature, so that a program
//! links to this library instead of librdmacm's rsockets, or has it preloaded. The sockets are
//! those of `rsock_core::rsocket` and of `rsock_core::datagram`; this crate only converts:
//! descriptors to sockets, C arguments to slices, results to `errno`. Each exported function does
//! four things: find the socket, check arguments, call safe Rust, map the result. `errno` changes
//! on failure only, and no panic reaches C.
//!
//! `docs/c-api.md` lists where behaviour differs from librdmacm on purpose, and why.

#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of each function is that of the system call it is named after"
)]

mod any_socket;
mod arg;
mod errno;
mod iomap;
mod options;
mod poll;
mod send_recv;
mod socket;
mod table;

pub use iomap::{riomap, riounmap, riowrite};
pub use options::{rfcntl, rgetsockopt, rsetsockopt};
pub use poll::{rpoll, rselect};
pub use send_recv::{
    rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev,
};
pub use socket::{
    raccept, rbind, rclose, rconnect, rgetpeername, rgetsockname, rlisten, rshutdown, rsocket,
};
