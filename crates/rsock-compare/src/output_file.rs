//! Result files: known to be writable before anything is measured, written when all is done.

use rsock_cli::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file opened early and written late. A new one that was never written is removed again.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    /// Whether `open` made the file, and nothing was written since.
    is_unused: bool,
}

impl OutputFile {
    /// Opens `path` for writing and leaves its contents alone.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, is_unused) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                (options.open(path).map_err(Error::file("write", path))?, false)
            }
            Err(e) => return Err(Error::file("write", path)(e)),
        };
        Ok(Self { path: path.to_owned(), file, is_unused })
    }

    /// Replaces the contents.
    pub(crate) fn write(mut self, bytes: &[u8]) -> Result<(), Error> {
        let is_plain = self.file.metadata().is_ok_and(|meta| meta.is_file());
        let emptied = if is_plain { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(bytes));
        if written.is_ok() {
            self.is_unused = false;
        }
        written.map_err(Error::io(format!("cannot write {}", self.path.display())))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_unused {
            // An empty file that stays behind is no failure of the command.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritten_file_leaves_no_trace_and_an_existing_one_keeps_its_bytes() {
        let dir = std::env::temp_dir().join(format!("rsock-output-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (new, old) = (dir.join("new"), dir.join("old"));
        fs::write(&old, "before").unwrap();
        drop(OutputFile::open(&new).unwrap());
        drop(OutputFile::open(&old).unwrap());
        let missing = OutputFile::open(&dir.join("no/such/dir"));
        let kept = fs::read_to_string(&old).unwrap();
        OutputFile::open(&old).unwrap().write(b"now").unwrap();
        let replaced = fs::read_to_string(&old).unwrap();
        let new_exists = new.exists();
        fs::remove_dir_all(&dir).unwrap();
        assert!(missing.is_err() && !new_exists);
        assert_eq!((kept.as_str(), replaced.as_str()), ("before", "now"));
    }
}
