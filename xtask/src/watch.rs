//! Running tests under watch: a run that falls silent for too long is ended, the results are
//! counted, and processes that outlive the run are found, ended and reported.
//!
//! Every process of a run carries a mark in its environment, which children inherit; that, and not
//! the process tree, is how strays are found, because an orphan leaves the tree.

use crate::steps::{self, Done, Failure};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::process::{self, Pid, PidfdFlags, Signal};
use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn read(&mut self, line: &str) {
        let Some((_, results)) = line.split_once("test result: ") else { return };
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

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) counts: Counts,
    pub(crate) done: Done,
}

impl Watched {
    /// Runs `command`, passing its output on.
    pub(crate) fn run(command: &mut Command) -> Self {
        let mut counts = Counts::default();
        let done = run(command, SILENCE, &mut counts);
        Self { counts, done }
    }
}

fn run(command: &mut Command, silence: Duration, counts: &mut Counts) -> Done {
    let line = steps::shown(command);
    steps::say(&line);
    let mark = mark();
    let mut child = command
        .env(MARK, &mark)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io(format!("cannot run `{line}`"), &e))?;
    let output = output_of(&mut child);
    let mut text = Text::default();
    let mut quiet = Duration::ZERO;
    let heard = loop {
        match output.recv_timeout(TICK) {
            Ok(bytes) => {
                text.take(&bytes, counts);
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
    if !heard {
        end(&marked(&mark));
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| Failure::io(&line, &e))?;
    let strays = strays(&mark);
    end(&strays);
    if !heard {
        let last = text.last();
        let seconds = silence.as_secs();
        return Err(Failure::new(format!("`{line}` said nothing for {seconds} s after `{last}`")));
    }
    if !status.success() {
        return Err(Failure::new(format!("`{line}` failed: {status}")));
    }
    if !strays.is_empty() {
        let names: Vec<String> = strays.iter().map(|stray| stray.name.clone()).collect();
        let names = names.join(", ");
        return Err(Failure::new(format!("`{line}` left processes behind: {names}")));
    }
    Ok(())
}

/// The child's output in pieces, as they come; the channel closes with the pipe.
fn output_of(child: &mut Child) -> Receiver<Vec<u8>> {
    let (pieces, output) = mpsc::channel();
    if let Some(mut pipe) = child.stdout.take() {
        thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                if pieces.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    output
}

/// Output on its way to the terminal.
#[derive(Default)]
struct Text {
    line: Vec<u8>,
    last: String,
}

impl Text {
    fn take(&mut self, bytes: &[u8], counts: &mut Counts) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(bytes).and_then(|()| out.flush());
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            counts.read(&line);
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
    found.retain(|process| !goes(process.pid, GRACE));
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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), now.as_nanos())
}

/// The environment variable that marks the processes of a run.
const MARK: &str = "RSOCK_TEST_RUN";

/// How long a run may say nothing: many times the longest single test.
const SILENCE: Duration = Duration::from_secs(300);

/// How often the run itself is looked at while it says nothing.
const TICK: Duration = Duration::from_millis(500);

/// How long a process may take to end after the run that started it.
const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, silence: Duration) -> Done {
        run(Command::new("sh").args(["-c", script]), silence, &mut Counts::default())
    }

    #[test]
    fn results_are_counted() {
        let mut counts = Counts::default();
        counts.read("test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured");
        counts.read("test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        counts.read("test the_result_is_4_passed ... ok");
        assert_eq!(counts, Counts { passed: 43, failed: 2, ignored: 1 });
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
}
