//! Lines in which the kernel says what an epoll set watches.

#![no_main]

// The preload library is no crate that another can use.
#[path = "../../crates/rsock-preload/src/epoll_interest/fdinfo.rs"]
mod fdinfo;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fdinfo::check_any(data));
