//! Programs of others that rows are measured with: where they are.

mod postgres;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) use postgres::Postgres;

/// The variable that names a directory in which packages were unpacked.
const DIRECTORY_ENV: &str = "RSOCK_TOOLS";

/// The programs that were found.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) netperf: Option<Program>,
    pub(super) netserver: Option<Program>,
    pub(super) iperf3: Option<Program>,
    pub(super) rstream: Option<Program>,
    pub(super) redis_server: Option<Program>,
    pub(super) redis_benchmark: Option<Program>,
    pub(super) redis_cli: Option<Program>,
    pub(super) memcached: Option<Program>,
    pub(super) memcaslap: Option<Program>,
    pub(super) ab: Option<Program>,
    pub(super) nginx: Option<Program>,
    pub(super) haproxy: Option<Program>,
    pub(super) wrk: Option<Program>,
    /// The programs of PostgreSQL, or why they cannot be run.
    pub(super) postgres: Result<Postgres, String>,
    pub(super) python3: Option<Program>,
    pub(super) node: Option<Program>,
    pub(super) java: Option<Program>,
    pub(super) ib_write_lat: Option<Program>,
    pub(super) ib_write_bw: Option<Program>,
    pub(super) ib_send_lat: Option<Program>,
    /// `rdma` of iproute2, which lists the kernel's RDMA identifiers.
    pub(super) rdma: Option<Program>,
    /// librdmacm's preload library, which gives programs its rsockets.
    pub(super) librspreload: Option<PathBuf>,
}

/// One program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    path: PathBuf,
    /// Directories of its libraries, if those are not the system's.
    libraries: Option<OsString>,
    /// Variables that it must not see.
    hidden: &'static [&'static str],
}

impl Programs {
    /// Looks in `RSOCK_TOOLS`, then in `PATH`.
    pub(super) fn find() -> Self {
        let root = env::var_os(DIRECTORY_ENV).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<_> = env::split_paths(&path).collect();
        let find = |name| Program::find(name, root.as_deref(), &dirs);
        Self {
            netperf: find("netperf"),
            netserver: find("netserver"),
            iperf3: find("iperf3"),
            rstream: find("rstream"),
            redis_server: find("redis-server"),
            redis_benchmark: find("redis-benchmark"),
            redis_cli: find("redis-cli"),
            memcached: find("memcached"),
            memcaslap: find("memcaslap"),
            ab: find("ab"),
            nginx: find("nginx"),
            haproxy: find("haproxy"),
            wrk: find("wrk"),
            postgres: Postgres::find(root.as_deref(), &dirs),
            python3: find("python3").map(Program::without_python_settings),
            node: find("node"),
            java: find("java"),
            ib_write_lat: find("ib_write_lat"),
            ib_write_bw: find("ib_write_bw"),
            ib_send_lat: find("ib_send_lat"),
            rdma: find("rdma"),
            librspreload: find_librspreload(root.as_deref()),
        }
    }

    /// Names of those that every comparison needs, and that were not found.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        missing([
            ("netperf", self.netperf.is_some()),
            ("netserver", self.netserver.is_some()),
            ("iperf3", self.iperf3.is_some()),
        ])
    }

    /// Names of those that rows about an RDMA device need, and that were not found.
    pub(super) fn missing_for_device(&self) -> Vec<&'static str> {
        missing([
            ("rstream", self.rstream.is_some()),
            ("ib_write_lat", self.ib_write_lat.is_some()),
            ("ib_write_bw", self.ib_write_bw.is_some()),
            ("ib_send_lat", self.ib_send_lat.is_some()),
            ("rdma", self.rdma.is_some()),
            (LIBRSPRELOAD, self.librspreload.is_some()),
        ])
    }
}

fn missing<const N: usize>(found: [(&'static str, bool); N]) -> Vec<&'static str> {
    found.into_iter().filter(|(_, is_found)| !is_found).map(|(name, _)| name).collect()
}

impl Program {
    /// Returns a command that runs it.
    pub(super) fn command(&self) -> Command {
        self.command_below(&self.path)
    }

    /// Returns a command for another program, which runs this one.
    pub(super) fn command_below(&self, runner: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(runner);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        for variable in self.hidden {
            command.env_remove(variable);
        }
        command
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An unpacked Python has its library beside it; these lead to that of another.
    fn without_python_settings(self) -> Self {
        match self.libraries {
            Some(_) => Self { hidden: &["PYTHONHOME", "PYTHONPATH"], ..self },
            None => self,
        }
    }

    fn find(name: &str, root: Option<&Path>, path: &[PathBuf]) -> Option<Self> {
        let unpacked = root.and_then(|root| {
            let bins = ["usr/bin", "usr/sbin", "bin", "sbin"].map(|bin| root.join(bin));
            Self::find_in(name, &bins, Some(root))
        });
        unpacked.or_else(|| Self::find_in(name, path, None))
    }

    /// Looks in directories, which are below `root` if they were unpacked there.
    fn find_in(name: &str, dirs: &[PathBuf], root: Option<&Path>) -> Option<Self> {
        let path = dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())?;
        Some(Self { path, libraries: root.map(library_path), hidden: &[] })
    }
}

/// Looks for librdmacm's preload library where packages put it, unpacked or installed.
fn find_librspreload(root: Option<&Path>) -> Option<PathBuf> {
    let unpacked = root.into_iter().flat_map(|root| [root.join("root/usr"), root.join("usr")]);
    let installed = [PathBuf::from("/usr"), PathBuf::from("/usr/local")];
    let mut found = unpacked.chain(installed).flat_map(|prefix| {
        let lib = prefix.join("lib");
        let inner = lib.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        let inner = inner.filter(|dir| dir.to_string_lossy().ends_with("-linux-gnu"));
        let dirs: Vec<_> = [prefix.join("lib64"), lib].into_iter().chain(inner).collect();
        dirs.into_iter().map(|dir| dir.join("rsocket").join(LIBRSPRELOAD))
    });
    found.find(|file| file.is_file())
}

/// The file name of librdmacm's preload library.
const LIBRSPRELOAD: &str = "librspreload.so";

/// Library directories under `root`, before those of the environment.
fn library_path(root: &Path) -> OsString {
    let mut dirs = Vec::new();
    for lib in [root.join("usr/lib"), root.join("lib")] {
        // The multiarch directory, whose name depends on the processor.
        let inner = lib.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        dirs.extend(inner.filter(|dir| dir.to_string_lossy().ends_with("-linux-gnu")));
        dirs.push(lib);
    }
    let existing = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    dirs.extend(env::split_paths(&existing).filter(|dir| !dir.as_os_str().is_empty()));
    env::join_paths(dirs).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn unpacked_programs_precede_installed_ones_and_have_their_own_libraries() {
        let root = env::temp_dir().join(format!("rsock-tools-{}", std::process::id()));
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::create_dir_all(root.join("usr/lib/some-linux-gnu")).unwrap();
        fs::write(root.join("usr/bin/sh"), "").unwrap();
        let path = [PathBuf::from("/nonexistent"), PathBuf::from("/bin")];
        let unpacked = Program::find("sh", Some(&root), &path);
        let installed = Program::find("sh", None, &path);
        let missing = Program::find("no-such-program", Some(&root), &path);
        fs::remove_dir_all(&root).unwrap();
        let unpacked = unpacked.unwrap();
        assert_eq!(unpacked.path, root.join("usr/bin/sh"));
        let libraries = unpacked.libraries.unwrap();
        let first = env::split_paths(&libraries).next().unwrap();
        assert_eq!(first, root.join("usr/lib/some-linux-gnu"));
        let installed = installed.unwrap();
        assert_eq!((installed.path, installed.libraries), (PathBuf::from("/bin/sh"), None));
        assert_eq!(missing, None);
    }
}
