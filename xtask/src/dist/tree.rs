//! The files of a package, and archives of them that are the same whenever and wherever they are
//! made.

use crate::steps::{Done, Failure};
use flate2::{Compression, GzBuilder};
use md5::{Digest, Md5};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write};
use tar::{EntryType, Header};

/// Files and links by their path from the archive's root. Directories follow from the paths; all
/// belongs to root.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, Item>);

#[derive(Debug)]
enum Item {
    File { bytes: Vec<u8>, mode: u32 },
    Link(String),
}

impl Tree {
    /// Adds a file that all may read.
    pub(super) fn file(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), Item::File { bytes: bytes.into(), mode: 0o644 });
    }

    /// Adds a file that all may execute.
    pub(super) fn program(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), Item::File { bytes: bytes.into(), mode: 0o755 });
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.0.insert(path.into(), Item::Link(target.into()));
    }

    /// A compressed archive whose entries are of `time`, in seconds since 1970. `prefix` comes
    /// before each path: a directory, or `./` as Debian has it.
    pub(super) fn tar_gz(&self, prefix: &str, time: u64) -> Done<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut append = |path: &str, item: Entry<'_>| -> io::Result<()> {
            let mut header = Header::new_gnu();
            let (kind, mode, bytes) = match item {
                Entry::Directory => (EntryType::Directory, 0o755, &[][..]),
                Entry::Item(Item::File { bytes, mode }) => (EntryType::Regular, *mode, &bytes[..]),
                Entry::Item(Item::Link(target)) => {
                    header.set_link_name_literal(target)?;
                    (EntryType::Symlink, 0o777, &[][..])
                }
            };
            name(&mut header, path)?;
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_mtime(time);
            header.set_size(bytes.len() as u64);
            header.set_cksum();
            tar.append(&header, bytes)
        };
        let failed = |e: io::Error| Failure::io("an archive", &e);
        append(prefix, Entry::Directory).map_err(failed)?;
        for dir in self.directories() {
            append(&format!("{prefix}{dir}/"), Entry::Directory).map_err(failed)?;
        }
        for (path, item) in &self.0 {
            append(&format!("{prefix}{path}"), Entry::Item(item)).map_err(failed)?;
        }
        Ok(gzip(&tar.into_inner().map_err(failed)?))
    }

    /// What `md5sums` in a Debian package says.
    pub(super) fn md5sums(&self) -> String {
        let mut sums = String::new();
        for (path, item) in &self.0 {
            if let Item::File { bytes, .. } = item {
                let _ = writeln!(sums, "{:x}  {path}", Md5::digest(bytes));
            }
        }
        sums
    }

    /// Kibibytes on a disk, as Debian counts them: files are rounded up, everything else is one.
    pub(super) fn installed_size(&self) -> u64 {
        let items = self.0.values().map(|item| match item {
            Item::File { bytes, .. } => (bytes.len() as u64).div_ceil(1024),
            Item::Link(_) => 1,
        });
        items.sum::<u64>() + self.directories().len() as u64
    }

    /// Every directory on the way to a file, parents first.
    fn directories(&self) -> BTreeSet<&str> {
        let parents = |path: &'_ str| path.match_indices('/').map(|(at, _)| at).collect::<Vec<_>>();
        self.0.keys().flat_map(|path| parents(path).into_iter().map(|at| &path[..at])).collect()
    }
}

enum Entry<'a> {
    Directory,
    Item(&'a Item),
}

/// The path as it is: `Header::set_path` would drop a `./`.
fn name(header: &mut Header, path: &str) -> io::Result<()> {
    let field = header.as_gnu_mut().map(|gnu| &mut gnu.name[..]).unwrap_or_default();
    let place = field.get_mut(..path.len()).ok_or(io::ErrorKind::InvalidFilename)?;
    place.copy_from_slice(path.as_bytes());
    Ok(())
}

/// `bytes` compressed, without a name and a time.
pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    // A vector takes everything.
    let _ = gzip.write_all(bytes);
    gzip.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;

    #[test]
    fn an_archive_names_every_directory_once_and_belongs_to_root() {
        let mut tree = Tree::default();
        tree.program("usr/bin/x", b"12".to_vec());
        tree.file("usr/lib/y.1", b"3".to_vec());
        tree.link("usr/lib/y", "y.1");
        let bytes = tree.tar_gz("./", 17).unwrap();
        assert_eq!(bytes, tree.tar_gz("./", 17).unwrap());
        let mut archive = tar::Archive::new(GzDecoder::new(&bytes[..]));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let header = entry.unwrap().header().clone();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 17));
            let path = String::from_utf8(header.path_bytes().into_owned()).unwrap();
            found.push((path, header.mode().unwrap()));
        }
        let found: Vec<(&str, u32)> = found.iter().map(|(path, mode)| (&path[..], *mode)).collect();
        assert_eq!(
            found,
            [
                ("./", 0o755),
                ("./usr/", 0o755),
                ("./usr/bin/", 0o755),
                ("./usr/lib/", 0o755),
                ("./usr/bin/x", 0o755),
                ("./usr/lib/y", 0o777),
                ("./usr/lib/y.1", 0o644),
            ]
        );
        assert_eq!(
            tree.md5sums(),
            "c20ad4d76fe97759aa27a0c99bff6710  usr/bin/x\n\
             eccbc87e4b5ce2fe28308fd9f2a7baf3  usr/lib/y.1\n"
        );
        assert_eq!(tree.installed_size(), 6);
    }
}
