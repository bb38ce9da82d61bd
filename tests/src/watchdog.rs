//! A limit on how long a test may hang.

use std::io::Write;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Ends the whole test process with an abort unless it is dropped in time.
///
/// It is no measurement: give it many times what the test needs on a loaded machine. An abort
/// leaves the test's children to die of their closed connections, so kill what would not
/// ([`Running`](crate::Running) does).
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches until dropped, for at most `limit`.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        let (alive, watched) = mpsc::channel::<()>();
        let test = thread::current().name().unwrap_or("a test").to_owned();
        thread::spawn(move || {
            if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // The harness captures the print macros' output, and an abort would lose it.
                let text = format!("watchdog: {test} hangs after {limit:?}\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
                process::abort();
            }
        });
        Self { _alive: alive }
    }
}

/// Waits until `is_meant` holds. Between two looks it leaves the CPU to what it waits for; a
/// [`Watchdog`] of the caller's ends a wait in vain.
pub fn await_that(mut is_meant: impl FnMut() -> bool) {
    while !is_meant() {
        thread::park_timeout(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// What the watched process does: hangs if told so by its environment.
    #[test]
    fn hanging_child() {
        if env::var_os("RSOCK_TEST_HANG").is_some() {
            let _watchdog = Watchdog::new(Duration::from_millis(50));
            loop {
                thread::park();
            }
        }
        drop(Watchdog::new(Duration::from_secs(3600)));
    }

    #[test]
    fn a_hanging_test_is_aborted_by_name() {
        let out = Command::new(env::current_exe().unwrap())
            .args(["--exact", "watchdog::tests::hanging_child"])
            .env("RSOCK_TEST_HANG", "1")
            .output()
            .unwrap();
        assert_eq!(out.status.signal(), Some(6));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("hanging_child hangs"), "{said}");
    }
}
