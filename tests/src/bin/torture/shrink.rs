//! Makes a failing schedule smaller: parts of it are left out as long as it fails without them.

use crate::schedule::{Op, Schedule};
use crate::shared::{PROCESSES, THREADS};
use crate::sys;

/// How often a candidate may pass before it counts as one that does not fail.
const TRIES: usize = 12;
/// How long shrinking may take.
const LIMIT: u64 = 240_000_000_000;

/// The smallest schedule found for which `fails` says why, in one of several runs.
pub(crate) fn shrunk(
    schedule: &Schedule,
    mut fails: impl FnMut(&Schedule) -> Option<String>,
) -> Schedule {
    let begin = sys::now();
    let is_over = || sys::now() - begin > LIMIT;
    let mut smallest = schedule.clone();
    let mut still_fails =
        |candidate: &Schedule| (0..TRIES).any(|_| !is_over() && fails(candidate).is_some());
    if !still_fails(&smallest) {
        println!("torture: it does not fail again");
        return smallest;
    }
    for process in 0..PROCESSES {
        for thread in 0..THREADS {
            let mut candidate = smallest.clone();
            let ops: Vec<Op> = std::mem::take(&mut candidate.threads[process][thread]);
            if !ops.is_empty() && still_fails(&candidate) {
                smallest = candidate;
            }
        }
    }
    let mut step = smallest.threads.iter().flatten().map(Vec::len).max().unwrap_or(0) / 2;
    while step > 0 && !is_over() {
        for process in 0..PROCESSES {
            for thread in 0..THREADS {
                let mut at = 0;
                while at < smallest.threads[process][thread].len() && !is_over() {
                    let mut candidate = smallest.clone();
                    let ops = &mut candidate.threads[process][thread];
                    ops.drain(at..(at + step).min(ops.len()));
                    if still_fails(&candidate) {
                        smallest = candidate;
                    } else {
                        at += step;
                    }
                }
            }
        }
        step /= 2;
    }
    smallest
}
