//! Announcements: how an event loop waits for many streams of the soft device at the cost of those
//! with news.
//!
//! An epoll set arms its streams again and again ([`QpStream::announce_next`]), and counts as a
//! waiter of each as long as it watches it. A runtime's poll driver counts as one only while tasks
//! wait ([`QpStream::announce_to_waiter`]): a stream whose tasks are busy costs nothing.

use crate::engine::QpStream;
use rsock_verbs::Error;
use rsock_verbs::soft::{ReadyNumber, Soft, SoftReadySet};

impl QpStream<Soft> {
    /// Has `set` watch this stream for an event loop that always waits for it.
    ///
    /// # Errors
    /// When another set watches it, or when the set or the segment is full.
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

    /// Whether no forked process has the stream, too, whose own set may watch it.
    #[must_use]
    pub fn is_unshared(&self) -> bool {
        self.resources.cq.is_unshared()
    }

    /// Has `set` watch this stream for tasks that wait for it now and then. `None` if a forked
    /// process has the stream, too, whose own set may watch it; or as [`Self::watch_by`] fails.
    #[must_use]
    pub fn join_set(&self, set: &SoftReadySet) -> Option<ReadyNumber> {
        if self.is_unshared() { set.watch(&self.resources.cq).ok() } else { None }
    }

    /// Ends [`Self::join_set`].
    pub fn leave_set(&self, set: &SoftReadySet, number: ReadyNumber) {
        set.unwatch(&self.resources.cq, number);
    }

    /// As [`Self::announce_next`], until [`Self::stop_announcing`]. False, and nothing is to be
    /// stopped, if something has happened after `mark`.
    #[must_use]
    pub fn announce_to_waiter(&self, mark: u32) -> bool {
        self.ring.shared.mail.events.enter();
        let is_armed = self.announce_next(mark);
        if !is_armed {
            self.stop_announcing();
        }
        is_armed
    }

    /// Undoes an [`Self::announce_to_waiter`] that returned true. One announcement may still come.
    pub fn stop_announcing(&self) {
        self.resources.cq.announce_no_more();
        self.ring.shared.mail.events.leave();
    }
}
