//! Reads the output of a run of test programs: how many tests passed, and which failed in which
//! program.
//!
//! The lines are those of cargo and of Rust's test harness, in the order in which they were
//! written. A guest of the lab says the same, each line led by its role if there are two.

use std::mem;

/// Results of a run, as the test harnesses report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Reads `ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn read(&mut self, results: &str) {
        for part in results.split(['.', ';']) {
            match part.trim().split_once(' ') {
                Some((n, "passed")) => self.passed += n.parse().unwrap_or(0),
                Some((n, "failed")) => self.failed += n.parse().unwrap_or(0),
                Some((n, "ignored")) => self.ignored += n.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

/// A program that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failed {
    /// The program's file as it was said; empty for tests in documentation.
    pub(crate) path: String,
    /// What makes cargo choose this program in the whole workspace, such as `--test pair`.
    pub(crate) selection: Vec<String>,
    /// The tests that failed.
    pub(crate) tests: Vec<String>,
    /// If the program ended before it reported its results: how far it was.
    pub(crate) cut_short: Option<CutShort>,
}

/// How far a program was that ended before it reported its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CutShort {
    /// The tests that had passed.
    pub(crate) passed: Vec<String>,
    /// The test that took too long, if that was said.
    pub(crate) hung: Option<String>,
}

/// What a run has said so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    pub(crate) failed: Vec<Failed>,
    /// Programs that ended well without having reported their results.
    pub(crate) silent: Vec<String>,
    programs: [Program; 1 + GUESTS.len()],
}

impl Report {
    /// Takes in one line, with or without the colours of a terminal.
    pub(crate) fn read(&mut self, line: &str) {
        let line = without_colours(line);
        let guest = GUESTS.iter().position(|guest| line.starts_with(guest));
        let (at, line) = guest.map_or((0, &*line), |at| (at + 1, &line[GUESTS[at].len()..]));
        if let Some(path) = begun(line) {
            // A guest that was switched off in the middle reports nothing, as it should.
            self.begin(at, path.to_owned(), guest.is_none());
        } else if let Some((_, command)) = line.split_once(RERUN) {
            let program = mem::take(&mut self.programs[at]);
            let failed = program.failed(command.trim_end_matches('`'));
            if let Some(cut) = &failed.cut_short {
                self.counts.passed += cut.passed.len() as u64;
                // One more, for what ended the program.
                self.counts.failed += failed.tests.len() as u64 + 1;
            }
            self.failed.push(failed);
        } else if let Some((_, results)) = line.split_once("test result: ") {
            self.counts.read(results);
            self.programs[at].is_reported = true;
        } else {
            self.programs[at].read(line);
        }
    }

    /// Nothing more comes.
    pub(crate) fn end(&mut self) {
        self.begin(0, String::new(), true);
    }

    fn begin(&mut self, at: usize, path: String, must_report: bool) {
        let before = mem::replace(&mut self.programs[at], Program { path, ..Program::default() });
        if must_report && before.has_begun && !before.is_reported {
            self.silent.push(before.path);
        }
    }
}

/// The program whose tests run.
#[derive(Debug, Default)]
struct Program {
    path: String,
    has_begun: bool,
    is_reported: bool,
    passed: Vec<String>,
    failed: Vec<String>,
    /// The last list of failures that it printed: a test's own output may look like one.
    listed: Vec<String>,
    is_in_list: bool,
    hung: Option<String>,
}

impl Program {
    fn read(&mut self, line: &str) {
        if line == "failures:" {
            self.listed.clear();
            self.is_in_list = true;
            return;
        }
        if let Some(name) = line.strip_prefix("    ").filter(|_| self.is_in_list) {
            self.listed.push(name.to_owned());
            return;
        }
        self.is_in_list = false;
        if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") {
            self.has_begun = true;
        } else if let Some(rest) = line.strip_prefix("test ")
            && let Some((name, result)) = rest.rsplit_once(" ... ")
        {
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            match result {
                "ok" => self.passed.push(name.to_owned()),
                "FAILED" => self.failed.push(name.to_owned()),
                _ => {}
            }
        } else if let Some((_, rest)) = line.split_once("watchdog: ")
            && let Some((name, _)) = rest.split_once(" hangs after ")
        {
            self.hung = Some(name.to_owned());
        }
    }

    /// It failed; `command` is how cargo would run it again.
    fn failed(self, command: &str) -> Failed {
        let mut selection: Vec<String> = Vec::new();
        let mut words = command.split_whitespace();
        while let Some(word) = words.next() {
            if word == "-p" || word == "--package" {
                words.next();
            } else {
                selection.push(word.to_owned());
            }
        }
        let Self { path, is_reported, passed, failed, listed, hung, .. } = self;
        if is_reported {
            return Failed { path, selection, tests: listed, cut_short: None };
        }
        Failed { path, selection, tests: failed, cut_short: Some(CutShort { passed, hung }) }
    }
}

/// The file of a program that begins: `Running tests/pair.rs (target/debug/deps/pair-0123)`;
/// nothing of one whose tests are in documentation: `Doc-tests rsock_core`.
fn begun(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("Doc-tests ") {
        return Some("");
    }
    let (_, path) = line.strip_prefix("Running ")?.rsplit_once('(')?;
    path.strip_suffix(')')
}

/// `line` without the sequences by which a terminal changes colours.
fn without_colours(line: &str) -> String {
    let mut plain = String::new();
    for (i, part) in line.trim_end_matches('\r').split("\x1b[").enumerate() {
        plain.push_str(if i == 0 { part } else { part.split_once('m').map_or(part, |p| p.1) });
    }
    plain
}

/// What leads a line from a guest, where there are two.
const GUESTS: [&str; 2] = ["a| ", "b| "];

/// What cargo, and the lab's script of tests, say of a program that failed.
const RERUN: &str = "to rerun pass `";

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        let mut report = Report::default();
        text.lines().for_each(|line| report.read(line));
        report.end();
        report
    }

    fn counts(passed: u64, failed: u64, ignored: u64) -> Counts {
        Counts { passed, failed, ignored }
    }

    #[test]
    fn results_are_counted() {
        let found = report(
            "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured\n\
             test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             test the_result_is_4_passed ... ok",
        );
        assert_eq!(found.counts, counts(43, 2, 1));
        assert_eq!((found.failed, found.silent), (vec![], vec![]));
    }

    #[test]
    fn failed_tests_are_named_with_their_program() {
        let found = report(
            "\x1b[1m\x1b[92m     Running\x1b[0m unittests src/lib.rs (target/deps/rsock-c4)\n\n\
             running 3 tests\ntest tests::fine ... ok\ntest tests::bad ... FAILED\n\
             test tests::panics - should panic ... ok\n\nfailures:\n\n\
             ---- tests::bad stdout ----\nfailures:\n    not::a::test\n\nno\n\n\n\
             failures:\n    tests::bad\n\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n\n\
             \x1b[1m\x1b[91merror\x1b[0m: test failed, to rerun pass `-p rsock-core --lib`\n   \
             Doc-tests rsock\n\nrunning 1 test\ntest src/lib.rs - a (line 1) ... FAILED\n\n\
             failures:\n    src/lib.rs - a (line 1)\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured\n\n\
             error: doctest failed, to rerun pass `-p rsock --doc`\n\
             error: 2 targets failed:\n    `-p rsock-core --lib`\n    `-p rsock --doc`\n",
        );
        assert_eq!(found.counts, counts(2, 2, 0));
        assert_eq!(found.silent, [""; 0]);
        let failed = |path: &str, selection: &str, test: &str| Failed {
            path: path.to_owned(),
            selection: vec![selection.to_owned()],
            tests: vec![test.to_owned()],
            cut_short: None,
        };
        assert_eq!(
            found.failed,
            [
                failed("target/deps/rsock-c4", "--lib", "tests::bad"),
                failed("", "--doc", "src/lib.rs - a (line 1)"),
            ]
        );
    }

    #[test]
    fn a_program_that_was_cut_short_says_how_far_it_was() {
        let found = report(
            "     Running tests/pair.rs (target/deps/pair-a0)\n\nrunning 4 tests\n\
             test first ... ok\ntest second ... FAILED\nwatchdog: third hangs after 180s\n\
             error: test failed, to rerun pass `-p rsock-tests --test pair`\n\nCaused by:\n  \
             process didn't exit successfully: `target/deps/pair-a0` (signal: 6)\n",
        );
        assert_eq!(found.counts, counts(1, 2, 0));
        let cut = CutShort { passed: vec!["first".to_owned()], hung: Some("third".to_owned()) };
        let [failed] = &found.failed[..] else { panic!("{found:?}") };
        assert_eq!(failed.selection, ["--test", "pair"]);
        assert_eq!(failed.tests, ["second"]);
        assert_eq!(failed.cut_short, Some(cut));
    }

    #[test]
    fn a_program_that_ends_well_and_reports_nothing_is_noticed() {
        let text = "     Running tests/ends.rs (target/deps/ends-dd)\n\nrunning 2 tests\n\
                    test one ... ok\n";
        assert_eq!(report(text).silent, ["target/deps/ends-dd"]);
        let more = "     Running tests/next.rs (target/deps/next-dd)\n\nrunning 0 tests\n\n\
                    test result: ok. 0 passed; 0 failed; 0 ignored\n";
        assert_eq!(report(&format!("{text}{more}")).silent, ["target/deps/ends-dd"]);
        // No harness, so no results: benchmarks.
        let bench = "     Running benches/one.rs (target/deps/one-dd)\nTesting one\nSuccess\n";
        assert_eq!(report(bench).silent, [""; 0]);
    }

    #[test]
    fn two_guests_are_told_apart() {
        let found = report(
            "a|      Running hosts (/target/deps/hosts-1)\n\
             b|      Running hosts (/target/deps/hosts-1)\n\
             a| running 2 tests\nb| running 2 tests\na| test one ... ok\r\nb| test one ... FAILED\n\
             b| failures:\nb|     one\nb| \nb| test result: FAILED. 0 passed; 1 failed; 0 ignored\n\
             b| error: test failed, to rerun pass `hosts`\n",
        );
        // Guest a was switched off, as some tests do.
        assert_eq!((found.counts, found.silent), (counts(0, 1, 0), vec![]));
        let [failed] = &found.failed[..] else { panic!("no failure") };
        assert_eq!(
            (&*failed.path, &*failed.tests),
            ("/target/deps/hosts-1", &["one".to_owned()][..])
        );
    }
}
