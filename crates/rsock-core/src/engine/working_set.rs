//! The working set of receive memory, on devices that do not pin it: two short buffers while the
//! reader keeps up, the large ones while it falls behind, and more of these for a stream that is
//! the only one of its process to have large ones.
//!
//! A peer fills the buffers of a ring in turn, so a stream of small messages would touch all of its
//! ring: memory that no cache holds, for many streams at once, and of which both ends take a page
//! fault for each page. A reader that keeps up needs only as much of it as is under way. So a
//! stream that has TCP beside it begins with two short buffers. It goes on in the large ones as
//! soon as more is unread, returns to the short ones once it has filled some large ones while few
//! bytes were unread, and gives the pages of the large ones back. Each time it takes longer to
//! leave them.
//!
//! PERF: haproxy before nginx, 64 connections: the first second of streams that began in the large
//! buffers took 42,000 page faults, and had 0.8 times the requests of a later second.
//!
//! A stream cannot recall a buffer that it has announced, so it decides when one has been filled.

/// Bytes of a short buffer. What is unread and the room for more are at least so much together,
/// which TCP has room for at any time: a program may count on it that a write of less never waits.
pub(in crate::engine) const SHORT_BUF: u32 = 48 << 10;
/// Buffers of the short ring.
pub(in crate::engine) const N_SHORT: u8 = 2;
/// Bytes of the short ring.
pub(in crate::engine) const SHORT_RING: usize = SHORT_BUF as usize * N_SHORT as usize;
/// A reader keeps up while at most this much is unread.
const SHALLOW: usize = 8 << 10;
/// A reader falls behind once so much is unread.
const DEEP: usize = 16 << 10;
/// Most large buffers that are filled before the stream leaves them.
const MOST: u16 = 256;
/// Large buffers that are filled in turn while much is unread, before the stream has more of them.
const MANY_DEEP: u16 = 12;

/// What becomes of a stream's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Decision {
    /// The buffers stay as they are.
    Stay,
    /// The other buffers are announced from now on.
    ChangeOver,
    /// There may be more large buffers.
    Extend,
}

/// Which buffers a stream uses, and what it decides by.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct WorkingSet {
    /// Whether short buffers are announced.
    is_short: bool,
    /// Whether there are more large buffers than usual.
    is_extended: bool,
    /// Most bytes that were unread since the last decision.
    deepest: usize,
    /// Large buffers that were filled in turn while few bytes were unread.
    n_shallow: u16,
    /// Large buffers that were filled in turn while more was unread.
    n_deep: u16,
    /// How many of these it takes to leave the large buffers.
    needed: u16,
}

impl WorkingSet {
    /// A stream of which one buffer is announced, a short one if `is_short`.
    pub(in crate::engine) fn new(is_short: bool) -> Self {
        // The second large buffer is announced before the first has been filled: one too many.
        Self { is_short, is_extended: false, deepest: 0, n_shallow: 0, n_deep: 0, needed: 2 }
    }

    /// Notes how many bytes a reader found.
    #[inline]
    pub(in crate::engine) fn note_unread(&mut self, n: usize) {
        self.deepest = self.deepest.max(n);
    }

    /// A buffer has been filled, while `unread` bytes were unread.
    pub(in crate::engine) fn decide(&mut self, unread: usize) -> Decision {
        let deepest = std::mem::take(&mut self.deepest).max(unread);
        if self.is_short {
            if deepest < DEEP {
                return Decision::Stay;
            }
            self.needed = self.needed.saturating_mul(4).min(MOST);
            self.n_shallow = 0;
            return Decision::ChangeOver;
        }
        (self.n_shallow, self.n_deep) = match deepest <= SHALLOW {
            true => (self.n_shallow + 1, 0),
            false => (0, self.n_deep.saturating_add(1)),
        };
        if self.n_shallow >= self.needed {
            Decision::ChangeOver
        } else if self.n_deep >= MANY_DEEP && !self.is_extended {
            Decision::Extend
        } else {
            Decision::Stay
        }
    }

    /// Whether short buffers are announced.
    #[inline]
    pub(in crate::engine) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether there are more large buffers than usual.
    #[inline]
    pub(in crate::engine) fn is_extended(&self) -> bool {
        self.is_extended
    }

    /// There are more large buffers from now on.
    pub(in crate::engine) fn extend(&mut self) {
        self.is_extended = true;
    }

    /// From now on the other buffers are announced.
    pub(in crate::engine) fn change_over(&mut self) {
        self.is_short = !self.is_short;
        (self.n_shallow, self.n_deep, self.is_extended) = (0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{ChangeOver, Extend, Stay};
    use super::*;

    #[test]
    fn a_stream_leaves_its_large_buffers_while_its_reader_keeps_up_and_returns_when_it_does_not() {
        let mut set = WorkingSet::new(false);
        assert_eq!(set.decide(100), Stay);
        set.note_unread(SHALLOW + 1);
        assert_eq!(set.decide(0), Stay, "more was unread meanwhile");
        assert_eq!((set.decide(SHALLOW), set.decide(SHALLOW)), (Stay, ChangeOver));
        set.change_over();
        assert_eq!(set.decide(DEEP - 1), Stay);
        set.note_unread(DEEP);
        assert_eq!(set.decide(0), ChangeOver);
        set.change_over();
        let n = (1..).find(|_| set.decide(0) == ChangeOver).unwrap_or(0);
        assert_eq!(n, 8, "it takes longer the next time");
    }

    #[test]
    fn a_stream_has_more_buffers_once_its_reader_stays_behind() {
        let mut set = WorkingSet::new(false);
        for _ in 1..MANY_DEEP {
            assert_eq!(set.decide(DEEP), Stay);
        }
        assert_eq!(set.decide(SHALLOW), Stay, "the reader kept up once");
        let n = (1..).find(|_| set.decide(DEEP) == Extend).unwrap_or(0);
        assert_eq!(n, MANY_DEEP);
        assert_eq!(set.decide(DEEP), Extend, "nothing was extended");
        set.extend();
        assert!(set.is_extended() && set.decide(DEEP) == Stay);
        let _ = (1..).find(|_| set.decide(0) == ChangeOver);
        set.change_over();
        assert!(!set.is_extended(), "the short buffers are as many as before");
    }
}
