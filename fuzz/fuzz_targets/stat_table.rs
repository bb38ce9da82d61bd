//! Tables that another process shows to `rsock stat`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rsock_core::metrics::fuzz::stat_table;

fuzz_target!(|data: &[u8]| stat_table(data));
