//! Streams in epoll sets where the kernel allows no more watches (`max_user_watches`). `cargo xtask
//! test` runs this in the lab: the limit is the whole kernel's, so only a guest may change it.

mod c_program;
mod pair;

use c_program::compiled;
use pair::{MIXED, Shim, command, pair, watched};

/// Runs a part of `sets.c` without the library, and then in every mixed pair, on TCP and after the
/// ends have left it.
fn assert_same_in_all_pairs(part: &'static str) {
    let program = compiled("sets");
    for warm in ["0", "1"] {
        let run = |shim: Shim| {
            let program = program.clone();
            watched(format!("{part}, warm {warm}, {shim:?}"), move || {
                pair(
                    command(&program, shim.server, &["server", part, warm]),
                    command(&program, shim.client, &["client", part, warm]),
                )
            })
        };
        let plain = run(Shim { server: false, client: false });
        assert!(plain.server.status.ends_with(": 0"), "without the library: {plain:?}");
        for shim in MIXED {
            assert_eq!(run(shim), plain, "left: {shim:?}, right: without, warm {warm}");
        }
    }
}

/// Both change the limit, so they are one test.
#[test]
fn sets_work_where_the_kernel_allows_no_more_watches() {
    assert_same_in_all_pairs("last_watch");
    assert_same_in_all_pairs("back_without_watch");
}
