//! Writes a message, which may lie in several pieces, to whole cache lines of a peer's memory by
//! streaming stores.
//!
//! PERF: a line of which an ordinary store writes a part is fetched from the other CPU first, and
//! the next atomic instruction waits for it: where the two share no cache that is as long as
//! streaming the rest of a datagram takes.

use super::layout::LINE;
use super::peer_copy::{fence, stream_lines};
use std::ptr::NonNull;

/// Writes pieces one behind the other to the lines that `place` names.
pub(super) struct LineWriter<P> {
    place: P,
    /// Bytes of the lines that are written.
    written: u64,
    /// The line that is not yet full: its first `filled` bytes count.
    line: Line,
    filled: usize,
}

#[repr(align(64))]
struct Line([u8; LINE]);

impl<P: Fn(u64) -> (NonNull<u8>, usize)> LineWriter<P> {
    /// `place` returns where the line goes that begins so many bytes into the message, and how many
    /// bytes can be written from there on.
    ///
    /// # Safety
    /// What `place` returns is aligned to a line, at least a line long and a whole number of them,
    /// and writable, for every line of the message.
    #[inline(always)]
    pub(super) unsafe fn new(place: P) -> Self {
        Self { place, written: 0, line: Line([0; LINE]), filled: 0 }
    }

    /// Writes a piece, but for what fills no line.
    #[inline(always)]
    pub(super) fn write(&mut self, piece: &[u8]) {
        let mut rest = piece;
        if self.filled != 0 {
            let (now, later) = rest.split_at(rest.len().min(LINE - self.filled));
            self.fill(now);
            if self.filled < LINE {
                return;
            }
            self.write_line();
            rest = later;
        }
        let (mut lines, rest) = rest.split_at(rest.len() / LINE * LINE);
        while !lines.is_empty() {
            let (to, room) = (self.place)(self.written);
            let (now, later) = lines.split_at(lines.len().min(room));
            // SAFETY: `now` is readable, and whole lines; `room` bytes are writable at `to`, which
            // is aligned, by the promise to `new`.
            unsafe { stream_lines(now.as_ptr(), to.as_ptr(), now.len()) };
            self.written += now.len() as u64;
            lines = later;
        }
        self.fill(rest);
    }

    /// Writes the line that is not full, with zeros or earlier bytes of the message at its end. The
    /// message comes before every later store.
    #[inline(always)]
    pub(super) fn finish(mut self) {
        if self.filled != 0 {
            self.write_line();
        }
        fence();
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.line.0[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    fn write_line(&mut self) {
        let (to, _) = (self.place)(self.written);
        // SAFETY: a line at `to` is writable and aligned, by the promise to `new`.
        unsafe { stream_lines(self.line.0.as_ptr(), to.as_ptr(), LINE) };
        self.written += LINE as u64;
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Ring([u8; 512]);

    /// Writes `pieces` to a ring from its line `first` on, and returns the ring.
    fn written(pieces: &[&[u8]], first: usize) -> Ring {
        let mut ring = Ring([0xee; 512]);
        let base = NonNull::from(&mut ring.0).cast::<u8>();
        let place = |at: u64| {
            let offset = (first * LINE + usize::try_from(at).unwrap()) % 512;
            // SAFETY: inside the ring.
            (unsafe { base.add(offset) }, 512 - offset)
        };
        // SAFETY: whole lines of the ring, which is aligned.
        let mut lines = unsafe { LineWriter::new(place) };
        pieces.iter().for_each(|piece| lines.write(piece));
        lines.finish();
        ring
    }

    #[test]
    fn pieces_of_all_lengths_lie_one_behind_the_other() {
        let source: Vec<u8> = (0..448).map(|i| u8::try_from(i % 251).unwrap()).collect();
        for len in 0..=source.len() {
            for cut in [0, 1, 8, 63, 64, 65, 127, 128, len].map(|cut| cut.min(len)) {
                let (head, tail) = source[..len].split_at(cut);
                let (middle, tail) = tail.split_at(tail.len() / 3);
                let ring = written(&[head, middle, tail], 0);
                assert_eq!(ring.0[..len], source[..len], "{len} bytes, cut at {cut}");
                let lines = len.next_multiple_of(LINE);
                assert!(ring.0[lines..].iter().all(|byte| *byte == 0xee), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_message_goes_on_at_the_beginning_of_the_ring() {
        let source: Vec<u8> = (0..400).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let ring = written(&[&source[..8], &source[8..]], 6);
        assert_eq!(ring.0[384..], source[..128]);
        assert_eq!(ring.0[..272], source[128..]);
        assert!(ring.0[320..384].iter().all(|byte| *byte == 0xee));
    }
}
