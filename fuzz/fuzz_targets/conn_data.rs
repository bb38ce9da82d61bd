//! Connection data of a peer, and the ends that are made of it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_proto::sim::bytes;

fuzz_target!(|data: &[u8]| bytes::conn_data(data));
