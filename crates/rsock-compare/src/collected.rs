//! A child process whose output is collected while it runs.

use rsock_cli::child::Child;
use rsock_cli::error::Error;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A running child and the threads that collect what it writes.
#[derive(Debug)]
pub(crate) struct Collected {
    child: Child,
    out: JoinHandle<String>,
    err: JoinHandle<String>,
}

impl Collected {
    /// Starts `command` with both outputs collected and no input.
    pub(crate) fn spawn(name: &str, mut command: Command) -> Result<Self, Error> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Child::spawn(name, command)?;
        let (out, err) = (child.take_stdout(), child.take_stderr());
        Ok(Self {
            child,
            out: thread::spawn(move || collect(out)),
            err: thread::spawn(move || collect(err)),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until it ends, at most until `deadline`; whether it ended.
    pub(crate) fn has_ended_by(&mut self, deadline: Instant) -> Result<bool, Error> {
        Ok(self.child.wait_until(deadline)?.is_some())
    }

    /// Waits for its end and returns its standard output. A failure carries its last line.
    pub(crate) fn finish(mut self, deadline: Instant) -> Result<String, Error> {
        let name = self.child.name().to_owned();
        let status = self.child.wait_until(deadline)?;
        self.child.kill();
        let [out, err] = [self.out, self.err].map(|thread| thread.join().unwrap_or_default());
        let last_line = || {
            let said = out.lines().chain(err.lines()).rfind(|line| !line.trim().is_empty());
            said.map_or(String::new(), |line| format!(": {}", line.trim()))
        };
        match status {
            Some(status) if status.success() => Ok(out),
            Some(status) => Err(Error::Failed(format!("{name}: {status}{}", last_line()))),
            None => Err(Error::Failed(format!("{name} did not end in time{}", last_line()))),
        }
    }
}

fn collect(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What came before a failure is still worth having.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn output_is_returned_and_a_failure_says_the_last_line() {
        let mut good = Collected::spawn("good", shell("echo one; echo two")).unwrap();
        assert!(good.has_ended_by(soon()).unwrap());
        assert_eq!(good.finish(soon()).unwrap(), "one\ntwo\n");
        let bad = Collected::spawn("bad", shell("echo out; echo why >&2; exit 3")).unwrap();
        assert_eq!(bad.finish(soon()).unwrap_err().to_string(), "bad: exit status: 3: why");
    }

    #[test]
    fn a_child_that_goes_on_is_killed_and_reaped() {
        let slow = Collected::spawn("slow", shell("exec cat /dev/zero >/dev/null")).unwrap();
        let pid = slow.pid();
        let late = slow.finish(Instant::now()).unwrap_err();
        assert_eq!(late.to_string(), "slow did not end in time");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
