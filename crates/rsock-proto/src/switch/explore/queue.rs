//! A short queue without pointers, for states that are copied and compared.

use std::hash::{Hash, Hasher};

/// Entries at most.
const MOST: usize = 8;

/// A queue of small entries other than zero; unused places are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    entries: [u8; MOST],
    len: u8,
}

impl Queue {
    pub(super) fn len(&self) -> u8 {
        self.len
    }

    pub(super) fn push(&mut self, entry: u8) {
        self.entries[usize::from(self.len)] = entry;
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<u8> {
        let first = *self.as_slice().first()?;
        self.entries.copy_within(1.., 0);
        self.len -= 1;
        self.entries[usize::from(self.len)] = 0;
        Some(first)
    }

    pub(super) fn truncate(&mut self, len: u8) {
        for at in len..self.len {
            self.entries[usize::from(at)] = 0;
        }
        self.len = self.len.min(len);
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.entries[..usize::from(self.len)]
    }
}

impl Hash for Queue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        u64::from_le_bytes(self.entries).hash(state);
    }
}
