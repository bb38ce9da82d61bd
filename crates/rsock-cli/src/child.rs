//! Child processes that never outlive us: they die with this process whatever ends it, and with
//! the value that holds them.

use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal,
};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running child, killed and reaped when dropped.
///
/// The kernel ties a child to the *thread* that made it, so make it on a thread that lasts.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    child: std::process::Child,
    pidfd: OwnedFd,
}

impl Child {
    /// Starts `command`, called `name` in messages.
    pub(crate) fn spawn(name: &str, mut command: Command) -> Result<Self, Error> {
        let parent = getpid();
        let stay_with_parent = move || -> io::Result<()> {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may be gone already.
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
                // Nothing can be done about a child that cannot be ended.
                let _ = child.kill().and_then(|()| child.wait().map(drop));
                Err(failed(e))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // Fails only if it has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it ends, at most until `deadline`; `None` if it goes on.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Result<Option<ExitStatus>, Error> {
        let is_over = wait_readable(&self.pidfd, deadline).map_err(Error::io("cannot wait"))?;
        if !is_over {
            return Ok(None);
        }
        self.child.wait().map(Some).map_err(Error::io(format!("cannot wait for {}", self.name)))
    }

    /// The next line it prints, without its end; what there is of it at `deadline` or its end.
    pub(crate) fn read_line(&mut self, deadline: Instant) -> Result<String, Error> {
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

    /// Standard input, if it was piped and not taken before.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A child whose output is collected while it runs.
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
        let (out, err) = (child.child.stdout.take(), child.child.stderr.take());
        Ok(Self {
            child,
            out: std::thread::spawn(move || collect(out)),
            err: std::thread::spawn(move || collect(err)),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until it ends, at most until `deadline`; whether it ended.
    pub(crate) fn has_ended_by(&mut self, deadline: Instant) -> Result<bool, Error> {
        wait_readable(&self.child.pidfd, deadline).map_err(Error::io("cannot wait"))
    }

    /// What it wrote to standard output. A failure carries the last thing it said.
    pub(crate) fn finish(mut self, deadline: Instant) -> Result<String, Error> {
        let name = self.child.name.clone();
        let status = self.child.wait_until(deadline)?;
        self.child.kill();
        let [out, err] = [self.out, self.err].map(|thread| thread.join().unwrap_or_default());
        let last_words = || {
            let said = out.lines().chain(err.lines()).rfind(|line| !line.trim().is_empty());
            said.map_or(String::new(), |line| format!(": {}", line.trim()))
        };
        match status {
            Some(status) if status.success() => Ok(out),
            Some(status) => Err(Error::Failed(format!("{name}: {status}{}", last_words()))),
            None => Err(Error::Failed(format!("{name} did not end in time{}", last_words()))),
        }
    }
}

/// User CPU time of all children of ours that have ended and that we have waited for.
pub(crate) fn user_time_of_ended_children() -> Result<Duration, Error> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is writable.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    if rc != 0 {
        return Err(Error::io("getrusage")(io::Error::last_os_error()));
    }
    // SAFETY: all of it is numbers, which zeroes are too.
    let time = unsafe { usage.assume_init() }.ru_utime;
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    Ok(seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)))
}

/// Waits until `fd` is readable or hung up; false if `deadline` comes first.
fn wait_readable(fd: impl rustix::fd::AsFd, deadline: Instant) -> io::Result<bool> {
    let fd: BorrowedFd<'_> = fd.as_fd();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timespec(left))) {
            Ok(n) => return Ok(n != 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Lets time pass, where time is what is measured or paced and not a stand-in for an event.
#[expect(clippy::disallowed_methods, reason = "the passing of time is the event")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn timespec(d: Duration) -> Timespec {
    Timespec {
        tv_sec: d.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
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
        let good = Collected::spawn("good", shell("echo one; echo two")).unwrap();
        assert_eq!(good.finish(soon()).unwrap(), "one\ntwo\n");
        let bad = Collected::spawn("bad", shell("echo out; echo why >&2; exit 3")).unwrap();
        assert_eq!(bad.finish(soon()).unwrap_err().to_string(), "bad: exit status: 3: why");
    }

    #[test]
    fn a_child_that_goes_on_is_killed_and_reaped() {
        let slow = Collected::spawn("slow", shell("exec cat /dev/zero >/dev/null")).unwrap();
        let pid = slow.child.pid();
        let late = slow.finish(Instant::now()).unwrap_err();
        assert_eq!(late.to_string(), "slow did not end in time");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let missing = Collected::spawn("netperf", Command::new("/no/such/netperf")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot run netperf: no such file or directory");
    }
}
