//! The real programs that the tests and `rsock compare` run, fetched once into `target/tools` with
//! the libraries they need, and run from there.
//!
//! ```text
//! target/tools/root   the packages' files, as unpacked
//! target/tools/bin    one link per program                  } what RSOCK_TOOLS=target/tools
//! target/tools/lib    one link per shared library           } promises: PATH and LD_LIBRARY_PATH
//! target/tools/stamp  what was fetched: while it fits, nothing is asked of the network
//! target/tools/large  the same for programs of [`large`]
//! ```

pub(crate) mod large;

use crate::apt::{self, Apt};
use crate::steps::{self, Done, Failure};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the programs available and returns the directory for `RSOCK_TOOLS`.
///
/// # Errors
/// Names what is missing where apt or the network is.
pub(crate) fn fetch() -> Done<PathBuf> {
    let dir = dir();
    if fs::read_to_string(dir.join("stamp")).is_ok_and(|found| found == stamp()) {
        check(&dir)?;
        return Ok(dir);
    }
    let fresh = dir.with_extension("new");
    steps::remove(&fresh)?;
    if let Err(why) = unpack(&fresh).and_then(|()| check(&fresh)) {
        let missing: Vec<&str> = programs().filter(|name| !is_on_path(name)).collect();
        let missing = missing.join(" ");
        return Err(Failure::new(format!(
            "cannot fetch the programs that tests and measurements run: {why}\n\
             missing here: {missing}\nwhat runs one of them will fail"
        )));
    }
    write(&fresh.join("stamp"), &stamp())?;
    steps::remove(&dir)?;
    fs::rename(&fresh, &dir).map_err(|e| Failure::io(dir.display(), &e))?;
    steps::say(format!(
        "fetched {} into {}",
        programs().collect::<Vec<_>>().join(" "),
        dir.display()
    ));
    Ok(dir)
}

/// As [`fetch`], with the [`large`] ones if `all`.
pub(crate) fn fetch_and(all: bool) -> Done<PathBuf> {
    let dir = fetch()?;
    if all {
        large::fetch()?;
    }
    Ok(dir)
}

/// Where the programs are or will be.
pub(crate) fn dir() -> PathBuf {
    steps::target_dir().join("tools")
}

/// Programs that tests run and that are not fetched, because they come with a C compiler or belong
/// to every Debian: those that are not here.
pub(crate) fn missing() -> impl Iterator<Item = &'static str> {
    MACHINE.iter().copied().filter(|program| !is_on_path(program))
}

fn unpack(dir: &Path) -> Done {
    let root = dir.join("root");
    for sub in ["root", "bin", "lib"] {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).map_err(|e| Failure::io(sub.display(), &e))?;
    }
    let packages: Vec<&str> = PACKAGES.iter().map(|package| package.name).collect();
    for archive in Apt::new(&dir.join("apt"))?.fetch_with_families(&packages, &FAMILIES)? {
        apt::unpack(&archive, &root)?;
    }
    steps::remove(&dir.join("apt"))?;
    for program in programs() {
        let place = places(&root)
            .into_iter()
            .find(|place| root.join(place).join(program).is_file())
            .ok_or_else(|| Failure::new(format!("no package brought `{program}`")))?;
        link(&Path::new("../root").join(place).join(program), &dir.join("bin").join(program))?;
    }
    for place in ["usr/lib", "lib"] {
        libraries(&root.join(place), &Path::new("../root").join(place), &dir.join("lib"))?;
    }
    compile_modules(dir)
}

/// Where packages put programs, below `root`. PostgreSQL's are in a directory of their version: in
/// `usr/bin` are scripts of the same names, which look for clusters of the machine.
fn places(root: &Path) -> Vec<PathBuf> {
    let versions = Path::new("usr/lib").join(POSTGRES);
    let entries = root.join(&versions).read_dir().into_iter().flatten().flatten();
    let own = entries.map(|entry| versions.join(entry.file_name()).join("bin"));
    own.chain(["usr/bin", "bin", "usr/sbin"].map(PathBuf::from)).collect()
}

/// Compiles Python's library, as installing the packages would: a test that may not write there
/// would do so anew each time.
fn compile_modules(dir: &Path) -> Done {
    let program = dir.join("root/usr/bin").join(PYTHON);
    let program = fs::read_link(&program).map_err(|e| Failure::io(program.display(), &e))?;
    let library = dir.join("root/usr/lib").join(program);
    let mut compile = python(dir);
    compile.args(["-m", "compileall", "-q", "-j0"]).arg(&library);
    steps::quiet(&mut compile).map(drop)
}

/// The fetched Python. It looks for its library beside its own file, wherever that lies.
fn python(dir: &Path) -> Command {
    let mut command = Command::new(dir.join("bin").join(PYTHON));
    command.env("LD_LIBRARY_PATH", dir.join("lib"));
    command.env_remove("PYTHONHOME").env_remove("PYTHONPATH");
    command
}

/// Links every shared library in `from` and in its architecture's directory.
fn libraries(from: &Path, shown: &Path, lib: &Path) -> Done {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries {
        let path = entry.map_err(|e| Failure::io(from.display(), &e))?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        if path.is_dir() && name.ends_with("-linux-gnu") {
            libraries(&path, &shown.join(name), lib)?;
        } else if name.starts_with("lib") && name.contains(".so") {
            link(&shown.join(name), &lib.join(name))?;
        }
    }
    Ok(())
}

/// Every program is there and finds every library.
fn check(dir: &Path) -> Done {
    for program in programs() {
        let path = dir.join("bin").join(program);
        let found =
            steps::quiet(Command::new("ldd").arg(&path).env("LD_LIBRARY_PATH", dir.join("lib")))?;
        if let Some(line) = found.lines().find(|line| line.contains("not found")) {
            return Err(Failure::new(format!("{program}: {}", line.trim())));
        }
    }
    let found =
        steps::quiet(python(dir).args(["-c", "import ctypes, socket; print(ctypes.__file__)"]))?;
    let root = fs::canonicalize(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    if !Path::new(found.trim()).starts_with(&root) {
        return Err(Failure::new(format!("{PYTHON}: its library is at {}", found.trim())));
    }
    Ok(())
}

/// What a finished directory's stamp says.
fn stamp() -> String {
    let packages: Vec<&str> = PACKAGES.iter().map(|package| package.name).collect();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = release.lines().find(|line| line.starts_with("VERSION_CODENAME="));
    format!("layout 1\n{}\n{}\n", release.unwrap_or("VERSION_CODENAME="), packages.join(" "))
}

fn programs() -> impl Iterator<Item = &'static str> {
    PACKAGES.iter().flat_map(|package| package.programs.iter().copied())
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn link(target: &Path, at: &Path) -> Done {
    symlink(target, at).map_err(|e| Failure::io(at.display(), &e))
}

fn write(path: &Path, text: &str) -> Done {
    fs::write(path, text).map_err(|e| Failure::io(path.display(), &e))
}

const MACHINE: &[&str] =
    &["cc", "nm", "readelf", "ldd", "sh", "cp", "cat", "sleep", "unshare", "perl"];

/// The package, and its program.
const PYTHON: &str = "python3";

/// The package that depends on the release's version of the server and its clients.
const POSTGRES: &str = "postgresql";

/// Packages whose names begin like this come whole, even if the machine has some: programs find the
/// other files of their family beside themselves.
const FAMILIES: [&str; 2] = [PYTHON, POSTGRES];

/// A Debian package and the programs that we run from it.
struct Package {
    name: &'static str,
    programs: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package { name: "netperf", programs: &["netperf", "netserver"] },
    Package { name: "iperf3", programs: &["iperf3"] },
    Package { name: "sockperf", programs: &["sockperf"] },
    Package { name: "netpipe-tcp", programs: &["NPtcp"] },
    Package { name: "nuttcp", programs: &["nuttcp"] },
    Package { name: "rdmacm-utils", programs: &["rstream", "riostream", "rcopy", "udpong"] },
    Package { name: PYTHON, programs: &[PYTHON] },
    Package { name: "openssh-client", programs: &["ssh", "scp", "ssh-keygen"] },
    Package { name: "openssh-server", programs: &["sshd"] },
    Package { name: "openssh-sftp-server", programs: &[] },
    Package { name: "redis-server", programs: &["redis-server"] },
    Package { name: "redis-tools", programs: &["redis-benchmark", "redis-cli"] },
    Package { name: "memcached", programs: &["memcached"] },
    Package { name: "libmemcached-tools", programs: &["memcaslap"] },
    Package { name: POSTGRES, programs: &["postgres", "initdb", "pgbench", "pg_isready", "psql"] },
    Package { name: "nginx", programs: &["nginx"] },
    Package { name: "apache2-utils", programs: &["ab"] },
    Package { name: "haproxy", programs: &["haproxy"] },
    Package { name: "wrk", programs: &["wrk"] },
    Package { name: "socat", programs: &["socat"] },
    Package { name: "apache2-bin", programs: &["apache2"] },
    Package { name: "iproute2", programs: &["ip"] },
    // Headers and libraries that C programs of the tests are compiled with.
    Package { name: "liburing-dev", programs: &[] },
    Package { name: "liburing2", programs: &[] },
    Package { name: "libuv1-dev", programs: &[] },
    Package { name: "libuv1", programs: &[] },
    Package { name: "librdmacm1", programs: &[] },
    Package { name: "libibverbs1", programs: &[] },
];
