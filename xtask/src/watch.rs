//! Running tests under watch: a run that falls silent for too long is ended, the results are
//! counted, and processes that outlive the run are found, ended and reported.
//!
//! Every process of a run carries a mark in its environment, which children inherit; that, and not
//! the process tree, is how strays are found, because an orphan leaves the tree.

pub(crate) use crate::harness::{Counts, Failed};

use crate::harness::Report;
use crate::steps::{self, Done, Failure};
use crate::whole_lines::WholeLines;
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::process::{self, Pid, PidfdFlags, Signal};
use std::fs;
use std::io::{self, PipeReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) counts: Counts,
    pub(crate) done: Done,
    /// The programs in which tests failed, if that is all that went wrong.
    pub(crate) failed: Vec<Failed>,
}

impl Watched {
    /// Runs `command`, passing its output on, each line with `prefix` before it.
    pub(crate) fn run(command: &mut Command, prefix: &'static str) -> Self {
        Self::run_to(command, SILENCE, &mut WholeLines::new(io::stdout(), prefix))
    }

    /// As [`run`](Self::run), passing the output on to `out`, and with a limit to silence.
    fn run_to(command: &mut Command, silence: Duration, out: &mut dyn Write) -> Self {
        let mut report = Report::default();
        let end = run(command, silence, &mut report, out);
        let only_tests_failed = matches!(end, Err(Ended::Failed(_)));
        let failed = if only_tests_failed { report.failed } else { Vec::new() };
        Self { counts: report.counts, done: end.map_err(Ended::into_failure), failed }
    }
}

/// How a run ended that did not go well.
#[derive(Debug)]
enum Ended {
    /// By itself, and it says that it failed.
    Failed(Failure),
    /// In a way that no test accounts for.
    Badly(Failure),
}

impl Ended {
    fn badly(why: impl Into<String>) -> Self {
        Self::Badly(Failure::new(why))
    }

    fn into_failure(self) -> Failure {
        match self {
            Self::Failed(why) | Self::Badly(why) => why,
        }
    }
}

fn run(
    command: &mut Command,
    silence: Duration,
    report: &mut Report,
    out: &mut dyn Write,
) -> Result<(), Ended> {
    let line = steps::shown(command);
    steps::say(&line);
    let mark = mark();
    let bad = |what: String| move |e: io::Error| Ended::Badly(Failure::io(what, &e));
    // One pipe for both outputs: what cargo says of a program comes before what the program says.
    let (output, input) = io::pipe().map_err(bad("a pipe".to_owned()))?;
    let errors = input.try_clone().map_err(bad("a pipe".to_owned()))?;
    let child = command.env(MARK, &mark).stdin(Stdio::null()).stdout(input).stderr(errors).spawn();
    // This process keeps no end to write to, or the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.map_err(bad(format!("cannot run `{line}`")))?;
    let output = pieces(output);
    let mut text = Text::default();
    let mut quiet = Duration::ZERO;
    let heard = loop {
        match output.recv_timeout(TICK) {
            Ok(bytes) => {
                let _ = out.write_all(&bytes).and_then(|()| out.flush());
                text.take(&bytes, report);
                quiet = Duration::ZERO;
            }
            // A stray may hold the pipe open beyond the end of the run itself.
            Err(RecvTimeoutError::Timeout) if matches!(child.try_wait(), Ok(Some(_))) => {
                break true;
            }
            Err(RecvTimeoutError::Timeout) if quiet >= silence => break false,
            Err(RecvTimeoutError::Timeout) => quiet += TICK,
            Err(RecvTimeoutError::Disconnected) => break true,
        }
    };
    report.end();
    if !heard {
        end(&marked(&mark));
        let _ = child.kill();
    }
    let status = child.wait().map_err(bad(line.clone()))?;
    let strays = strays(&mark);
    end(&strays);
    if !heard {
        let last = text.last();
        let seconds = silence.as_secs();
        return Err(Ended::badly(format!("`{line}` said nothing for {seconds} s after `{last}`")));
    }
    if !strays.is_empty() {
        let names: Vec<String> = strays.iter().map(|stray| stray.name.clone()).collect();
        let names = names.join(", ");
        return Err(Ended::badly(format!("`{line}` left processes behind: {names}")));
    }
    if !report.silent.is_empty() {
        let programs = report.silent.join(", ");
        return Err(Ended::badly(format!("no results of {programs}")));
    }
    if !status.success() {
        return Err(Ended::Failed(Failure::new(format!("`{line}` failed: {status}"))));
    }
    Ok(())
}

/// What comes out of a pipe, in pieces; the channel closes with the pipe.
fn pieces(mut pipe: PipeReader) -> Receiver<Vec<u8>> {
    let (pieces, output) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = pipe.read(&mut buffer) {
            if pieces.send(buffer[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    output
}

/// Output, line by line.
#[derive(Default)]
struct Text {
    line: Vec<u8>,
    last: String,
}

impl Text {
    fn take(&mut self, bytes: &[u8], report: &mut Report) {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            report.read(&line);
            if !line.trim().is_empty() {
                self.last = line;
            }
            self.line.clear();
        }
    }

    /// The last thing said, finished or not.
    fn last(&self) -> String {
        let unfinished = String::from_utf8_lossy(&self.line);
        if unfinished.trim().is_empty() { self.last.clone() } else { unfinished.into_owned() }
    }
}

/// A process of a run.
#[derive(Debug)]
struct Marked {
    pid: Pid,
    name: String,
}

/// Processes of this run that are still there after a decent time to go.
fn strays(mark: &str) -> Vec<Marked> {
    let mut found = marked(mark);
    found.retain(|process| !goes(process.pid, END_LIMIT));
    found
}

fn marked(mark: &str) -> Vec<Marked> {
    let needle = format!("{MARK}={mark}").into_bytes();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == needle)
    };
    let process = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let name = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
        Some(Marked { pid: Pid::from_raw(pid)?, name: format!("{name} ({pid})") })
    };
    pids.filter(is_marked).filter_map(process).collect()
}

/// Waits for a process to end, at most `limit`; whether it did.
fn goes(pid: Pid, limit: Duration) -> bool {
    let Ok(pidfd) = process::pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 };
    event::poll(&mut fds, Some(&limit)).is_ok_and(|n| n > 0)
}

fn end(processes: &[Marked]) {
    for process in processes {
        let _ = process::kill_process(process.pid, Signal::KILL);
    }
}

/// A value that no other run has.
fn mark() -> String {
    static N: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let n = N.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{n}", std::process::id(), now.as_nanos())
}

/// The environment variable that marks the processes of a run.
const MARK: &str = "RSOCK_TEST_RUN";

/// How long a run may say nothing: many times the longest single test.
const SILENCE: Duration = Duration::from_secs(300);

/// How often the run itself is looked at while it says nothing.
const TICK: Duration = Duration::from_millis(500);

/// How long a process may take to end after the run that started it.
const END_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// What is passed on goes nowhere: a run above this one would read it too.
    fn watched(script: &str, silence: Duration) -> Watched {
        Watched::run_to(Command::new("sh").args(["-c", script]), silence, &mut io::sink())
    }

    fn shell(script: &str, silence: Duration) -> Done {
        watched(script, silence).done
    }

    #[test]
    fn a_silent_run_is_ended_with_its_children() {
        let script = "echo started; sleep 1000 & sleep 1000; echo never";
        let done = shell(script, Duration::from_secs(1));
        let why = done.unwrap_err().to_string();
        assert!(why.contains("said nothing for 1 s after `started`"), "{why}");
    }

    #[test]
    fn a_stray_that_holds_the_output_open_is_found_too() {
        let done = shell("sleep 1000 &", SILENCE);
        let why = done.unwrap_err().to_string();
        assert!(why.contains("left processes behind: sleep 1000 ("), "{why}");
    }

    #[test]
    fn a_process_left_behind_is_a_failure() {
        let done = shell("sleep 1000 >/dev/null 2>&1 &", SILENCE);
        let why = done.unwrap_err().to_string();
        assert!(why.contains("left processes behind: sleep 1000"), "{why}");
    }

    #[test]
    fn both_outputs_are_read_in_their_order() {
        let script = "echo 'Running a (b)' >&2; echo 'running 1 test'; echo 'test c ... FAILED'; \
                      echo failures:; echo '    c'; echo 'test result: FAILED. 1 failed'; \
                      echo 'error: test failed, to rerun pass `--lib`' >&2; exit 101";
        let watched = watched(script, SILENCE);
        let [failed] = &watched.failed[..] else { panic!("{watched:?}") };
        assert_eq!((&*failed.path, &*failed.tests), ("b", &["c".to_owned()][..]));
        assert_eq!(watched.counts.failed, 1);
    }

    #[test]
    fn no_test_accounts_for_a_process_left_behind() {
        let script = "echo 'test failed, to rerun pass `--lib`'; sleep 1000 & exit 1";
        let watched = watched(script, SILENCE);
        assert!(watched.done.is_err() && watched.failed.is_empty(), "{watched:?}");
    }
}
