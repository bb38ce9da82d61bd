//! `cargo xtask dist`: a Debian package and a tarball of rsock, in target/dist.
//!
//! Both hold the same files, at the places of Debian or below one directory that may lie anywhere.
//! They depend on the sources, the compiler and the time of the last commit alone (or
//! `SOURCE_DATE_EPOCH`), so a second build makes the same bytes.

mod binaries;
mod check;
mod deb;
mod dependencies;
mod manual;
mod tree;

use crate::steps::{self, Done, Failure};
use binaries::Binaries;
use clap::Args;
use deb::Package;
use dependencies::Dependencies;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tree::{Tree, gzip};

/// What to do beside packing.
#[derive(Args, Debug)]
pub(crate) struct Dist {
    /// Unpack both packages, and use what is in them
    #[arg(long)]
    check: bool,
}

/// Builds, packs, says what was made, and checks it if that is wanted.
pub(crate) fn run(options: &Dist) -> Done {
    let release = Release::new()?;
    let dependencies = Dependencies::of(&PACKAGES)?;
    let binaries = Binaries::build(&dependencies)?;
    let contents = Contents::gather(&release, &binaries, &dependencies)?;
    let soname = binaries.soname()?;
    let package = Package {
        release: &release,
        depends: binaries.depends()?,
        library: soname
            .split_once(".so.")
            .ok_or_else(|| Failure::new(format!("the soname {soname} has no number")))?,
    };

    let mut files = contents.tree(&Layout::debian(&release), &release, &soname);
    let documents = format!("usr/share/doc/{}", deb::NAME);
    files.file(format!("{documents}/copyright"), deb::copyright(&contents.mit, release.time));
    files.file(format!("{documents}/changelog.Debian.gz"), package.changelog());
    files.file(format!("usr/share/lintian/overrides/{}", deb::NAME), OVERRIDES);
    let mut tarball = contents.tree(&Layout::anywhere(), &release, &soname);
    tarball.file("share/doc/rsock/LICENSE-MIT", contents.mit.as_str());
    tarball.file("share/doc/rsock/LICENSE-APACHE", contents.apache.as_str());

    let made = Made {
        deb: dir().join(package.file_name()?),
        tarball: dir().join(format!("{}.tar.gz", release.directory())),
    };
    steps::remove(&dir())?;
    fs::create_dir_all(dir()).map_err(|e| Failure::io(dir().display(), &e))?;
    write(&made.deb, &package.archive(&files)?)?;
    let prefix = format!("{}/", release.directory());
    write(&made.tarball, &tarball.tar_gz(&prefix, release.time)?)?;
    if options.check {
        check::run(&made, &release, &soname, &dependencies)?;
    }
    for file in [&made.deb, &made.tarball] {
        println!("{}", file.display());
    }
    Ok(())
}

/// Where packages go.
fn dir() -> PathBuf {
    steps::target_dir().join("dist")
}

/// The two packages.
#[derive(Debug)]
struct Made {
    deb: PathBuf,
    tarball: PathBuf,
}

/// What is packed.
#[derive(Debug)]
struct Release {
    version: &'static str,
    /// Of every file, in seconds since 1970.
    time: u64,
    /// The directory of this architecture in Debian's libraries.
    multiarch: String,
}

impl Release {
    fn new() -> Done<Self> {
        let time = match env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => {
                let mut git = Command::new("git");
                git.current_dir(steps::root()).args(["log", "-1", "--format=%ct"]);
                steps::quiet(&mut git)?
            }
        };
        let time = time.trim().parse();
        let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
        let invalid = |e| Failure::new(format!("SOURCE_DATE_EPOCH, or the commit's time: {e}"));
        Ok(Self { version: env!("CARGO_PKG_VERSION"), time: time.map_err(invalid)?, multiarch })
    }

    /// The tarball's directory and the beginning of its name.
    fn directory(&self) -> String {
        format!("rsock-{}-{}", self.version, self.multiarch)
    }
}

/// Where a package has its files, and how.
#[derive(Debug)]
struct Layout {
    /// Before every path: empty, or a directory with a slash.
    root: &'static str,
    libraries: String,
    zsh: &'static str,
    /// `prefix` in the file for pkg-config.
    prefix: &'static str,
    /// Whether man pages and documents are compressed, as Debian wants them.
    is_compressed: bool,
}

impl Layout {
    fn debian(release: &Release) -> Self {
        Self {
            root: "usr/",
            libraries: format!("lib/{}", release.multiarch),
            zsh: "share/zsh/vendor-completions",
            prefix: "/usr",
            is_compressed: true,
        }
    }

    /// Below any directory, `/usr/local` or a home directory.
    fn anywhere() -> Self {
        Self {
            root: "",
            libraries: "lib".to_owned(),
            zsh: "share/zsh/site-functions",
            prefix: "${pcfiledir}/../..",
            is_compressed: false,
        }
    }
}

/// The contents of files that both packages have.
#[derive(Debug)]
struct Contents {
    command: Vec<u8>,
    preload: Vec<u8>,
    c_library: Vec<u8>,
    header: Vec<u8>,
    /// By their names, with the section at the end.
    pages: Vec<(String, Vec<u8>)>,
    bash: Vec<u8>,
    zsh: Vec<u8>,
    fish: Vec<u8>,
    changelog: Vec<u8>,
    notice: Vec<u8>,
    third_party: String,
    mit: String,
    apache: String,
}

impl Contents {
    fn gather(release: &Release, binaries: &Binaries, dependencies: &Dependencies) -> Done<Self> {
        let root = steps::root();
        let generated = steps::target_dir().join("generated");
        steps::remove(&generated)?;
        steps::run(Command::new(&binaries.command).arg("generate").arg(&generated))?;
        let mut pages = Vec::new();
        for path in listed(&generated.join("man1"))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pages.push((name, read(&path)?));
        }
        for path in listed(&root.join("docs/man"))? {
            let page = manual::page(&path, release.version)?;
            pages.push((page.file_name, page.text.into_bytes()));
        }
        let completions = generated.join("completions");
        let text = |name: &str| {
            let path = root.join(name);
            fs::read_to_string(&path).map_err(|e| Failure::io(path.display(), &e))
        };
        Ok(Self {
            command: read(&binaries.command)?,
            preload: read(&binaries.preload)?,
            c_library: read(&binaries.c_library)?,
            header: read(&root.join("crates/rsock-capi/include/rsock.h"))?,
            pages,
            bash: read(&completions.join("rsock.bash"))?,
            zsh: read(&completions.join("_rsock"))?,
            fish: read(&completions.join("rsock.fish"))?,
            changelog: read(&root.join("CHANGELOG.md"))?,
            notice: read(&root.join("NOTICE"))?,
            third_party: dependencies.licences()?,
            mit: text("LICENSE-MIT")?,
            apache: text("LICENSE-APACHE")?,
        })
    }

    fn tree(&self, layout: &Layout, release: &Release, soname: &str) -> Tree {
        let mut tree = Tree::default();
        let at = |path: &str| format!("{}{path}", layout.root);
        let libraries = at(&layout.libraries);
        let document = |tree: &mut Tree, path: String, bytes: &[u8]| {
            if layout.is_compressed {
                tree.file(path + ".gz", gzip(bytes));
            } else {
                tree.file(path, bytes);
            }
        };

        tree.program(at("bin/rsock"), self.command.as_slice());
        // Not in a directory of its own: the linker finds it by its name alone in `LD_PRELOAD`.
        tree.file(format!("{libraries}/librsock_preload.so"), self.preload.as_slice());
        let full_name = format!("librsock.so.{}", release.version);
        tree.file(format!("{libraries}/{full_name}"), self.c_library.as_slice());
        tree.link(format!("{libraries}/{soname}"), full_name);
        tree.link(format!("{libraries}/librsock.so"), soname);
        tree.file(format!("{libraries}/pkgconfig/librsock.pc"), pkg_config(layout, release));
        tree.file(at("include/rsock.h"), self.header.as_slice());

        for (name, page) in &self.pages {
            let section = name.rsplit('.').next().unwrap_or_default();
            document(&mut tree, at(&format!("share/man/man{section}/{name}")), page);
        }
        tree.file(at("share/bash-completion/completions/rsock"), self.bash.as_slice());
        tree.file(at(&format!("{}/_rsock", layout.zsh)), self.zsh.as_slice());
        tree.file(at("share/fish/vendor_completions.d/rsock.fish"), self.fish.as_slice());

        let documents = at("share/doc/rsock");
        tree.file(format!("{documents}/NOTICE"), self.notice.as_slice());
        document(&mut tree, format!("{documents}/changelog"), &self.changelog);
        document(&mut tree, format!("{documents}/third-party"), self.third_party.as_bytes());
        tree
    }
}

/// The file for pkg-config.
fn pkg_config(layout: &Layout, release: &Release) -> String {
    let Layout { prefix, libraries, .. } = layout;
    let (version, url) = (release.version, env!("CARGO_PKG_REPOSITORY"));
    format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/{libraries}\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: librsock\n\
         Description: rsocket(3) in shared memory and over RDMA devices\n\
         URL: {url}\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -lrsock\n\
         Cflags: -I${{includedir}}\n"
    )
}

/// The files in a directory, by their names.
fn listed(dir: &Path) -> Done<Vec<PathBuf>> {
    let failed = |e| Failure::io(dir.display(), &e);
    let entries = fs::read_dir(dir).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Done<_>>()?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Done<Vec<u8>> {
    fs::read(path).map_err(|e| Failure::io(path.display(), &e))
}

fn write(path: &Path, bytes: &[u8]) -> Done {
    fs::write(path, bytes).map_err(|e| Failure::io(path.display(), &e))
}

/// The packages that build what is packed.
const PACKAGES: [&str; 3] = ["rsock-capi", "rsock-preload", "rsock-cli"];

/// What lintian finds and is meant so, with the reason.
const OVERRIDES: &str = "\
# One package for users: the command, its library, and librsock with its header.
rsock: package-name-doesnt-match-sonames *
rsock: link-to-shared-library-in-wrong-package *
# Preloaded by this name; nothing is linked to it.
rsock: shared-library-lacks-version *librsock_preload.so*
# Not made for Debian's archive.
rsock: initial-upload-closes-no-bugs *
";
