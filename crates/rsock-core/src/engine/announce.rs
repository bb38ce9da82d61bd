//! Announcements: how an event loop waits for many streams of the soft device at the cost of those
//! with news.

use crate::engine::QpStream;
use rsock_verbs::Error;
use rsock_verbs::soft::{ReadyNumber, Soft, SoftReadySet};

impl QpStream<Soft> {
    /// Has `set` watch this stream, and no other set.
    ///
    /// # Errors
    /// When the set or the segment is full.
    pub fn watch_by(&self, set: &SoftReadySet) -> Result<ReadyNumber, Error> {
        let number = set.watch(&self.resources.cq)?;
        // Counts as a waiter: what another thread dispatches is announced, too.
        self.ring.shared.mail.events.enter();
        Ok(number)
    }

    /// Ends [`Self::watch_by`].
    pub fn unwatch(&self, set: &SoftReadySet, number: ReadyNumber) {
        self.ring.shared.mail.events.leave();
        set.unwatch(&self.resources.cq, number);
    }

    /// Has the set told of the next thing that happens after `mark`. False if something has
    /// happened already: then the set may be told, or not.
    #[must_use]
    pub fn announce_next(&self, mark: u32) -> bool {
        self.resources.cq.announce_next();
        !self.has_changed(mark)
    }
}
