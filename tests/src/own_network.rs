//! A network that a test has for itself.

use crate::{Running, assert_worked};
use std::env;
use std::process::{Command, Stdio};

/// Runs `test`, called `name`, in a process of its own that is root of a fresh network namespace,
/// in which no interface is up.
///
/// # Panics
/// If the test fails, or the machine lacks user namespaces or `unshare`.
pub fn in_own_network(name: &str, test: impl FnOnce()) {
    const IS_ALONE: &str = "RSOCK_TEST_IS_ALONE";
    if env::var_os(IS_ALONE).is_some() {
        return test();
    }
    let mut again = Command::new("unshare");
    again.args(["--net", "--map-root-user"]).arg(env::current_exe().expect("this program"));
    again.args([name, "--exact", "--nocapture"]).env(IS_ALONE, "1");
    again.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let out = Running::spawn(&mut again).expect("it starts").output().expect("it ends");
    let said = assert_worked(name, &out);
    assert!(said.contains("1 passed"), "{name} was not run:\n{said}");
}
