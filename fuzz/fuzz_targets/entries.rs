//! Region and queue-pair entries that the peer changes while they are looked up.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_verbs::soft::fuzz::entries;

fuzz_target!(|data: &[u8]| entries(data));
