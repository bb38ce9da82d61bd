//! `tests/c/ktls.c` under a kernel that has TLS of its own, as the guest's has: a stream leaves
//! shared memory, or the device, with all its bytes before the kernel encrypts and decrypts what
//! goes by its socket.

use super::IPV4;
use super::rdma_accelerated::config;
use crate::c_program::compiled;
use crate::pair::{MIXED, Outcome, Shim, command, pair, watched};
use std::path::Path;

/// Runs `part` with the library at the ends that `shim` names, which use `device`.
fn run(part: &'static str, shim: Shim, device: &'static str, config: &Path) -> Outcome {
    let program = compiled("ktls");
    let end = |role, with_library| {
        let mut command = command(&program, with_library, &[role, part, "1"]);
        command.env("RSOCK_DEVICE", device).env("RSOCK_CONFIG", config);
        command.env("SERVER_ADDRESS", IPV4);
        command
    };
    let (server, client) = (end("server", shim.server), end("client", shim.client));
    watched(format!("{part}, {device}, {shim:?}"), move || pair(server, client))
}

/// Checks that pairs with the library do what one without it does, which has the kernel's TLS.
fn assert_same(part: &'static str, devices: &[&'static str]) {
    let config = config(part);
    let plain = run(part, Shim { server: false, client: false }, "soft", &config);
    assert!(plain.server.out.starts_with("TLS in the kernel: 1\n"), "{plain:?}");
    for device in devices {
        for shim in MIXED {
            assert_eq!(run(part, shim, device, &config), plain, "{part}, {device}, {shim:?}");
        }
    }
}

#[test]
fn both_ends_of_a_stream_that_has_moved_use_tls_of_the_kernel() {
    assert_same("talk", &["soft", "rdma"]);
}

/// Between hosts the kernel's TLS is refused while bytes lie on the device.
#[test]
fn records_that_lie_in_shared_memory_are_decrypted_by_the_kernel() {
    assert_same("records", &["soft"]);
}
