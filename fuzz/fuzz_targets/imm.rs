//! Words of the wire: decoding is total, and encoding gives the same word.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_proto::sim::bytes;

fuzz_target!(|data: &[u8]| bytes::imm(data));
