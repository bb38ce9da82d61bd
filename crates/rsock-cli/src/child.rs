//! Child processes that never outlive this process: they die with it whatever ends it, and with the
//! value that holds them.

use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal,
};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{self, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A running child, killed and reaped when dropped.
///
/// The kernel ties a child to the *thread* that made it, so make it on a thread that lasts.
#[derive(Debug)]
pub struct Child {
    name: String,
    child: process::Child,
    pidfd: OwnedFd,
}

impl Child {
    /// Starts `command`, called `name` in messages.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self, Error> {
        let parent = getpid();
        let stay_with_parent = move || -> io::Result<()> {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the call.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        };
        // SAFETY: between fork and exec the closure makes two raw system calls and nothing else.
        unsafe { command.pre_exec(stay_with_parent) };
        let failed = |source| Error::Program { program: name.to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid
            .ok_or(io::ErrorKind::NotFound.into())
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
        match pidfd {
            Ok(pidfd) => Ok(Self { name: name.to_owned(), child, pidfd }),
            Err(e) => {
                // A failure here leaves a child that nothing can end.
                let _ = child.kill().and_then(|()| child.wait().map(drop));
                Err(failed(e))
            }
        }
    }

    /// The name that messages use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        // Fails only if it has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, for a program that has children of its own to end first, and kills it if it
    /// has not ended by `deadline`.
    pub fn terminate(&mut self, deadline: Instant) {
        // Fails only if it has ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !matches!(self.wait_until(deadline), Ok(Some(_))) {
            self.kill();
        }
    }

    /// Waits until it ends, at most until `deadline`; `None` if it still runs then.
    ///
    /// # Errors
    /// If the system cannot wait for it.
    pub fn wait_until(&mut self, deadline: Instant) -> Result<Option<ExitStatus>, Error> {
        let is_over = wait_readable(&self.pidfd, deadline).map_err(Error::io("cannot wait"))?;
        if !is_over {
            return Ok(None);
        }
        self.child.wait().map(Some).map_err(Error::io(format!("cannot wait for {}", self.name)))
    }

    /// Reads the next line of its output, without the line feed. The line is incomplete if
    /// `deadline` or the end of the output comes first.
    ///
    /// # Errors
    /// If the system cannot wait for output.
    pub fn read_line(&mut self, deadline: Instant) -> Result<String, Error> {
        let mut line = Vec::new();
        if let Some(out) = &mut self.child.stdout {
            let mut byte = [0];
            while wait_readable(&*out, deadline).map_err(Error::io("cannot wait"))?
                && matches!(out.read(&mut byte), Ok(1))
                && byte != *b"\n"
            {
                line.push(byte[0]);
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Takes its standard input, if that was piped and not taken before.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes its standard output, if that was piped and not taken before.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes its standard error, if that was piped and not taken before.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lets time pass: for measuring and pacing, never to wait for an event.
#[expect(clippy::disallowed_methods, reason = "the passing of time is the event")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `fd` is readable or hung up; false if `deadline` comes first.
fn wait_readable(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timespec(left))) {
            Ok(n) => return Ok(n != 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn timespec(d: Duration) -> Timespec {
    Timespec {
        tv_sec: d.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_goes_on_is_killed_and_reaped() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec cat /dev/zero >/dev/null"]);
        let mut slow = Child::spawn("slow", command).unwrap();
        assert_eq!(slow.wait_until(Instant::now()).unwrap(), None);
        let pid = slow.pid();
        drop(slow);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let missing = Child::spawn("netperf", Command::new("/no/such/netperf")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot run netperf: no such file or directory");
    }
}
