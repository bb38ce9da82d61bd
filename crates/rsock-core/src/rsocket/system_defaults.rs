//! Sizes that an administrator sets for all rsockets: one number per file under
//! `/etc/rdma/rsocket/`, the files of C rsockets.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rs_configure`; rsocket(7).

use once_cell::race::OnceBox;
use rsock_proto::{iomap_size_from_wire, iomap_size_to_wire};
use std::fs;
use std::path::Path;

/// Where the files are.
const DIRECTORY: &str = "/etc/rdma/rsocket";

/// What a new socket starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemDefaults {
    /// Receive memory, in bytes: file `mem_default`.
    pub recv_buf: u32,
    /// Send memory as reported; nothing is buffered on the sending side. File `wmem_default`.
    pub send_buf: u32,
    /// Send queue entries, as reported: file `sqsize_default`.
    pub sq_depth: u16,
    /// Receive queue entries: how many messages the peer may have on their way. File
    /// `rqsize_default`.
    pub rq_depth: u16,
    /// Inline bytes, as reported: file `inline_default`.
    pub inline: u16,
    /// How many regions the peer may expose to a socket: file `iomap_size`.
    pub iomap_slots: u16,
}

impl Default for SystemDefaults {
    fn default() -> Self {
        Self {
            // COMPAT: C rsockets has 131072. A larger ring lets both processes run at once.
            recv_buf: 512 << 10,
            send_buf: 128 << 10,
            sq_depth: 384,
            rq_depth: 128,
            inline: 64,
            iomap_slots: 0,
        }
    }
}

impl SystemDefaults {
    /// The values for this process; the files are read once.
    #[must_use]
    pub fn of_process() -> Self {
        static VALUE: OnceBox<SystemDefaults> = OnceBox::new();
        *VALUE.get_or_init(|| Box::new(Self::read(Path::new(DIRECTORY))))
    }

    /// Reads the files in `dir`. Missing and unreadable ones, and those that do not begin with a
    /// number, change nothing.
    #[must_use]
    pub fn read(dir: &Path) -> Self {
        let mut defaults = Self::default();
        let number = |name: &str| leading_number(&fs::read_to_string(dir.join(name)).ok()?);
        if let Some(bytes) = number("mem_default") {
            defaults.recv_buf = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        }
        if let Some(bytes) = number("wmem_default") {
            defaults.send_buf = send_buf(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        let depth = |n: u64| u16::try_from(n).unwrap_or(u16::MAX).min(MAX_DEPTH);
        if let Some(n) = number("sqsize_default") {
            defaults.sq_depth = depth(n);
        }
        if let Some(n) = number("rqsize_default") {
            defaults.rq_depth = depth(n);
        }
        if let Some(n) = number("inline_default") {
            defaults.inline = depth(n);
        }
        if let Some(n) = number("iomap_size") {
            // COMPAT: C rsockets applies its two conversions in the wrong order and gets odd
            // sizes above 128.
            defaults.iomap_slots = iomap_slots(u32::try_from(n).unwrap_or(u32::MAX));
        }
        defaults
    }
}

/// Largest queue depth and inline size.
pub(super) const MAX_DEPTH: u16 = 0xFFFE;
/// Send memory below this becomes [`SMALL_SEND_BUF`].
const MIN_SEND_BUF: u32 = 2048;
const SMALL_SEND_BUF: u32 = 4096;

/// Send memory for a requested size.
pub(super) fn send_buf(bytes: u32) -> u32 {
    if bytes < MIN_SEND_BUF { SMALL_SEND_BUF } else { bytes }
}

/// The number of iomap entries that the protocol can express, at most `n`.
pub(super) fn iomap_slots(n: u32) -> u16 {
    iomap_size_from_wire(iomap_size_to_wire(n))
}

fn leading_number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    // More digits than fit are a very large number.
    (end > 0).then(|| text[..end].parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> SystemDefaults {
        let dir = std::env::temp_dir().join(format!("rsock-defaults-{:?}", files.as_ptr()));
        fs::create_dir_all(&dir).expect("directory");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("file");
        }
        let defaults = SystemDefaults::read(&dir);
        fs::remove_dir_all(&dir).expect("clean up");
        defaults
    }

    #[test]
    fn no_files_change_nothing() {
        assert_eq!(read(&[]), SystemDefaults::default());
    }

    #[test]
    fn every_file_sets_its_value() {
        let defaults = read(&[
            ("mem_default", "65536\n"),
            ("wmem_default", " 8192"),
            ("sqsize_default", "100"),
            ("rqsize_default", "200 entries"),
            ("inline_default", "16"),
            ("iomap_size", "300"),
        ]);
        let expected = SystemDefaults {
            recv_buf: 65536,
            send_buf: 8192,
            sq_depth: 100,
            rq_depth: 200,
            inline: 16,
            iomap_slots: 256,
        };
        assert_eq!(defaults, expected);
    }

    #[test]
    fn values_are_bounded_as_c_bounds_them_and_garbage_is_ignored() {
        let defaults = read(&[
            ("mem_default", "0"),
            ("wmem_default", "2047"),
            ("sqsize_default", "99999999999999999999999"),
            ("rqsize_default", "many"),
            ("inline_default", ""),
            ("iomap_size", "129"),
        ]);
        assert_eq!((defaults.recv_buf, defaults.send_buf), (1, 4096));
        assert_eq!((defaults.sq_depth, defaults.rq_depth), (0xFFFE, 128));
        assert_eq!((defaults.inline, defaults.iomap_slots), (64, 128));
    }
}
