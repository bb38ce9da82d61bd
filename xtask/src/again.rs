//! Tests that failed are run again, alone: one that passes twice then is flaky, and the run goes
//! on. A flaky test is a defect of its own, so it is named at the end of the run.

use crate::harness::{Counts, CutShort, Failed};
use crate::steps;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Tests of one program that are run again together; one test, unless its program was cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspects {
    /// The program, as it failed.
    pub(crate) program: Failed,
    pub(crate) tests: Vec<String>,
    /// What to call them if they pass; nothing for tests that had not run before.
    name: Option<String>,
    /// How many failures they account for so far.
    n_failures: u64,
}

/// What running again has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The tests that failed once and then passed twice.
    pub(crate) flaky: Vec<String>,
    /// Whether anything failed again, or could not be run again.
    pub(crate) is_failed: bool,
}

/// Runs the tests of `failed` programs again and corrects `counts` by what comes out. `list` names
/// the tests of a program, and `passes` runs suspects once and says whether each of them passed.
pub(crate) fn judge(
    failed: &[Failed],
    counts: &mut Counts,
    list: impl Fn(&Failed) -> Vec<String>,
    mut passes: impl FnMut(&Suspects) -> bool,
) -> Verdict {
    let mut verdict = Verdict::default();
    let all: Option<Vec<_>> = failed.iter().map(|program| suspects(program, &list)).collect();
    let Some(all) = all else {
        verdict.is_failed = true;
        return verdict;
    };
    let all = merged(all.into_iter().flatten());
    if all.is_empty() || all.len() > MOST {
        verdict.is_failed = true;
        return verdict;
    }
    for suspects in all {
        if (0..2).all(|_| passes(&suspects)) {
            counts.failed -= suspects.n_failures.min(counts.failed);
            counts.passed += suspects.n_failures.max(suspects.tests.len() as u64);
            verdict.flaky.extend(suspects.name);
        } else {
            counts.failed += u64::from(suspects.n_failures == 0);
            verdict.is_failed = true;
        }
    }
    verdict
}

/// The tests of a program, as it lists them itself; `filter` is part of their names.
pub(crate) fn list(program: &Path, filter: &str) -> Vec<String> {
    let mut command = Command::new(program);
    command.args(["--list", "--format", "terse", filter]);
    let listing = steps::quiet(&mut command).unwrap_or_default();
    let names = listing.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}

/// What to run again of one program; `None` if no test accounts for its failure.
fn suspects(program: &Failed, list: impl Fn(&Failed) -> Vec<String>) -> Option<Vec<Suspects>> {
    let one = |test: &String, n_failures| Suspects {
        program: program.clone(),
        tests: vec![test.clone()],
        name: Some(format!("{test} ({})", program.selection.join(" "))),
        n_failures,
    };
    let mut found: Vec<Suspects> = program.tests.iter().map(|test| one(test, 1)).collect();
    if let Some(CutShort { passed, hung }) = &program.cut_short {
        let known: BTreeSet<_> = passed.iter().chain(&program.tests).chain(hung).collect();
        let listed = if program.path.is_empty() { Vec::new() } else { list(program) };
        let rest: Vec<String> = listed.into_iter().filter(|test| !known.contains(test)).collect();
        found.extend(hung.iter().map(|test| one(test, 1)));
        let name = format!("a test in `{}`, which ended early", program.selection.join(" "));
        let name = hung.is_none().then_some(name);
        if rest.is_empty() {
            // Every test had passed, and the program failed all the same.
            name.is_none().then_some(())?;
        } else {
            let n_failures = u64::from(name.is_some());
            found.push(Suspects { program: program.clone(), tests: rest, name, n_failures });
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The same tests once: two guests run the same programs.
fn merged(all: impl Iterator<Item = Suspects>) -> Vec<Suspects> {
    let mut merged: Vec<Suspects> = Vec::new();
    for suspects in all {
        let is_same = |other: &&mut Suspects| {
            other.program.path == suspects.program.path && other.tests == suspects.tests
        };
        match merged.iter_mut().find(is_same) {
            Some(other) => other.n_failures += suspects.n_failures,
            None => merged.push(suspects),
        }
    }
    merged
}

/// More than fail by accident in one run.
const MOST: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn program(tests: &[&str], cut_short: Option<(&[&str], Option<&str>)>) -> Failed {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Failed {
            path: "target/deps/pair-0".to_owned(),
            selection: owned(&["--test", "pair"]),
            tests: owned(tests),
            cut_short: cut_short.map(|(passed, hung)| CutShort {
                passed: owned(passed),
                hung: hung.map(str::to_owned),
            }),
        }
    }

    /// Judges one program with four tests called `a` to `d`, of which some pass as often as is
    /// said.
    fn judged(failed: &[Failed], counts: (u64, u64), often: &[(&str, u32)]) -> (Verdict, u64, u64) {
        let mut counts = Counts { passed: counts.0, failed: counts.1, ignored: 0 };
        let mut left: Vec<(&str, u32)> = often.to_vec();
        let list = |_: &Failed| ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let verdict = judge(failed, &mut counts, list, |suspects| {
            suspects.tests.iter().all(|test| {
                let left = left.iter_mut().find(|(name, n)| name == test && *n > 0);
                left.map(|(_, n)| *n -= 1).is_some()
            })
        });
        (verdict, counts.passed, counts.failed)
    }

    fn flaky(names: &[&str]) -> Verdict {
        let flaky = names.iter().map(|&name| name.to_owned()).collect();
        Verdict { flaky, is_failed: false }
    }

    #[test]
    fn a_test_that_passes_twice_is_flaky_and_one_that_passes_once_has_failed() {
        let both = program(&["a", "b"], None);
        let (verdict, passed, failed) = judged(&[both], (2, 2), &[("a", 2), ("b", 1)]);
        assert_eq!(verdict.flaky, ["a (--test pair)"]);
        assert!(verdict.is_failed);
        assert_eq!((passed, failed), (3, 1));
    }

    #[test]
    fn tests_that_did_not_come_to_run_are_run() {
        let cut = program(&[], Some((&["a"], Some("b"))));
        let often = [("b", 2), ("c", 2), ("d", 2)];
        let (verdict, passed, failed) = judged(std::slice::from_ref(&cut), (1, 1), &often);
        assert_eq!((verdict, passed, failed), (flaky(&["b (--test pair)"]), 4, 0));
        // One of them fails.
        let (verdict, passed, failed) = judged(&[cut], (1, 1), &often[..2]);
        assert!(verdict.is_failed);
        assert_eq!((passed, failed), (2, 1));
    }

    #[test]
    fn a_program_that_ended_by_itself_is_named() {
        let cut = program(&["b"], Some((&["a"], None)));
        let often = [("b", 2), ("c", 2), ("d", 2)];
        let (verdict, passed, failed) = judged(&[cut], (1, 2), &often);
        let name = "a test in `--test pair`, which ended early";
        assert_eq!((verdict, passed, failed), (flaky(&["b (--test pair)", name]), 4, 0));
    }

    #[test]
    fn what_no_test_accounts_for_is_a_failure() {
        let often = [("a", 2)];
        for failed in [program(&[], None), program(&[], Some((&["a", "b", "c", "d"], None)))] {
            let (verdict, ..) = judged(&[program(&["a"], None), failed], (0, 1), &often);
            assert_eq!(verdict, Verdict { flaky: vec![], is_failed: true });
        }
        assert!(judged(&[], (0, 0), &often).0.is_failed);
    }

    #[test]
    fn a_test_that_failed_in_both_guests_is_run_as_one() {
        let one = program(&["a"], None);
        let (verdict, passed, failed) = judged(&[one.clone(), one], (6, 2), &[("a", 2)]);
        assert_eq!((verdict, passed, failed), (flaky(&["a (--test pair)"]), 8, 0));
    }
}
