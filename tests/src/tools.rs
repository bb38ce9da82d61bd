//! The real programs that the tests run: netperf, iperf3, rstream, python3 and so on.
//!
//! `cargo xtask tools` fetches them into `target/tools`; `RSOCK_TOOLS` may name another directory
//! laid out the same way (`bin/` with the programs, `lib/` with their libraries, and the same in
//! `large/` for those that only `cargo xtask test --all` fetches). A program that is not there is
//! looked up in `PATH`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, and where its libraries are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The program's file.
    pub path: PathBuf,
    /// What `LD_LIBRARY_PATH` must be; `None` for a program that is installed on the machine.
    pub lib_path: Option<PathBuf>,
}

impl Tool {
    /// A command that runs it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(lib_path) = &self.lib_path {
            command.env("LD_LIBRARY_PATH", lib_path);
            // They lead to the files of the machine's own interpreter.
            command.env_remove("PYTHONHOME").env_remove("PYTHONPATH");
        }
        command
    }
}

/// A program that needs nothing beside it.
impl<P: AsRef<Path> + ?Sized> From<&P> for Tool {
    fn from(path: &P) -> Self {
        Self { path: path.as_ref().to_owned(), lib_path: None }
    }
}

/// Looks for a program.
#[must_use]
pub fn find(name: &str) -> Option<Tool> {
    all(name).next()
}

/// Each place where a program is: those that were fetched, then the first one of `PATH`.
pub fn all(name: &str) -> impl Iterator<Item = Tool> {
    let fetched = directory().into_iter().flat_map(|dir| [dir.clone(), dir.join("large")]);
    let fetched: Vec<Tool> = fetched.filter_map(|dir| find_in(&dir, name)).collect();
    fetched.into_iter().chain(find_on_path(name))
}

/// Looks for a program that the calling test cannot do without.
///
/// # Panics
/// If it is nowhere, saying how to get it: a test that did not run must not pass.
#[must_use]
pub fn require(name: &str) -> Tool {
    find(name).unwrap_or_else(|| {
        panic!("`{name}` is needed and not there: `cargo xtask tools` fetches it")
    })
}

/// Flags for a C compiler that uses a fetched library, `-lNAME` for example. Where none was
/// fetched, the machine's own is used.
#[must_use]
pub fn library_flags(library: &str) -> Vec<OsString> {
    let mut flags = Vec::new();
    if let Some(root) = directory().map(|dir| dir.join("root/usr"))
        && let Ok(places) = root.join("lib").read_dir()
    {
        flags.extend(["-isystem".into(), root.join("include").into()]);
        for place in places.filter_map(Result::ok).map(|entry| entry.path()) {
            if place.to_string_lossy().ends_with("-linux-gnu") {
                for flag in ["-L", "-Wl,-rpath,"] {
                    let mut flag = OsString::from(flag);
                    flag.push(&place);
                    flags.push(flag);
                }
            }
        }
    }
    flags.push(library.into());
    flags
}

/// Where the fetched programs are or should be.
fn directory() -> Option<PathBuf> {
    env::var_os("RSOCK_TOOLS").map(PathBuf::from).or_else(default_dir)
}

fn find_in(dir: &Path, name: &str) -> Option<Tool> {
    let path = dir.join("bin").join(name);
    path.is_file().then(|| Tool { path, lib_path: Some(dir.join("lib")) })
}

fn find_on_path(name: &str) -> Option<Tool> {
    let path = env::var_os("PATH")?;
    let path = env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())?;
    Some(Tool { path, lib_path: None })
}

/// `tools` in cargo's target directory.
fn default_dir() -> Option<PathBuf> {
    Some(crate::artifacts::target_dir()?.join("tools"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn a_program_of_the_machine_is_found_and_an_unknown_one_is_not() {
        let shell = find("sh").unwrap();
        assert_eq!(shell.lib_path, None);
        assert!(shell.command().args(["-c", "exit 0"]).status().unwrap().success());
        assert_eq!(find("no-program-has-this-name"), None);
    }

    #[test]
    fn a_fetched_program_runs_with_its_own_libraries() {
        let out = require("iperf3").command().arg("--version").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(String::from_utf8_lossy(&out.stdout).starts_with("iperf 3"));
    }

    #[test]
    fn python_has_the_modules_that_scripts_import() {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let mut modules = BTreeSet::new();
        for script in scripts.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            if script.extension().is_some_and(|ext| ext == "py") {
                let text = fs::read_to_string(&script).unwrap();
                let imported = text.lines().filter_map(|line| line.strip_prefix("import "));
                modules.extend(imported.map(str::to_owned));
            }
        }
        assert!(modules.contains("socket"), "{modules:?}");
        let modules = Vec::from_iter(modules).join(", ");
        let out = require("python3").command().arg("-c").arg(format!("import {modules}")).output();
        crate::assert_worked("python3", &out.unwrap());
    }
}
