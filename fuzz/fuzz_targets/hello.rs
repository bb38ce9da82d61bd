//! The handshake of a link between two processes, with descriptors.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_verbs::soft::fuzz::hello;

fuzz_target!(|data: &[u8]| hello(data));
