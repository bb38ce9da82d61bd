//! Programs of random epoll calls return with the preload library what they return without it,
//! call by call: with both ends of their connections in one process, and in two.
//!
//! `cargo xtask lockstep --epoll --programs N --seed S` runs more of them.

mod c_program;
mod epoll_net;

use epoll_net::{Against, Avoid, EpollNet, sources};
use rsock_tests::lockstep::{Seeds, assert_no_difference};
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Programs with the same seeds always. Half as many run with others each time.
const PROGRAMS: u64 = 2_000;

/// Seeds of programs that once returned something else with the library.
const DIFFERED: [u64; 8] = [
    80_236_391_849_959,
    9_113_705,
    9_129_675,
    9_140_772,
    9_148_937,
    7_207_176,
    7_308_951,
    7_312_307,
];

/// Programs leave out what is known to differ, unless `RSOCK_EPOLL_NET_AVOID` is `nothing`.
fn avoid() -> Avoid {
    match env::var("RSOCK_EPOLL_NET_AVOID").as_deref() {
        Ok("nothing") => Avoid::Nothing,
        _ => Avoid::Known,
    }
}

fn net(against: Against) -> EpollNet {
    EpollNet::new(avoid(), against)
}

#[test]
fn programs_with_known_seeds_return_what_they_return_without_the_library() {
    assert_no_difference(&net(Against::Library), Seeds { first: 0, n: PROGRAMS });
}

#[test]
fn programs_of_chosen_seeds_return_what_they_return_without_the_library() {
    let seeds = Seeds::given::<EpollNet>().unwrap_or_else(|| Seeds::fresh(PROGRAMS / 2));
    assert_no_difference(&net(Against::Library), seeds);
}

#[test]
fn programs_that_once_differed_return_what_they_return_without_the_library() {
    for first in DIFFERED {
        assert_no_difference(&net(Against::Library), Seeds { first, n: 1 });
    }
}

#[test]
fn programs_return_the_same_twice_without_the_library() {
    let seeds = Seeds::given::<EpollNet>().unwrap_or(Seeds { first: 0, n: PROGRAMS / 4 });
    assert_no_difference(&net(Against::Kernel), seeds);
}

#[test]
fn a_program_is_a_c_program_too() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (i, source) in sources(0, 3).enumerate() {
        let path = dir.join(format!("epoll_source_{i}.c"));
        fs::write(&path, source).expect("a file in the target directory");
        let status = Command::new("cc")
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pthread"])
            .arg(&path)
            .status()
            .expect("`cc` runs");
        assert!(status.success(), "{}", path.display());
    }
}
