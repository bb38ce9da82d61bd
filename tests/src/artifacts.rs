//! What the workspace builds for the tests to run: the two shared libraries and the commands.
//!
//! `cargo xtask test` builds them first and names their directory in `RSOCK_ARTIFACTS`. A test
//! started in another way builds them itself, once per process, so that it never meets stale ones.

use std::env;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// `librsock.so`, the rsocket(3) interface.
#[must_use]
pub fn c_library() -> PathBuf {
    artifact("librsock.so")
}

/// The directory for `-L` and `LD_LIBRARY_PATH` of programs linked to `librsock.so`: it has the
/// library by its soname, too.
///
/// # Panics
/// If the link with that name cannot be made.
#[must_use]
pub fn c_library_dir() -> PathBuf {
    let library = c_library();
    let by_soname = library.with_file_name("librsock.so.0");
    match symlink("librsock.so", &by_soname) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => panic!("{}: {e}", by_soname.display()),
    }
    library.parent().expect("the library lies in a directory").to_owned()
}

/// `librsock_preload.so`, for unmodified programs.
#[must_use]
pub fn preload_library() -> PathBuf {
    artifact("librsock_preload.so")
}

/// The `rsock` command, with `rsock-compare` beside it.
#[must_use]
pub fn rsock_command() -> PathBuf {
    artifact("rsock")
}

/// cargo's target directory: this test was built in `TARGET/PROFILE/deps`.
pub(crate) fn target_dir() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.ancestors().nth(3)?.to_owned())
}

fn artifact(name: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let path = DIR.get_or_init(dir).join(name);
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

fn dir() -> PathBuf {
    env::var_os("RSOCK_ARTIFACTS").map_or_else(build, PathBuf::from)
}

/// Builds them as `cargo xtask test` does.
fn build() -> PathBuf {
    let target = target_dir().expect("a test's executable lies in the target directory");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--profile", PROFILE, "--manifest-path"])
        .arg(manifest)
        .args(["-p", "rsock-capi", "-p", "rsock-preload", "-p", "rsock-cli", "-p", "rsock-compare"])
        .arg("--target-dir")
        .arg(&target)
        .stdin(Stdio::null())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "building the libraries and the commands failed: {status}");
    target.join(PROFILE)
}

/// Optimised, with assertions and overflow checks on.
const PROFILE: &str = "checked";
