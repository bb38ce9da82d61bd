//! Answers of the kernel about a socket.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_core::accelerate::fuzz::sock_diag;

fuzz_target!(|data: &[u8]| sock_diag(data));
