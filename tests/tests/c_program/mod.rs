//! The C programs of `tests/c`, compiled for the tests that run them.

use rsock_tests::tools;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The C program `name`, compiled once for each test executable; a shared library if `name` ends
/// so. `name.static` contains the library that `name` is linked with.
pub(crate) fn compiled(name: &str) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = done.get_or_insert_default();
    done.entry(name.to_owned()).or_insert_with(|| compile(name)).clone()
}

fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name).with_extension("c");
    let shared: &[&str] = if name.ends_with(".so") { &["-shared", "-fPIC"] } else { &[] };
    let libraries = match name {
        "uring" => tools::library_flags("-luring"),
        "uring.static" => tools::library_flags("-l:liburing.a"),
        "uv_echo" => tools::library_flags("-luv"),
        _ => Vec::<OsString>::new(),
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    fs::create_dir_all(&dir).expect("a directory in the target directory");
    // Under a name of its own first: other tests may be running the old one.
    let fresh = dir.join(format!("{name}.{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-D_FORTIFY_SOURCE=2", "-pthread"])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"])
        .args(shared)
        .arg(source)
        .arg("-o")
        .arg(&fresh)
        .args(libraries)
        .status()
        .expect("`cc` runs");
    assert!(status.success(), "compiling {name} failed");
    let program = dir.join(name);
    fs::rename(&fresh, &program).expect("renaming within a directory");
    program
}
