//! Programs of random epoll calls return with the preload library what they return without it,
//! call by call: with both ends of their connections in one process, and in two.
//!
//! `cargo xtask lockstep --epoll --programs N --seed S` runs more of them.

mod c_program;
mod epoll_net;

use epoll_net::{Against, Avoid, run, sources};
use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::Command;

/// Programs with the same seeds always, and as many with others each time.
const PROGRAMS: u64 = 1_000;

fn assert_no_difference(first: u64, n: u64, against: Against) {
    let found = run(first, n, avoid(), against);
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

/// Programs leave out what is known to differ, unless `RSOCK_EPOLL_NET_AVOID` is `nothing`.
fn avoid() -> Avoid {
    match env::var("RSOCK_EPOLL_NET_AVOID").as_deref() {
        Ok("nothing") => Avoid::Nothing,
        _ => Avoid::Known,
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
