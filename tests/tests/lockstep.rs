//! Programs of random calls return with the preload library what they return without it, call by
//! call: with both ends in one process, in two, and with the library at one end alone.
//!
//! `cargo xtask lockstep --programs N --seed S` runs more of them.

mod c_program;
mod lockstep_net;

use lockstep_net::LockstepNet;
use rsock_tests::lockstep::{Seeds, assert_no_difference};

/// Programs with the same seeds always, and as many with others each time.
const PROGRAMS: u64 = 1_000;

/// Seeds of programs that once returned something else with the library.
const DIFFERED: [u64; 1] = [52_001_530];

#[test]
fn programs_that_once_differed_return_what_they_return_without_the_library() {
    for first in DIFFERED {
        assert_no_difference(&LockstepNet::new(), Seeds { first, n: 1 });
    }
}

#[test]
fn programs_with_known_seeds_return_what_they_return_without_the_library() {
    assert_no_difference(&LockstepNet::new(), Seeds { first: 0, n: PROGRAMS });
}

#[test]
fn programs_of_chosen_seeds_return_what_they_return_without_the_library() {
    let seeds = Seeds::given::<LockstepNet>().unwrap_or_else(|| Seeds::fresh(PROGRAMS));
    assert_no_difference(&LockstepNet::new(), seeds);
}
