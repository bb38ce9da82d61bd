//! What the preload library costs a program in memory and address space.

mod c_program;
mod pair;

use c_program::compiled;
use pair::{MIXED, Outcome, Shim, command, pair, watched};

const NEITHER: Shim = Shim { server: false, client: false };

fn run(part: &'static str, warm: &'static str, shim: Shim) -> Outcome {
    let program = compiled("memory");
    watched(format!("{part}, warm {warm}, {shim:?}"), move || {
        let mut server = command(&program, shim.server, &["server", part, warm]);
        let mut client = command(&program, shim.client, &["client", part, warm]);
        for end in [&mut server, &mut client] {
            // mallinfo(3) counts what threads keep for their next calls as given out.
            end.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
        }
        pair(server, client)
    })
}

fn assert_same_in_all_pairs(part: &'static str, warm: &'static str) {
    let plain = run(part, warm, NEITHER);
    assert!(plain.server.status.ends_with(": 0"), "without the library: {plain:?}");
    for shim in MIXED {
        assert_eq!(run(part, warm, shim), plain, "left: {shim:?}, right: without");
    }
}

/// A service that runs for months accepts millions of connections: what one of them took goes with
/// it.
#[test]
fn connections_that_came_and_went_leave_no_memory_behind() {
    assert_same_in_all_pairs("churn", "1");
}

/// With a limit on the address space a connection stays on TCP rather than take what the program
/// needs.
#[test]
fn a_program_with_little_address_space_has_it_for_itself() {
    assert_same_in_all_pairs("limited", "0");
}

#[test]
fn sparse_mappings_are_left_out_of_core_dumps() {
    assert_same_in_all_pairs("dumped", "1");
}
