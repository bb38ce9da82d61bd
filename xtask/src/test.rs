//! `cargo xtask test`: builds everything and runs every test.
//!
//! A run that hangs is ended and a process that outlives its test is a failure ([`crate::watch`]).
//! A test that fails is run twice more, alone ([`crate::again`]). With `--all` it also runs the
//! tests of Node and Java.

use crate::again;
use crate::lab;
use crate::sources;
use crate::steps::{self, Done, Failure, PROFILE};
use crate::tools;
use crate::torture;
use crate::watch::{Counts, Failed, Watched};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeSet;
use std::env;
use std::fmt::Display;
use std::fs;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

/// How much is run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Also run the tests with Node and Java, and fetch these where the machine has none
    #[arg(long)]
    all: bool,
}

/// Runs the whole suite; goes on after a failure so that one run tells everything.
pub(crate) fn run(options: &Options) -> Done {
    let mut run = Run::default();
    thread::scope(|scope| {
        // Fetching waits for the network, compiling for the CPUs.
        let fetching = scope.spawn(|| fetch(options.all));
        run.build()?;
        run.failures.extend(joined(fetching));
        Ok(())
    })?;
    run.tests("tests", "", |failed, tests| {
        let mut command = cargo("test");
        command.arg("--workspace");
        match failed {
            None => command.arg("--no-fail-fast"),
            // rustdoc takes no name with spaces, so all of the file's tests are run.
            Some(failed) if failed.path.is_empty() => {
                let files = tests.iter().filter_map(|test| test.split_whitespace().next());
                command.args(&failed.selection).arg("--").args(files)
            }
            Some(failed) => command.args(&failed.selection).args(["--", "--exact"]).args(tests),
        };
        command
    });
    if options.all {
        run.large_programs();
    }
    let device_tests = device_tests()?;
    let mut lab = Run { prefix: "lab: ", ..Run::default() };
    let has_lab = !run.failures.iter().any(|failure| failure == LAB);
    thread::scope(|scope| {
        // A guest leaves much of the CPUs' time to others.
        let in_lab = has_lab.then(|| scope.spawn(|| lab.lab(&device_tests)));
        run.torture();
        let modelled = run.loom();
        run.step("benchmarks", cargo("bench").args(BENCHES).args(["--", "--test"]));
        modelled.and(in_lab.map_or(Ok(()), joined))
    })?;
    run.add(lab);
    run.end()
}

/// What a thread returns.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|cause| resume_unwind(cause))
}

/// Fetches what tests run; names what could not be fetched, or is missing.
fn fetch(all: bool) -> Vec<String> {
    let mut failures = Vec::new();
    let mut failed = |what: &str, why: &dyn Display| failures.push(failed(what, why));
    if let Err(why) = tools::fetch() {
        failed("fetching programs", &why);
    }
    if all && let Err(why) = tools::large::fetch() {
        failed("fetching large programs", &why);
    }
    if let Err(why) = lab::fetch() {
        failed(LAB, &why);
    }
    for missing in tools::missing() {
        failed(missing, &"is not on this machine; tests that run it will fail");
    }
    failures
}

/// The name of the failure when no guest could be fetched.
const LAB: &str = "the lab";

/// All benchmarks, and nothing that is none.
const BENCHES: [&str; 3] = ["--workspace", "--bench", "*"];

/// Tests that need an RDMA device, by convention called `rdma` and something, or two hosts with one
/// each, called `hosts`, or `power` where one of them is switched off; they run only where they are
/// named.
pub(crate) const DEVICE_TESTS: [&str; 7] =
    ["--workspace", "--test", "rdma*", "--test", "hosts", "--test", "power"];

/// What the names of all loom models contain, by convention: that of their module.
const LOOM: &str = "loom";

/// Tests of programs that only `--all` fetches. They are marked as ignored.
const LARGE_TESTS: &str = "services_all";

/// The one of them that needs a later Node than Debian 12 has.
const NODE_WITH_IO_URING: &str = "node_with_an_io_uring_stays_on_tcp";

/// What has happened so far.
#[derive(Default)]
struct Run {
    counts: Counts,
    failures: Vec<String>,
    /// Tests that failed, and passed when they were run again.
    flaky: Vec<String>,
    /// What each line of the output begins with.
    prefix: &'static str,
}

impl Run {
    /// Compiling may take long and say nothing, so it is not watched and comes first. Always of the
    /// whole workspace, and libraries together with tests: another choice of packages or of targets
    /// chooses other features of their dependencies, and compiles those once more.
    fn build(&self) -> Done {
        steps::run(cargo("build").args(["--workspace", "--all-targets"]))?;
        steps::run(cargo("test").args(DEVICE_TESTS).arg("--no-run"))
    }

    /// Models of the lock-free parts: they replace the atomics, hence a build of their own; one for
    /// all of them, as [`Self::build`] says.
    fn loom(&mut self) -> Done {
        let packages = loom_packages()?;
        let models = || {
            let mut command = cargo("test");
            command
                .arg("--lib")
                .args(packages.iter().map(|package| format!("--package={package}")));
            command.env("RUSTFLAGS", "--cfg loom");
            command.env("CARGO_TARGET_DIR", steps::target_dir().join("loom"));
            command
        };
        let programs = programs(&mut models())?;
        if programs.len() != packages.len() {
            self.failed("loom models", format!("{} packages have them", packages.len()));
        }
        for (package, program) in programs {
            if again::list(&program, LOOM).is_empty() {
                self.failed("loom models", format!("{package} has none"));
            }
        }
        self.tests("loom models", LOOM, |failed, tests| {
            let mut command = models();
            match failed {
                None => command.arg(LOOM),
                Some(_) => command.args(["--", "--exact"]).args(tests),
            };
            command
        });
        Ok(())
    }

    /// Tests of [`LARGE_TESTS`], which the ordinary run has counted as ignored.
    fn large_programs(&mut self) {
        let has_node = tools::large::has_node_with_io_uring();
        if !has_node {
            steps::say(format!("{NODE_WITH_IO_URING}: skipped, there is no Node 20 or later"));
        }
        let before = self.counts;
        self.tests("tests of large programs", "", |failed, tests| {
            let mut command = cargo("test");
            command.args(["--workspace", "--test", LARGE_TESTS, "--", "--ignored"]);
            if !has_node {
                command.args(["--skip", NODE_WITH_IO_URING]);
            }
            if failed.is_some() {
                command.arg("--exact").args(tests);
            }
            command
        });
        let n_run = self.counts.passed + self.counts.failed - before.passed - before.failed;
        self.counts.ignored = before.ignored.saturating_sub(n_run);
        if n_run == 0 {
            self.failed("tests of large programs", "none ran");
        }
    }

    /// Tests that need an RDMA device, in a guest that has one, and those that need two hosts.
    fn lab(&mut self, programs: &[(String, PathBuf)]) -> Done {
        for (what, name, guests, threads) in [
            ("tests in the lab", "rdma", "1", "2"),
            ("tests in two guests", "hosts", "2", "1"),
            ("tests that switch a guest off", "power", "2", "1"),
        ] {
            let programs = programs.iter().filter(|(test, _)| test.starts_with(name));
            let programs: Vec<&PathBuf> = programs.map(|(_, program)| program).collect();
            let xtask = env::current_exe().map_err(|e| Failure::io("this program", &e))?;
            let before = self.counts.passed;
            self.tests(what, "", |failed, tests| {
                let mut command = Command::new(&xtask);
                command.args(["lab", "--limit", LAB_LIMIT, "--guests", guests]);
                command.arg(steps::root().join("lab/scripts/tests.sh"));
                match failed {
                    None => command.args(&programs),
                    Some(failed) => command.arg(&failed.path).env("LAB_TESTS", tests.join(" ")),
                };
                command.env("LAB_THREADS", threads);
                command
            });
            if self.counts.passed == before {
                self.failed(what, "none passed");
            }
        }
        Ok(())
    }

    /// Runs tests by what `command` makes of no arguments, and those that fail again by what it
    /// makes of them and their program. `filter` is part of all their names.
    fn tests(
        &mut self,
        what: &str,
        filter: &str,
        command: impl Fn(Option<&Failed>, &[String]) -> Command,
    ) {
        let watched = self.watched(&mut command(None, &[]));
        let mut counts = watched.counts;
        if let Err(why) = watched.done {
            let list = |failed: &Failed| again::list(&steps::root().join(&failed.path), filter);
            let verdict = again::judge(&watched.failed, &mut counts, list, |suspects| {
                let mut command = command(Some(&suspects.program), &suspects.tests);
                let again = self.watched(&mut command);
                again.done.is_ok() && again.counts.passed >= suspects.tests.len() as u64
            });
            self.flaky.extend(verdict.flaky);
            if verdict.is_failed {
                self.failed(what, why);
            }
        }
        self.counts.add(counts);
    }

    /// Runs the fixed schedules of the preload library and fresh ones side by side. A run that
    /// fails is repeated twice, as a test is; also side by side.
    fn torture(&mut self) {
        let runs = torture::short_runs();
        let done = self.tortured(runs.map(|(_, seed)| seed));
        for ((what, seed), done) in runs.into_iter().zip(done) {
            let Err(why) = done else { continue };
            if self.tortured([seed; 2]).iter().all(Result::is_ok) {
                self.flaky.push(format!("{what} ({seed})"));
            } else {
                self.failed(what, why);
            }
        }
    }

    /// Runs the schedules from each of `seeds` on, side by side.
    fn tortured(&self, seeds: [u64; 2]) -> [Done; 2] {
        let run = |seed| self.watched(&mut torture::short_run(seed)).done;
        thread::scope(|scope| seeds.map(|seed| scope.spawn(move || run(seed))).map(joined))
    }

    fn step(&mut self, what: &str, command: &mut Command) {
        let watched = self.watched(command);
        self.counts.add(watched.counts);
        if let Err(why) = watched.done {
            self.failed(what, why);
        }
    }

    /// Runs `command` under watch, with what tests need to know.
    fn watched(&self, command: &mut Command) -> Watched {
        command.env("RSOCK_TOOLS", tools::dir());
        command.env("RSOCK_ARTIFACTS", steps::target_dir().join(PROFILE));
        Watched::run(command, self.prefix)
    }

    fn failed(&mut self, what: &str, why: impl Display) {
        self.failures.push(failed(what, &why));
    }

    /// Adds what another run has found.
    fn add(&mut self, other: Self) {
        self.counts.add(other.counts);
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
    }

    /// The last line: what continuous integration reads.
    fn end(self) -> Done {
        for test in &self.flaky {
            println!("flaky: {test}: failed, then passed twice alone");
        }
        let Counts { passed, failed, ignored } = self.counts;
        println!("{passed} passed, {failed} failed, {ignored} skipped");
        if self.failures.is_empty() && passed > 0 {
            return Ok(());
        }
        Err(Failure::new(format!("test run failed: {}", self.failures.join(", "))))
    }
}

/// Says why something failed; returns its name.
fn failed(what: &str, why: &dyn Display) -> String {
    eprintln!("xtask: {what}: {why}");
    what.to_owned()
}

fn cargo(what: &str) -> Command {
    let mut command = steps::cargo();
    command.args([what, "--profile", PROFILE, "--locked"]);
    command
}

/// The built test programs for the lab, with their names.
fn device_tests() -> Done<Vec<(String, PathBuf)>> {
    programs(cargo("test").args(DEVICE_TESTS))
}

/// Builds the test programs that `command` would run, and returns them with their names.
fn programs(command: &mut Command) -> Done<Vec<(String, PathBuf)>> {
    let format = ["--no-run", "--message-format", "json-render-diagnostics"];
    steps::say(steps::shown(command.args(format)));
    let messages = steps::output(command)?;
    let mut found = Vec::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(message)
            .map_err(|e| Failure::new(format!("cargo's messages: {e}")))?;
        if message["profile"]["test"] == true
            && let (Some(name), Some(file)) =
                (message["target"]["name"].as_str(), message["executable"].as_str())
        {
            found.push((name.to_owned(), PathBuf::from(file)));
        }
    }
    Ok(found)
}

/// Packages that have loom models: by convention, in modules whose name contains `loom`.
fn loom_packages() -> Done<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for file in sources::files("crates")? {
        let text = fs::read_to_string(&file).map_err(|e| Failure::io(file.display(), &e))?;
        if text.contains("loom::model") {
            let inside = file.strip_prefix(steps::root().join("crates")).unwrap_or(&file);
            found
                .extend(inside.iter().next().map(|package| package.to_string_lossy().into_owned()));
        }
    }
    Ok(found)
}

/// Seconds for all tests in the lab: they take nine minutes on two CPUs.
const LAB_LIMIT: &str = "1800";
