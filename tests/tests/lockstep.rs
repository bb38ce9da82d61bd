//! Programs of random calls return with the preload library what they return without it, call by
//! call: with both ends in one process, in two, and with the library at one end alone.
//!
//! `cargo xtask lockstep --programs N --seed S` runs more of them.

mod c_program;
mod lockstep_net;

use lockstep_net::run;
use std::env;
use std::hash::{BuildHasher, RandomState};

/// Programs with the same seeds always, and as many with others each time.
const PROGRAMS: u64 = 1_000;

fn assert_no_difference(first: u64, n: u64) {
    let found = run(first, n);
    assert!(
        found.differences.is_empty(),
        "of the programs with seeds {first} and on (RSOCK_LOCKSTEP={first}:{n}):\n{}",
        found.differences.join("\n")
    );
    // Otherwise this would compare the kernel with itself.
    assert!(found.off_kernel * 4 > n, "only {} of {n} programs used a ring", found.off_kernel);
}

#[test]
fn programs_with_known_seeds_return_what_they_return_without_the_library() {
    assert_no_difference(0, PROGRAMS);
}

#[test]
fn programs_with_fresh_seeds_return_what_they_return_without_the_library() {
    // `FIRST:NUMBER` of a long run, or of one that has failed.
    let given = env::var("RSOCK_LOCKSTEP").ok();
    let numbers = given.as_deref().and_then(|given| given.split_once(':'));
    let (first, n) = match numbers {
        Some((first, n)) => (first.parse().expect("a seed"), n.parse().expect("a number")),
        None => (RandomState::new().hash_one(0) >> 16, PROGRAMS),
    };
    assert_no_difference(first, n);
}
