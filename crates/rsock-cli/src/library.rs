//! The preload library: where it is, and the environment in which a program starts with it.

use crate::error::Error;
use crate::program;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The variable that lists the libraries which the dynamic linker loads first.
pub const PRELOAD_ENV: &str = "LD_PRELOAD";

/// Microseconds that a waiting call spins before it sleeps.
pub(crate) const SPIN_ENV: &str = "RSOCK_SPIN_US";

/// The library for unmodified programs.
const NAME: &str = "librsock_preload.so";
/// The library with the rsocket(3) interface.
const C_NAME: &str = "librsock.so";
/// The variable that names the preload library; no place is searched then.
const PATH_ENV: &str = "RSOCK_PRELOAD";

/// Returns the preload library's absolute path: `RSOCK_PRELOAD`, or beside this executable as cargo
/// leaves it, or where a package puts it: Debian has a directory for each architecture, others
/// `lib64` or `lib`.
///
/// # Errors
/// If it is not there, or the dynamic linker could not load it.
pub fn find() -> Result<PathBuf, Error> {
    usable(match env::var_os(PATH_ENV).filter(|value| !value.is_empty()) {
        Some(named) => PathBuf::from(named),
        None => search(NAME)?,
    })
}

/// Returns the absolute path of the library with the rsocket(3) interface, from the same places.
///
/// # Errors
/// As [`find`].
pub fn find_c() -> Result<PathBuf, Error> {
    usable(search(C_NAME)?)
}

/// Returns the absolute path if the dynamic linker can load what is there.
fn usable(path: PathBuf) -> Result<PathBuf, Error> {
    let path = path.canonicalize().map_err(Error::file("use the library", &path))?;
    if !path.is_file() {
        return Err(Error::Usage(format!("{} is not a library file", path.display())));
    }
    // The linker would only warn, and the program would run without the library.
    std::fs::File::open(&path).map_err(Error::file("use the library", &path))?;
    if path.as_os_str().as_bytes().iter().any(|b| b" :".contains(b)) {
        return Err(Error::UnusablePath(path));
    }
    Ok(path)
}

/// Returns the value of `LD_PRELOAD` that loads `library` first and keeps what is there.
pub(crate) fn preload_value(library: &Path) -> OsString {
    prepend(library.as_os_str(), env::var_os(PRELOAD_ENV).as_deref())
}

fn search(name: &'static str) -> Result<PathBuf, Error> {
    let dir = program::own_dir()?;
    let multiarch = format!("../lib/{}-linux-gnu", env::consts::ARCH);
    let installed = ["../lib/rsock", &multiarch, "../lib64", "../lib"];
    let places: Vec<_> =
        [dir.clone()].into_iter().chain(installed.map(|place| dir.join(place))).collect();
    if let Some(found) = places.iter().map(|place| place.join(name)).find(|file| file.exists()) {
        return Ok(found);
    }
    let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    Err(Error::NoLibrary { name, looked: looked.join(", "), env: PATH_ENV })
}

fn prepend(library: &OsStr, existing: Option<&OsStr>) -> OsString {
    let mut value = library.to_owned();
    let is_separator = |b: &u8| b" :".contains(b);
    let others = existing
        .into_iter()
        .flat_map(|all| all.as_bytes().split(is_separator))
        .filter(|item| !item.is_empty() && *item != library.as_bytes());
    for other in others {
        value.push(":");
        value.push(OsStr::from_bytes(other));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_preloaded_already_follow_ours_which_appears_once() {
        let value = |existing| prepend(OsStr::new("/a/r.so"), existing);
        assert_eq!(value(None), "/a/r.so");
        assert_eq!(value(Some(OsStr::new(""))), "/a/r.so");
        assert_eq!(value(Some(OsStr::new("/x.so /y.so:/a/r.so"))), "/a/r.so:/x.so:/y.so");
    }
}
