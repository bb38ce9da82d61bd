//! The entries of a stream while proxies take the place of its descriptors.

use super::adopt::replace;
use super::closed::{Ending, release_descriptor};
use super::word::{ADOPTING, Word};
use super::{entry, known_fds};
use crate::log;
use crate::slot::{Handle, Key};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;

/// The claimed entries of a stream: calls on them wait until this is dropped. Only held inside a
/// [`Section`](rsock_core::interrupt::Section), or a signal handler would wait for the code that it
/// interrupts.
#[must_use]
pub(crate) struct ClaimedEntries {
    key: Key,
    entries: Vec<c_int>,
}

/// Claims the entries of the stream.
pub(crate) fn claim(stream: &Handle) -> ClaimedEntries {
    let key = stream.key();
    let word = Word::of_slot(key);
    let take =
        |&fd: &c_int| entry(fd).is_some_and(|entry| replace(entry, word, word.with_kind(ADOPTING)));
    ClaimedEntries { key, entries: known_fds(0, u32::MAX).filter(take).collect() }
}

impl ClaimedEntries {
    /// Whether another thread has claimed all entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Proxies have taken the place of the stream's descriptors, and the kernel alone serves them.
    pub(crate) fn replaced_by_proxies(mut self) {
        for fd in std::mem::take(&mut self.entries) {
            let Some(entry) = entry(fd) else { continue };
            log::line(format_args!("fd {fd}: replaced by a proxy"));
            let claimed = Word::of_slot(self.key).with_kind(ADOPTING);
            replace(entry, claimed, Word::NOTHING.with_reason(FallbackReason::Passed));
        }
    }
}

impl Drop for ClaimedEntries {
    fn drop(&mut self) {
        let word = Word::of_slot(self.key);
        for &fd in &self.entries {
            // If not, the program has closed the descriptor meanwhile.
            if entry(fd).is_some_and(|entry| !replace(entry, word.with_kind(ADOPTING), word)) {
                release_descriptor(self.key, fd, Ending::Stale);
            }
        }
    }
}
