//! The working set of receive memory, on devices that do not pin it: two short buffers while the
//! reader keeps up, the whole ring while it falls behind.
//!
//! A peer fills the buffers of a ring in turn, so a stream of small messages would touch all of its
//! ring: memory that no cache holds, for many streams at once. A reader that keeps up needs only as
//! much of it as is under way. So the stream goes on in two short buffers once it has filled a
//! large one while few bytes were unread, and gives the pages of the large ones back. It goes back
//! to the large ones as soon as more is unread, and takes longer to leave them the next time.
//!
//! A stream cannot recall a buffer that it has announced, so it decides when one has been filled.

/// Bytes of a short buffer.
pub(in crate::engine) const SHORT_BUF: u32 = 16 << 10;
/// Buffers of the short ring.
pub(in crate::engine) const N_SHORT: u8 = 2;
/// Bytes of the short ring.
pub(in crate::engine) const SHORT_RING: usize = SHORT_BUF as usize * N_SHORT as usize;
/// A reader keeps up while at most this much is unread.
const SHALLOW: usize = 8 << 10;
/// Most large buffers that are filled before the stream leaves them.
const MOST: u16 = 256;

/// Which buffers a stream uses, and what it decides by.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct WorkingSet {
    /// Whether short buffers are announced.
    is_short: bool,
    /// Most bytes that were unread since the last decision.
    deepest: usize,
    /// Large buffers that were filled in turn while few bytes were unread.
    n_shallow: u16,
    /// How many of these it takes to leave the large buffers.
    needed: u16,
}

impl WorkingSet {
    /// Large buffers, one of which is announced.
    pub(in crate::engine) fn new() -> Self {
        // The second large buffer is announced before the first has been filled: one too many.
        Self { is_short: false, deepest: 0, n_shallow: 0, needed: 2 }
    }

    /// Notes how many bytes a reader found.
    #[inline]
    pub(in crate::engine) fn note_unread(&mut self, n: usize) {
        self.deepest = self.deepest.max(n);
    }

    /// A buffer has been filled, while `unread` bytes were unread. Returns whether to change over
    /// to the other buffers.
    pub(in crate::engine) fn decide(&mut self, unread: usize) -> bool {
        let deepest = std::mem::take(&mut self.deepest).max(unread);
        if self.is_short {
            if deepest >= SHORT_BUF as usize {
                self.needed = self.needed.saturating_mul(4).min(MOST);
                self.n_shallow = 0;
                return true;
            }
            return false;
        }
        self.n_shallow = if deepest <= SHALLOW { self.n_shallow + 1 } else { 0 };
        self.n_shallow >= self.needed
    }

    /// Whether short buffers are announced.
    #[inline]
    pub(in crate::engine) fn is_short(&self) -> bool {
        self.is_short
    }

    /// From now on the other buffers are announced.
    pub(in crate::engine) fn change_over(&mut self) {
        self.is_short = !self.is_short;
        self.n_shallow = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_leaves_its_large_buffers_while_its_reader_keeps_up_and_returns_when_it_does_not() {
        let mut set = WorkingSet::new();
        assert!(!set.decide(100));
        set.note_unread(SHALLOW + 1);
        assert!(!set.decide(0), "more was unread meanwhile");
        assert!(!set.decide(SHALLOW) && set.decide(SHALLOW));
        set.change_over();
        assert!(!set.decide(SHORT_BUF as usize - 1));
        set.note_unread(SHORT_BUF as usize);
        assert!(set.decide(0));
        set.change_over();
        let n = (1..).find(|_| set.decide(0)).unwrap_or(0);
        assert_eq!(n, 8, "it takes longer the next time");
    }
}
