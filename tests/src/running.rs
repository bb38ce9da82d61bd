//! A child process that does not outlive the test.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output};

/// A started program, killed and reaped when dropped unless it was waited for.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    /// Whether it leads a process group, which is killed with it.
    is_leader: bool,
}

impl Running {
    /// Starts `command`.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: Some(command.spawn()?), is_leader: false })
    }

    /// Starts `command`, which makes processes of its own: they are killed as well.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn_group(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: Some(command.process_group(0).spawn()?), is_leader: true })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        let status = self.child_mut().wait();
        self.child = None;
        status
    }

    /// Waits for its end and returns what it wrote to its pipes.
    ///
    /// # Errors
    /// As [`Child::wait_with_output`].
    pub fn output(mut self) -> io::Result<Output> {
        let child = self.child.take().unwrap_or_else(|| unreachable!("taken by value only"));
        child.wait_with_output()
    }

    fn child_mut(&mut self) -> &mut Child {
        self.child.as_mut().unwrap_or_else(|| unreachable!("taken by value only"))
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.child.as_ref().unwrap_or_else(|| unreachable!("taken by value only"))
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.child_mut()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| self.is_leader) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::Stdio;

    #[test]
    fn dropping_kills_and_reaps() {
        let running = Running::spawn(Command::new("sleep").arg("1000")).unwrap();
        let pid = running.id();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(running);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn dropping_a_group_kills_what_its_leader_has_made() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut running = Running::spawn_group(&mut shell).unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(running.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let path = format!("/proc/{}/stat", line.trim());
        let is_running = || {
            // A process that has been killed may wait to be reaped by its new parent.
            let stat = std::fs::read_to_string(&path).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        assert!(is_running());
        drop(running);
        // It has the pipe open for as long as it lives.
        assert_eq!(out.read_line(&mut line).unwrap(), 0);
        while is_running() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn waiting_gives_the_status() {
        let status = Running::spawn(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(status.wait().unwrap().code(), Some(3));
    }
}
