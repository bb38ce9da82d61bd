//! What a stream can do now.

use crate::engine::QpStream;
use crate::engine::shared::{FLAG_DISCONNECTED, FLAG_EOF, FLAG_SEND_CLOSED};
use crate::interrupt::Section;
use rsock_verbs::{Backend, CompletionQueue, QueuePair};
use std::sync::atomic::Ordering;

/// What a stream can do now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A receive would return data, end of stream, or an error.
    pub readable: bool,
    /// A send would take bytes, or fail at once.
    pub writable: bool,
    /// Both directions are over.
    pub hung_up: bool,
    /// The connection failed.
    pub failed: bool,
}

/// What has arrived on a stream, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes that a receive could return.
    pub readable: usize,
    /// Whether the peer has ended its direction, or the stream is over.
    pub has_eof: bool,
    /// The [mark](QpStream::mark) of that moment.
    pub mark: u32,
}

impl Ready {
    /// Makes the end of the stream readable and writable: it may have come after input and room
    /// were checked. A caller that asks for input alone, as `select(2)` over `poll(2)` does, must
    /// see it as input.
    fn with_end(mut self) -> Self {
        self.readable |= self.hung_up || self.failed;
        self.writable |= self.hung_up || self.failed;
        self
    }
}

impl<B: Backend> QpStream<B> {
    /// What the stream can do now. Dispatches completions first.
    #[must_use]
    pub fn readiness(&self) -> Ready {
        let mail = &self.ring.shared.mail;
        let (readable, writable) = (self.has_input(), self.has_room());
        let failed = mail.error.load(Ordering::Acquire) != 0;
        Ready { readable, writable, hung_up: mail.has(FLAG_DISCONNECTED), failed }.with_end()
    }

    /// Whether the peer has ended its direction, or the stream is over, as far as that has been
    /// dispatched. Costs a load.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ring.shared.mail.has(FLAG_EOF)
    }

    /// Whether a receive would return something: data, the end of the stream, or an error.
    #[must_use]
    pub fn has_input(&self) -> bool {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        if self.resources.cq.is_ready() {
            self.pump(&mut recv);
        }
        recv.half.readable() != 0 || self.ring.shared.mail.has(FLAG_EOF)
    }

    /// What has arrived. Dispatches completions first.
    #[must_use]
    pub fn arrived(&self) -> Arrived {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        if self.resources.cq.is_ready() {
            self.pump(&mut recv);
        }
        // Under the lock, without which nothing is dispatched.
        let has_eof = self.ring.shared.mail.has(FLAG_EOF);
        Arrived { readable: recv.half.readable(), has_eof, mark: self.mark() }
    }

    /// Whether the peer has ended its direction, or the stream is over. Dispatches completions
    /// first.
    #[must_use]
    pub fn has_eof(&self) -> bool {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        self.ring.shared.mail.has(FLAG_EOF)
    }

    /// Whether the peer itself has ended its direction, not a failure. Dispatches completions
    /// first.
    #[must_use]
    pub fn peer_has_ended(&self) -> bool {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        !recv.life.is_readable()
    }

    /// Whether a send would take bytes, or fail at once.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let _section = Section::enter();
        let mut send = self.ring.lock_send();
        self.poll_credits(&mut send);
        send.half.room() != 0 && !self.queue_is_full()
            || self.ring.shared.mail.has(FLAG_SEND_CLOSED)
    }

    /// Whether the send queue has no room now. Dispatches completions first.
    #[inline]
    pub(super) fn queue_is_full(&self) -> bool {
        if !B::SENDS_WAIT || !self.resources.qp.is_full() {
            return false;
        }
        self.pump_if_free();
        self.resources.qp.is_full()
    }

    /// Whether everything that was sent has reached the peer, the last control message included; or
    /// never will.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        if !B::SENDS_WAIT {
            return true;
        }
        let _section = Section::enter();
        self.pump(&mut self.ring.lock_recv());
        self.resources.qp.is_idle() || self.ring.shared.mail.error.load(Ordering::Acquire) != 0
    }

    /// Whether the peer's program has left some of the first `sent` bytes unread (of all that were
    /// sent without a number), as far as the device reports it. That includes a peer that was
    /// killed.
    #[must_use]
    pub fn is_unread(&self, sent: Option<u64>) -> bool {
        let _section = Section::enter();
        let sent = sent.unwrap_or_else(|| self.ring.lock_send().sent);
        self.resources.qp.consumed_by_peer().is_some_and(|consumed| consumed < sent)
    }

    /// Whether the peer's program has read exactly the first `sent` bytes (as in
    /// [`Self::is_unread`]), and the stream [is quiet](Self::is_quiet): since the last of them was
    /// sent the peer was there. False if the device does not report what was read.
    #[inline]
    #[must_use]
    pub fn has_read_all(&self, sent: u64) -> bool {
        self.is_quiet() && self.resources.qp.consumed_by_peer() == Some(sent)
    }

    /// Whether the peer has not ended its direction, and nothing has arrived that was not
    /// dispatched.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_over() && !self.resources.cq.is_ready()
    }

    /// Whether the peer's process has ended; see
    /// [`QueuePair::is_peer_dead`].
    #[must_use]
    pub fn is_peer_dead(&self) -> bool {
        let _section = Section::enter();
        self.resources.qp.is_peer_dead()
    }

    /// Marks future data as unneeded, so that unread bytes do not become a reset.
    pub fn ignore_unread(&self) {
        let _section = Section::enter();
        let _recv = self.ring.lock_recv();
        self.resources.qp.note_consumed(u64::MAX);
    }

    /// Number of bytes that a receive could return now.
    #[must_use]
    pub fn bytes_readable(&self) -> usize {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        recv.half.readable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_stream_is_readable_and_writable() {
        let seen_before = Ready::default();
        let ends = [Ready { hung_up: true, ..seen_before }, Ready { failed: true, ..seen_before }];
        for end in ends {
            let told = end.with_end();
            assert!(told.readable && told.writable, "{told:?}");
        }
        assert_eq!(seen_before.with_end(), seen_before);
    }
}
