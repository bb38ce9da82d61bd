//! `rsock run`: becomes the program, with the library preloaded. Nothing else stays behind.

use crate::error::Error;
use crate::library;
use clap::ValueHint;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Run a program over rsock
///
/// Sets LD_PRELOAD and becomes the program; plain LD_PRELOAD=librsock_preload.so does the same.
/// Connections whose other end runs rsock too move to shared memory, all others stay on TCP.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Microseconds that a waiting call spins before it sleeps [default: adapts]
    #[arg(long, value_name = "US")]
    spin_us: Option<u32>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM [ARGS]",
        value_hint = ValueHint::CommandWithArguments
    )]
    program: Vec<OsString>,
}

/// Returns only if the program could not be started.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let library = library::find()?;
    let Some((name, rest)) = args.program.split_first() else {
        return Err(Error::Usage("no program given".into()));
    };
    let failed = |source| Error::Program { program: name.to_string_lossy().into_owned(), source };
    let program = resolve(name, env::var_os("PATH").as_deref()).map_err(failed)?;
    let mut command = Command::new(program);
    command.arg0(name).args(rest);
    command.env(library::preload_env(), library::preload_value(&library));
    if let Some(spin_us) = args.spin_us {
        command.env(library::SPIN_ENV, spin_us.to_string());
    }
    let source = command.exec();
    Err(failed(source))
}

/// Finds a program as `execvp(3)` does, but says why it cannot be used.
fn resolve(name: &OsStr, path: Option<&OsStr>) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        check(Path::new(name))?;
        return Ok(name.into());
    }
    if name.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut problem = io::Error::from_raw_os_error(libc::ENOENT);
    for dir in env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        // An empty element means the working directory, and `execv` needs a slash.
        let file =
            if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match check(&file) {
            Ok(()) => return Ok(file),
            Err(e) if e.raw_os_error() == Some(libc::EACCES) => problem = e,
            Err(_) => {}
        }
    }
    Err(problem)
}

fn check(file: &Path) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.is_dir() || meta.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_the_path_and_a_missing_one_is_not() {
        let path = Some(OsStr::new("/nonexistent:/bin:/usr/bin"));
        assert!(resolve(OsStr::new("sh"), path).unwrap().ends_with("sh"));
        let missing = resolve(OsStr::new("no-such-program-here"), path).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        let not_executable = resolve(OsStr::new("/etc/passwd"), path).unwrap_err();
        assert_eq!(not_executable.raw_os_error(), Some(libc::EACCES));
        assert!(resolve(OsStr::new("/etc"), path).is_err());
    }
}
