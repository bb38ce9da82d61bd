//! Words of the wire: decoding is total and survives encoding.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_proto::sim::bytes;

fuzz_target!(|data: &[u8]| bytes::imm(data));
