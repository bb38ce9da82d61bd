//! Finds programs: a user's as `execvp(3)` does, and rsock's own beside this one first.

use crate::error::Error;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Finds a program as `execvp(3)` does, and says why it cannot be used.
pub(crate) fn find(name: &OsStr) -> io::Result<PathBuf> {
    find_in(name, env::var_os("PATH").as_deref())
}

/// Finds a program of rsock's: beside this one, then in `PATH`.
pub(crate) fn find_own(name: &'static str) -> Result<PathBuf, Error> {
    let dir = own_dir()?;
    let beside = dir.join(name);
    if check(&beside).is_ok() {
        return Ok(beside);
    }
    find(name.as_ref()).map_err(|_| Error::NoProgram { name, beside: dir.display().to_string() })
}

/// The directory of this program, with symbolic links resolved.
pub(crate) fn own_dir() -> Result<PathBuf, Error> {
    let exe = env::current_exe().and_then(|exe| exe.canonicalize());
    let exe = exe.map_err(Error::io("cannot tell where this program is"))?;
    Ok(exe.parent().unwrap_or(Path::new("/")).to_owned())
}

fn find_in(name: &OsStr, path: Option<&OsStr>) -> io::Result<PathBuf> {
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

/// Checks that a file is there and can be executed.
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
        assert!(find_in(OsStr::new("sh"), path).unwrap().ends_with("sh"));
        let missing = find_in(OsStr::new("no-such-program-here"), path).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        let not_executable = find_in(OsStr::new("/etc/passwd"), path).unwrap_err();
        assert_eq!(not_executable.raw_os_error(), Some(libc::EACCES));
        assert!(find_in(OsStr::new("/etc"), path).is_err());
    }

    #[test]
    fn a_program_of_ours_that_is_missing_is_named_with_the_way_to_get_it() {
        let message = find_own("rsock-no-such-program").unwrap_err().to_string();
        assert!(message.starts_with("cannot find rsock-no-such-program in "), "{message}");
        assert!(message.contains("cargo build --release -p rsock-no-such-program"), "{message}");
    }
}
