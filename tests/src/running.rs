//! A child process that does not outlive the test.

use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Output};

/// A started program, killed and reaped when dropped unless it was waited for.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
}

impl Running {
    /// Starts `command`.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: Some(command.spawn()?) })
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
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn dropping_kills_and_reaps() {
        let running = Running::spawn(Command::new("sleep").arg("1000")).unwrap();
        let pid = running.id();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(running);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn waiting_gives_the_status() {
        let status = Running::spawn(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(status.wait().unwrap().code(), Some(3));
    }
}
