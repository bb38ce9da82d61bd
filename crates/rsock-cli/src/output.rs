//! Where results go: standard output, and files that are known to be writable before anything runs.

use crate::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file opened early and written late. If it was new and is never written it goes away again.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    /// Ours to remove.
    is_new: bool,
}

impl OutputFile {
    /// Opens `path` for writing and leaves what is in it alone.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                (options.open(path).map_err(Error::file("write", path))?, false)
            }
            Err(e) => return Err(Error::file("write", path)(e)),
        };
        Ok(Self { path: path.to_owned(), file, is_new })
    }

    /// Replaces the contents.
    pub(crate) fn write(mut self, bytes: &[u8]) -> Result<(), Error> {
        let is_plain = self.file.metadata().is_ok_and(|meta| meta.is_file());
        let emptied = if is_plain { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(bytes));
        let failed = Error::io(format!("cannot write {}", self.path.display()));
        if written.is_ok() {
            self.is_new = false;
        }
        written.map_err(failed)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            // Nothing to tell anyone if this fails.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::io("cannot write to standard output")(e),
    })
}

/// Writes a value as indented JSON and a line feed to standard output.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    print(&to_json(value)?)
}

/// A value as indented JSON and a line feed.
pub(crate) fn to_json(value: &impl serde::Serialize) -> Result<String, Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::Failed(format!("cannot make JSON: {e}")))?;
    text.push('\n');
    Ok(text)
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
