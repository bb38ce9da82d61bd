//! Messages of the exchange between two ends of a TCP connection, with descriptors.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_core::accelerate::fuzz::local_message;

fuzz_target!(|data: &[u8]| local_message(data));
