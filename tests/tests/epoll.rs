//! Programs of random epoll calls return with the preload library what they return without it,
//! call by call: with both ends of their connections in one process, and in two.
//!
//! `cargo xtask lockstep --epoll --programs N --seed S` runs more of them.

mod c_program;
mod epoll_net;

use epoll_net::{Against, Members, run};
use std::env;
use std::hash::{BuildHasher, RandomState};

/// Programs with the same seeds always, and as many with others each time.
const PROGRAMS: u64 = 1_000;

fn assert_no_difference(first: u64, n: u64, against: Against) {
    let found = run(first, n, members(), against);
    assert!(
        found.differences.is_empty(),
        "of the programs with seeds {first} and on (RSOCK_EPOLL_NET={first}:{n}):\n{}",
        found.differences.join("\n")
    );
    // Otherwise this would compare the kernel with itself.
    assert!(
        against == Against::Kernel || found.off_kernel * 4 > n,
        "only {} of {n} programs used a ring",
        found.off_kernel
    );
}

/// `FIRST:NUMBER` of a long run, or of one that has failed.
fn given() -> Option<(u64, u64)> {
    let given = env::var("RSOCK_EPOLL_NET").ok()?;
    let (first, n) = given.split_once(':')?;
    Some((first.parse().expect("a seed"), n.parse().expect("a number")))
}

/// Named difference (docs/limits.md, "epoll"): a stream that has been on the ring when it enters a
/// set may be reported twice, or once too often. `RSOCK_EPOLL_NET_MEMBERS=any` adds such streams
/// too.
fn members() -> Members {
    match env::var("RSOCK_EPOLL_NET_MEMBERS").as_deref() {
        Ok("any") => Members::Any,
        _ => Members::OnTcp,
    }
}

#[test]
fn programs_with_known_seeds_return_what_they_return_without_the_library() {
    assert_no_difference(0, PROGRAMS, Against::Library);
}

#[test]
fn programs_with_fresh_seeds_return_what_they_return_without_the_library() {
    let (first, n) = given().unwrap_or((RandomState::new().hash_one(0) >> 16, PROGRAMS));
    assert_no_difference(first, n, Against::Library);
}

#[test]
fn programs_return_the_same_twice_without_the_library() {
    let (first, n) = given().unwrap_or((0, PROGRAMS / 4));
    assert_no_difference(first, n, Against::Kernel);
}
