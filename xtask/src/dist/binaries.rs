//! Builds what the packages hold, and finds out what it needs at run time.

use super::dependencies::Dependencies;
use crate::steps::{self, Done, Failure};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// The built files.
#[derive(Debug)]
pub(super) struct Binaries {
    pub(super) command: PathBuf,
    pub(super) preload: PathBuf,
    pub(super) c_library: PathBuf,
}

impl Binaries {
    /// Builds them without a trace of the machine: panics name files of dependencies by their
    /// packages.
    pub(super) fn build(dependencies: &Dependencies) -> Done<Self> {
        let mut flags = given_flags();
        for dir in dependencies.source_dirs() {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.push(dir);
            flag.push("=/crates");
            flags.push(flag);
        }
        let mut build = steps::cargo();
        build.args(["build", "--profile", PROFILE, "--locked"]);
        build.args(super::PACKAGES.iter().flat_map(|package| ["--package", package]));
        // Separated by what no path has, so that paths may have spaces.
        build.env("CARGO_ENCODED_RUSTFLAGS", flags.join(&OsString::from("\u{1f}")));
        steps::run(&mut build)?;
        let dir = steps::target_dir().join(PROFILE);
        Ok(Self {
            command: dir.join("rsock"),
            preload: dir.join("librsock_preload.so"),
            c_library: dir.join("librsock.so"),
        })
    }

    /// The Debian packages that the files need, as `libc6 (>= 2.34), libgcc-s1 (>= 4.2.0)`.
    ///
    /// From the libraries that they name and the newest version of their symbols that they use; so
    /// they run wherever these versions are, which is mostly on older systems than this one.
    pub(super) fn depends(&self) -> Done<String> {
        let mut needs = Needs::default();
        for file in [&self.command, &self.preload, &self.c_library] {
            let mut readelf = Command::new("readelf");
            readelf.env("LC_ALL", "C").args(["--wide", "--dynamic", "--version-info"]).arg(file);
            needs.read(&steps::quiet(&mut readelf)?)?;
        }
        Ok(needs.to_string())
    }

    /// The shared library's soname.
    pub(super) fn soname(&self) -> Done<String> {
        let mut readelf = Command::new("readelf");
        readelf.env("LC_ALL", "C").args(["--wide", "--dynamic"]).arg(&self.c_library);
        let dynamic = steps::quiet(&mut readelf)?;
        let soname = dynamic.lines().find(|line| line.contains("(SONAME)")).and_then(in_brackets);
        soname.map(str::to_owned).ok_or_else(|| Failure::new("librsock.so has no soname"))
    }
}

/// Flags for the compiler that the environment has already.
fn given_flags() -> Vec<OsString> {
    let text = |name| env::var(name).ok().filter(|flags: &String| !flags.is_empty());
    match (text("CARGO_ENCODED_RUSTFLAGS"), text("RUSTFLAGS")) {
        (Some(encoded), _) => encoded.split('\u{1f}').map(OsString::from).collect(),
        (None, Some(plain)) => plain.split_whitespace().map(OsString::from).collect(),
        (None, None) => Vec::new(),
    }
}

/// Debian packages, with the least version of each.
#[derive(Debug, Default)]
struct Needs(BTreeMap<&'static str, Vec<u32>>);

impl Needs {
    /// Takes in what `readelf --dynamic --version-info` says of a file.
    fn read(&mut self, text: &str) -> Done {
        for line in text.lines() {
            if line.contains("(NEEDED)") {
                let name = in_brackets(line).unwrap_or_default();
                let library = LIBRARIES.iter().find(|library| name.starts_with(library.file));
                let library = library
                    .ok_or_else(|| Failure::new(format!("no Debian package known for {name}")))?;
                self.0.entry(library.package).or_default();
            } else if line.contains("Flags:")
                && let Some((_, symbol)) = line.split_once("Name: ")
            {
                let name = symbol.split_whitespace().next().unwrap_or_default();
                self.symbols(name)?;
            }
        }
        Ok(())
    }

    fn symbols(&mut self, name: &str) -> Done {
        let unknown = || Failure::new(format!("no Debian package known for the symbols {name}"));
        let (family, version) = name.split_once('_').ok_or_else(unknown)?;
        let library = LIBRARIES.iter().find(|library| library.symbols == family);
        let library = library.ok_or_else(unknown)?;
        // A way of relocating, which has a name in the place of a number.
        let version = if version == "ABI_DT_RELR" { "2.36" } else { version };
        let version: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
        let least = self.0.entry(library.package).or_default();
        *least = version.ok_or_else(unknown)?.max(std::mem::take(least));
        Ok(())
    }
}

impl std::fmt::Display for Needs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let packages = self.0.iter().map(|(package, version)| {
            let version: Vec<String> = version.iter().map(u32::to_string).collect();
            match &version[..] {
                [] => (*package).to_owned(),
                version => format!("{package} (>= {})", version.join(".")),
            }
        });
        f.write_str(&packages.collect::<Vec<_>>().join(", "))
    }
}

/// What readelf puts into square brackets.
fn in_brackets(line: &str) -> Option<&str> {
    Some(line.split_once('[')?.1.split_once(']')?.0)
}

/// A library, the Debian package that has it, and what the versions of its symbols begin with.
struct Library {
    file: &'static str,
    package: &'static str,
    symbols: &'static str,
}

const LIBRARIES: [Library; 4] = [
    Library { file: "libc.so.", package: "libc6", symbols: "GLIBC" },
    Library { file: "libm.so.", package: "libc6", symbols: "GLIBC" },
    Library { file: "ld-linux-", package: "libc6", symbols: "GLIBC" },
    Library { file: "libgcc_s.so.", package: "libgcc-s1", symbols: "GCC" },
];

/// Cargo.toml says what it is.
const PROFILE: &str = "packaged";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbols_decide() {
        let mut needs = Needs::default();
        let text = " 0x01 (NEEDED)  Shared library: [libgcc_s.so.1]\n \
                    0x01 (NEEDED)  Shared library: [libm.so.6]\n \
                    0x10:   Name: GLIBC_2.9  Flags: none  Version: 4\n \
                    0x20:   Name: GLIBC_2.34  Flags: none  Version: 5\n \
                    0x30:   Name: GLIBC_2.4  Flags: none  Version: 6\n";
        needs.read(text).unwrap();
        assert_eq!(needs.to_string(), "libc6 (>= 2.34), libgcc-s1");
        needs.symbols("GLIBC_ABI_DT_RELR").unwrap();
        assert_eq!(needs.to_string(), "libc6 (>= 2.36), libgcc-s1");
        assert!(needs.read(" (NEEDED) Shared library: [libz.so.1]").is_err());
        assert!(needs.symbols("GLIBC_PRIVATE").is_err());
    }
}
