//! Output of runs that go on side by side: each line is written as a whole, with the run's name
//! before it.

use std::io::{self, Write};

/// Writes to `to` line by line; what is left at the end is a line, too.
#[derive(Debug)]
pub(crate) struct WholeLines<W: Write> {
    to: W,
    /// What each line begins with.
    prefix: &'static str,
    /// The line that has not ended yet.
    begun: Vec<u8>,
}

impl<W: Write> WholeLines<W> {
    pub(crate) fn new(to: W, prefix: &'static str) -> Self {
        Self { to, prefix, begun: Vec::new() }
    }
}

impl<W: Write> Write for WholeLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        let end = self.begun.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut whole = Vec::new();
        for line in self.begun[..end].split_inclusive(|&byte| byte == b'\n') {
            whole.extend_from_slice(self.prefix.as_bytes());
            whole.extend_from_slice(line);
        }
        self.begun.drain(..end);
        self.to.write_all(&whole)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> Drop for WholeLines<W> {
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            let _ = self.write_all(b"\n").and_then(|()| self.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_when_they_have_ended_and_the_last_one_at_the_end() {
        let mut out = Vec::new();
        let mut lines = WholeLines::new(&mut out, "a: ");
        for (piece, so_far) in [("one", 0), (" two\nthr", 11), ("ee\n\n4", 24)] {
            lines.write_all(piece.as_bytes()).expect("written");
            assert_eq!(lines.to.len(), so_far, "{piece:?}");
        }
        drop(lines);
        assert_eq!(String::from_utf8_lossy(&out), "a: one two\na: three\na: \na: 4\n");
    }
}
