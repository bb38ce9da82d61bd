//! Schedules: two honest ends of a stream, or one and a hostile peer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_proto::sim::bytes;

fuzz_target!(|data: &[u8]| bytes::proto_ops(data));
