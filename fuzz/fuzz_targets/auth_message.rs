//! What the ends of a connection between hosts say in private data.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_core::accelerate::fuzz::auth_message;

fuzz_target!(|data: &[u8]| auth_message(data));
