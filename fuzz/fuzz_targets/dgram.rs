//! Headers of datagrams, from a network that may send any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_core::datagram::header;

fuzz_target!(|data: &[u8]| header::check_any(data));
