//! `cargo xtask dist --check`: unpacks both packages, without installing them, and uses what is
//! there; and packs the crates for a registry, without compiling them again.
//!
//! dpkg-deb and tar read what we have written, so that a mistake is not made twice.

use super::dependencies::Dependencies;
use super::{Made, Release};
use crate::apt;
use crate::steps::{self, Done, Failure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fails with the first thing that is wrong.
pub(super) fn run(
    made: &Made,
    release: &Release,
    soname: &str,
    dependencies: &Dependencies,
) -> Done {
    for needed in ["dpkg-deb", "tar", "readelf", "md5sum", "pkg-config", "cc", "bash"] {
        if !steps::is_available(needed, "--version") {
            return Err(Failure::new(format!("`{needed}` is not on this machine")));
        }
    }
    let dir = steps::target_dir().join("dist-check");
    steps::remove(&dir)?;
    let (deb, tarball) = (dir.join("deb"), dir.join("moved"));
    for dir in [&deb, &tarball] {
        fs::create_dir_all(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    }

    entries(&made.deb)?;
    apt::unpack(&made.deb, &deb)?;
    control(&made.deb, &dir, &deb)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(&made.tarball).arg("--directory").arg(&dir);
    steps::run(&mut tar)?;
    // Anywhere means anywhere.
    let unpacked = dir.join(release.directory());
    fs::remove_dir(&tarball)
        .and_then(|()| fs::rename(&unpacked, &tarball))
        .map_err(|e| Failure::io(unpacked.display(), &e))?;

    let in_debian = Unpacked {
        root: deb.join("usr"),
        libraries: deb.join("usr/lib").join(&release.multiarch),
        sysroot: Some(deb),
        scratch: dir.join("program-deb"),
    };
    let anywhere = Unpacked {
        libraries: tarball.join("lib"),
        root: tarball,
        sysroot: None,
        scratch: dir.join("program-tarball"),
    };
    for unpacked in [&in_debian, &anywhere] {
        names_no_place_of(dependencies, &unpacked.root)?;
        unpacked.library(soname, release)?;
        unpacked.command(release)?;
        unpacked.c_program()?;
    }
    anywhere.pages()?;
    anywhere.completions()?;
    crates(&dir.join("crates"), dependencies)
}

/// Every crate that may be published can be packed, and brings its licences along.
fn crates(dir: &Path, dependencies: &Dependencies) -> Done {
    let metadata = ["metadata", "--no-deps", "--format-version", "1", "--locked"];
    let metadata = steps::output(steps::cargo().args(metadata))?;
    let metadata = serde_json::from_str::<Value>(&metadata)
        .map_err(|e| Failure::new(format!("cargo metadata: {e}")))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let packages = packages.filter(|package| package["publish"].is_null());
    let names: Vec<&str> = packages.filter_map(|package| package["name"].as_str()).collect();
    let mut package = steps::cargo();
    // With what was not committed: the tree may be a developer's.
    package.args(["package", "--quiet", "--offline", "--no-verify", "--allow-dirty"]);
    package.args(names.iter().flat_map(|name| ["--package", name]));
    steps::run(package.arg("--target-dir").arg(dir))?;
    let dir = dir.join("package");
    for name in names {
        let crate_file = dir.join(format!("{name}-{}.crate", env!("CARGO_PKG_VERSION")));
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--file").arg(&crate_file).arg("--directory").arg(&dir);
        steps::quiet(&mut tar)?;
        let unpacked = crate_file.with_extension("");
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            if !unpacked.join(file).is_file() {
                return Err(Failure::new(format!("the crate {name} has no {file}")));
            }
        }
        names_no_place_of(dependencies, &unpacked)?;
    }
    Ok(())
}

/// Everything belongs to root, and has the permissions of its kind.
fn entries(deb: &Path) -> Done {
    let mut contents = Command::new("dpkg-deb");
    let contents = steps::quiet(contents.env("LC_ALL", "C").arg("--contents").arg(deb))?;
    for line in contents.lines() {
        let mut words = line.split_whitespace();
        let (mode, owner) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = line.split(" ./").nth(1).unwrap_or_default();
        let right = match mode.as_bytes().first() {
            Some(b'd') => "drwxr-xr-x",
            Some(b'l') => "lrwxrwxrwx",
            _ if path.starts_with("usr/bin/") => "-rwxr-xr-x",
            _ => "-rw-r--r--",
        };
        if owner != "root/root" || mode != right {
            return Err(Failure::new(format!("an entry that should be {right} of root: {line}")));
        }
    }
    Ok(())
}

/// The control files say what is needed and fit the files.
fn control(deb: &Path, dir: &Path, unpacked: &Path) -> Done {
    let control = dir.join("control");
    let mut extract = Command::new("dpkg-deb");
    steps::quiet(extract.arg("--control").args([deb, &control]))?;
    let mut sums = Command::new("md5sum");
    sums.args(["--check", "--quiet", "--strict"]).arg(control.join("md5sums"));
    steps::quiet(sums.current_dir(unpacked))?;
    for field in ["Package", "Version", "Maintainer", "Depends", "Description", "Installed-Size"] {
        let value = steps::quiet(Command::new("dpkg-deb").arg("--field").arg(deb).arg(field))?;
        if value.trim().is_empty() {
            return Err(Failure::new(format!("the package has no {field}")));
        }
        if field == "Depends" {
            steps::say(format!("depends on {}", value.trim()));
        }
    }
    Ok(())
}

/// Nothing below `dir` tells where it was built.
fn names_no_place_of(dependencies: &Dependencies, dir: &Path) -> Done {
    let mut places = vec![steps::root(), steps::target_dir()];
    places.extend(dependencies.source_dirs().into_iter().map(Path::to_owned));
    places.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    for file in files(dir)? {
        let bytes = super::read(&file)?;
        for place in &places {
            let place = place.as_os_str().as_encoded_bytes();
            if bytes.windows(place.len()).any(|part| part == place) {
                let place = String::from_utf8_lossy(place);
                return Err(Failure::new(format!("{} names {place}", file.display())));
            }
        }
    }
    Ok(())
}

/// An unpacked package.
struct Unpacked {
    /// Where `bin` is.
    root: PathBuf,
    libraries: PathBuf,
    /// What pkg-config has to put before `/usr`, where the package is not at its place.
    sysroot: Option<PathBuf>,
    /// A file for a compiled program.
    scratch: PathBuf,
}

impl Unpacked {
    /// The library for C has its soname, and both links lead to it.
    fn library(&self, soname: &str, release: &Release) -> Done {
        let file = self.libraries.join(format!("librsock.so.{}", release.version));
        let inode = |path: &Path| {
            fs::metadata(path).map(|meta| meta.ino()).map_err(|e| Failure::io(path.display(), &e))
        };
        for link in ["librsock.so", soname] {
            let link = self.libraries.join(link);
            if inode(&link)? != inode(&file)? {
                return Err(Failure::new(format!("{} leads elsewhere", link.display())));
            }
        }
        let dynamic = steps::quiet(Command::new("readelf").arg("--dynamic").arg(&file))?;
        if dynamic.contains(&format!("[{soname}]")) {
            return Ok(());
        }
        Err(Failure::new(format!("{} has not the soname {soname}", file.display())))
    }

    /// The command runs a program with the library beside it.
    fn command(&self, release: &Release) -> Done {
        let rsock = || clean(&self.root.join("bin/rsock"));
        let version = steps::quiet(rsock().arg("--version"))?;
        if version.trim() != format!("rsock {}", release.version) {
            return Err(Failure::new(format!("rsock --version says {}", version.trim())));
        }
        let maps = steps::quiet(rsock().args(["run", "--", "cat", "/proc/self/maps"]))?;
        let library = self.libraries.join("librsock_preload.so");
        if maps.lines().any(|line| line.ends_with(&*library.to_string_lossy())) {
            return Ok(());
        }
        Err(Failure::new(format!("rsock run did not load {}", library.display())))
    }

    /// A C program finds header and library by pkg-config, and runs.
    fn c_program(&self) -> Done {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(["--cflags", "--libs", "librsock"]);
        pkg_config.env_remove("PKG_CONFIG_PATH");
        pkg_config.env("PKG_CONFIG_LIBDIR", self.libraries.join("pkgconfig"));
        if let Some(sysroot) = &self.sysroot {
            pkg_config.env("PKG_CONFIG_SYSROOT_DIR", sysroot);
        }
        let flags = steps::quiet(&mut pkg_config)?;
        let source = self.scratch.with_extension("c");
        fs::write(&source, C_PROGRAM).map_err(|e| Failure::io(source.display(), &e))?;
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).args([&self.scratch, &source]);
        steps::run(cc.args(flags.split_whitespace()))?;
        steps::quiet(clean(&self.scratch).env("LD_LIBRARY_PATH", &self.libraries)).map(drop)
    }

    /// Man pages are there for all that needs one, and groff finds nothing wrong with them.
    fn pages(&self) -> Done {
        let pages: BTreeMap<String, PathBuf> = files(&self.root.join("share/man"))?
            .into_iter()
            .map(|path| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path))
            .collect();
        for needed in PAGES {
            if !pages.contains_key(needed) {
                return Err(Failure::new(format!("there is no man page {needed}")));
            }
        }
        if !steps::is_available("groff", "--version") {
            steps::say("groff is not installed: man pages not checked here");
            return Ok(());
        }
        for page in pages.values() {
            let mut groff = Command::new("groff");
            groff.args(["-man", "-Tutf8", "-ww", "-z"]).arg(page);
            let out = groff.output().map_err(|e| Failure::io("groff", &e))?;
            if !out.status.success() || !out.stderr.is_empty() {
                let said = String::from_utf8_lossy(&out.stderr);
                return Err(Failure::new(format!("{}: {}", page.display(), said.trim())));
            }
        }
        Ok(())
    }

    /// Each shell that is here can read its completions.
    fn completions(&self) -> Done {
        for (shell, file) in [
            ("bash", "share/bash-completion/completions/rsock"),
            ("zsh", "share/zsh/site-functions/_rsock"),
            ("fish", "share/fish/vendor_completions.d/rsock.fish"),
        ] {
            if steps::is_available(shell, "--version") {
                steps::quiet(Command::new(shell).arg("-n").arg(self.root.join(file)))?;
            }
        }
        Ok(())
    }
}

/// `program`, without settings of ours or of the dynamic linker's.
fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

/// Every plain file below `dir`; links are left out.
fn files(dir: &Path) -> Done<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for path in super::listed(&dir)? {
            let meta = fs::symlink_metadata(&path).map_err(|e| Failure::io(path.display(), &e))?;
            if meta.is_dir() {
                todo.push(path);
            } else if meta.is_file() {
                found.push(path);
            }
        }
    }
    Ok(found)
}

const PAGES: [&str; 9] = [
    "rsock.1",
    "rsock-run.1",
    "rsock-stat.1",
    "rsock-doctor.1",
    "rsock-perf.1",
    "rsock-perf-stream.1",
    "rsock-preload.7",
    "rsock.toml.5",
    "librsock.3",
];

/// Both ends of a connection, in two threads.
const C_PROGRAM: &str = r#"
#include <netinet/in.h>
#include <arpa/inet.h>
#include <rsock.h>
#include <stdio.h>
#include <string.h>
#include <pthread.h>

static struct sockaddr_in addr;

static void *client(void *unused)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0);

	if (rconnect(s, (struct sockaddr *) &addr, sizeof addr) || rsend(s, "hello", 5, 0) != 5)
		perror("client");
	rclose(s);
	return unused;
}

int main(void)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), s;
	socklen_t len = sizeof addr;
	char word[6] = "";
	pthread_t thread;

	addr.sin_family = AF_INET;
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (rbind(listener, (struct sockaddr *) &addr, len) || rlisten(listener, 1)
	    || rgetsockname(listener, (struct sockaddr *) &addr, &len)
	    || pthread_create(&thread, NULL, client, NULL))
		return 1;
	s = raccept(listener, NULL, NULL);
	if (s < 0 || rrecv(s, word, 5, MSG_WAITALL) != 5 || strcmp(word, "hello"))
		return 2;
	pthread_join(thread, NULL);
	return rclose(s) || rclose(listener);
}
"#;
