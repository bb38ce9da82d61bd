//! The archive that a kernel unpacks as its first file system: cpio in the "new ASCII" form.
//!
//! # Source
//! The kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

/// An archive in memory.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    n_entries: usize,
}

impl Archive {
    /// Adds a directory; the ones above it come first.
    pub(super) fn dir(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    /// Adds a file.
    pub(super) fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entry(path, 0o100_000 | mode, data);
    }

    /// The finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.n_entries += 1;
        // Magic, inode, mode, user, group, links, time, size, device twice two, name's length with
        // its end, checksum.
        let numbers = [self.n_entries, mode as usize, 0, 0, 1, 0, data.len(), 0, 0, 0, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers.into_iter().chain([path.len() + 1, 0]) {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(data);
        self.align();
    }

    fn align(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_and_end_on_words() {
        let mut archive = Archive::default();
        archive.dir("etc");
        archive.file("etc/name", 0o644, b"guest");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        // A header has 110 bytes; `etc` and its end make 114, hence 116.
        let second = &bytes[116..];
        assert!(second.starts_with(b"070701"));
        assert_eq!(&second[14..22], b"000081a4", "a regular file, 0644");
        assert_eq!(&second[54..62], b"00000005");
        assert_eq!(&second[110..119], b"etc/name\0");
        assert_eq!(&second[120..125], b"guest");
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
    }
}
