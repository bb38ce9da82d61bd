//! Messages of the connection manager's handshake, with descriptors.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_cm::soft::fuzz::wire;

fuzz_target!(|data: &[u8]| wire(data));
