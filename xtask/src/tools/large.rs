//! Node and Java, which `cargo xtask test --all` fetches into `target/tools/large` where the
//! machine has none: they and what they depend on take 280 MB.
//!
//! Both expect files at places of the root directory. Java's are links, which are made to lead to
//! the unpacked files. Node has the paths in its program, so it is started where the unpacked
//! `usr/share` takes the place of the machine's.

use super::{is_on_path, libraries, link, write};
use crate::apt::{self, Apt};
use crate::steps::{self, Done, Failure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the programs available that are not on the machine.
///
/// # Errors
/// Names what is missing where apt or the network is.
pub(crate) fn fetch() -> Done {
    let wanted: Vec<&Package> = PACKAGES.iter().filter(|it| !is_on_path(it.program)).collect();
    let packages: Vec<&str> = wanted.iter().map(|package| package.name).collect();
    let dir = dir();
    let stamp = packages.join(" ");
    if wanted.is_empty() || fs::read_to_string(dir.join("stamp")).is_ok_and(|it| it == stamp) {
        return Ok(());
    }
    steps::remove(&dir)?;
    unpack(&dir, &packages)?;
    for package in wanted {
        check(&dir, package.program)?;
    }
    write(&dir.join("stamp"), &stamp)
}

/// Whether a Node is there whose libuv can use an `io_uring`.
pub(crate) fn has_node_with_io_uring() -> bool {
    const LEAST: u32 = 20;
    [dir().join("bin/node"), PathBuf::from("node")].into_iter().any(|node| {
        let mut command = Command::new(node);
        command.arg("--version").env("LD_LIBRARY_PATH", dir().join("lib"));
        let version = command.output().map(|output| output.stdout).unwrap_or_default();
        major(&String::from_utf8_lossy(&version)).is_some_and(|major| major >= LEAST)
    })
}

/// The number at the beginning of `v20.1.2`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

fn dir() -> PathBuf {
    super::dir().join("large")
}

fn unpack(dir: &Path, packages: &[&str]) -> Done {
    let root = dir.join("root");
    for sub in ["root", "bin", "lib"] {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).map_err(|e| Failure::io(sub.display(), &e))?;
    }
    for archive in Apt::new(&dir.join("apt"))?.fetch(packages)? {
        apt::unpack(&archive, &root)?;
    }
    steps::remove(&dir.join("apt"))?;
    keep_links_inside(&root, &root)?;
    for place in ["usr/lib", "lib"] {
        libraries(&root.join(place), &Path::new("../root").join(place), &dir.join("lib"))?;
    }
    if root.join(NODE).is_file() {
        write_node(dir)?;
    }
    let Ok(machines) = fs::read_dir(root.join(JAVA)) else { return Ok(()) };
    let names = machines.flatten().map(|entry| Path::new(JAVA).join(entry.file_name()));
    let java = names.map(|name| name.join("bin/java")).find(|java| root.join(java).is_file());
    match java {
        Some(java) => link(&Path::new("../root").join(java), &dir.join("bin/java")),
        None => Ok(()),
    }
}

/// Makes links to files of the root directory lead to those below `root`, where they are there.
fn keep_links_inside(root: &Path, below: &Path) -> Done {
    for entry in fs::read_dir(below).map_err(|e| Failure::io(below.display(), &e))? {
        let path = entry.map_err(|e| Failure::io(below.display(), &e))?.path();
        let Ok(target) = fs::read_link(&path) else {
            if path.is_dir() {
                keep_links_inside(root, &path)?;
            }
            continue;
        };
        if let Ok(target) = target.strip_prefix("/")
            && root.join(target).exists()
        {
            let replaced = fs::remove_file(&path).and_then(|()| {
                let up = path.strip_prefix(root).map_or(0, |inside| inside.iter().count() - 1);
                symlink(Path::new(&"../".repeat(up)).join(target), &path)
            });
            replaced.map_err(|e| Failure::io(path.display(), &e))?;
        }
    }
    Ok(())
}

/// Writes a script that starts Node, as the same process, in a mount namespace.
fn write_node(dir: &Path) -> Done {
    let dir = fs::canonicalize(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let root = dir.join("root");
    let script = format!(
        "#!/bin/sh\nexec unshare --user --map-current-user --keep-caps --mount sh -c \
         'mount --bind \"$0/usr/share\" /usr/share && exec \"$0/{NODE}\" \"$@\"' \
         '{}' \"$@\"\n",
        root.display()
    );
    let path = dir.join("bin/node");
    write(&path, &script)?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))
        .map_err(|e| Failure::io(path.display(), &e))
}

fn check(dir: &Path, program: &str) -> Done {
    let mut command = Command::new(dir.join("bin").join(program));
    steps::quiet(command.arg("--version").env("LD_LIBRARY_PATH", dir.join("lib"))).map(drop)
}

/// Where the packages put the programs.
const NODE: &str = "usr/bin/node";
const JAVA: &str = "usr/lib/jvm";

/// A Debian package and its program.
struct Package {
    name: &'static str,
    program: &'static str,
}

const PACKAGES: [Package; 2] = [
    Package { name: "nodejs", program: "node" },
    Package { name: "default-jre-headless", program: "java" },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_of_a_version_counts() {
        assert_eq!(major("v20.20.2\n"), Some(20));
        assert_eq!((major(""), major("20")), (None, None));
    }

    #[test]
    fn links_to_unpacked_files_stay_below_the_root() {
        let root = std::env::temp_dir().join(format!("rsock-large-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        fs::write(root.join("etc/settings"), "own").unwrap();
        symlink("/etc/settings", root.join("usr/lib/settings")).unwrap();
        symlink("/etc/passwd", root.join("usr/lib/passwd")).unwrap();
        keep_links_inside(&root, &root).unwrap();
        let settings = fs::read_link(root.join("usr/lib/settings")).unwrap();
        let text = fs::read_to_string(root.join("usr/lib/settings")).unwrap();
        let passwd = fs::read_link(root.join("usr/lib/passwd")).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((settings.to_str(), text.as_str()), (Some("../../etc/settings"), "own"));
        assert_eq!(passwd.to_str(), Some("/etc/passwd"));
    }
}
