//! The query of a call that receives.

use super::{Receiver, Source};
use crate::switch::rules::is_mistaken;
use crate::switch::seen::Known;
use crate::switch::{
    Cause, Conditions, Fault, FlagConditions, Observation, Peeked, ReceivedMessages, Rules, Seen,
    Step,
};

/// What a receiving call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Read the kernel's socket. Report bytes with [`Receiver::took_tcp`]; if there were none,
    /// report that fact and ask again.
    Tcp {
        /// Bytes at most; `u64::MAX` for any number.
        most: u64,
    },
    /// Read the ring. Report bytes with [`Receiver::took_ring`]; if there were none, report that
    /// fact and ask again.
    Ring,
    /// There are no bytes. Wait, if the call may, and begin a new try.
    Wait(WaitFor),
    /// There are no bytes, and no event will announce those that are missing. Begin a new try after
    /// a short time.
    WaitBriefly,
    /// The call has received something, and ends here, as on TCP: before an urgent byte or an
    /// error.
    Stop,
    /// The end of the stream.
    End,
    /// The peer has gone and left bytes unread: a reset, as TCP would have it (`ECONNRESET`).
    Reset,
    /// The ring failed with bytes under way: break the connection off.
    BreakOff,
    /// The kernel's socket, or the ring, reported an error: return it.
    Fail,
    /// The stream cannot go on.
    Fault(Fault),
}

/// What a receiving call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitFor {
    /// The kernel's socket alone. The thread counts as a
    /// [`KERNEL_ONLY_WAITER`](Conditions::KERNEL_ONLY_WAITER) from before the lock is released
    /// until it has woken.
    Tcp,
    /// The kernel's socket, or anything on the ring since the try began.
    TcpOrRing,
    /// Anything on the ring since the try began, or the end of the kernel's socket.
    Ring,
}

impl From<Fault> for Read {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<R: Rules> Receiver<R> {
    /// Whether [`Self::read`] would answer [`Read::Ring`] after an observation that finds no
    /// messages but `messages`. A shortcut for most calls: a read of the ring needs no observation
    /// before it, because a sender that has left the ring writes there only after another
    /// invitation.
    #[inline]
    #[must_use]
    pub fn reads_ring(&self, now: FlagConditions, messages: ReceivedMessages) -> bool {
        self.source == Source::Ring
            && self.pending_error == 0
            && now.has(FlagConditions::PAIRED)
            && !now.has(FlagConditions::PINNED)
            && messages.counts.downs() == self.downs
    }

    /// Whether [`Self::poll_input`] would answer that the ring has the next byte, and the kernel's
    /// socket the end alone. As [`Self::reads_ring`], for calls that only look.
    #[inline]
    #[must_use]
    pub fn polls_ring(&self, now: FlagConditions, messages: ReceivedMessages) -> bool {
        self.reads_ring(now, messages)
    }

    /// Whether [`Self::read`] would answer [`WaitFor::Ring`] after [`Self::reads_ring`] and a read
    /// that found the ring empty, where `messages` were taken by the end of that read.
    #[inline]
    #[must_use]
    pub fn waits_for_ring(&self, now: FlagConditions, messages: ReceivedMessages) -> bool {
        let must_check = FlagConditions::SOCKET_CHECK_DUE.with(FlagConditions::RECEIVING_ENDED);
        self.reads_ring(now, messages) && !now.has(must_check)
    }

    /// What a receiving call does next.
    #[must_use]
    pub fn read(&mut self, seen: &mut Seen) -> Step<Read> {
        if seen.peeked() == Some(Peeked::Error) && !is_mistaken!(R, ErrorForgotten) {
            // There may be bytes before it, and this try may end with them.
            self.pending_error = 1;
        }
        // Bytes that are in the queue before the messages are observed were written before an
        // answer that arrives later.
        let has_order = !is_mistaken!(R, QueueAfterMessages);
        if self.source == Source::Invited && !seen.knows(Known::QUEUED) && has_order {
            return Step::Observe(Observation::Queued);
        }
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if self.source != Source::Ring && seen.is(Conditions::HAS_RECEIVED) {
            if !seen.knows(Known::TCP_HAS_MORE.or(Known::TCP_ENDS_CALL)) {
                return Step::Observe(Observation::TcpEndsCall);
            }
            if seen.knows(Known::TCP_ENDS_CALL) {
                return Step::Done(Read::Stop);
            }
        }
        match self.source {
            Source::Tcp => self.read_tcp(seen),
            // The queue is observed first: see above.
            Source::Invited if !seen.knows(Known::QUEUED) => Step::Observe(Observation::Queued),
            Source::Invited => self.read_invited(seen),
            Source::DrainingTcp => self.read_up_to_limit(seen),
            Source::Ring => self.read_ring(seen),
        }
    }

    fn read_tcp(&mut self, seen: &Seen) -> Step<Read> {
        if seen.knows(Known::TCP_EOF) {
            return self.end_of_tcp(seen);
        }
        if seen.knows(Known::TCP_EMPTY) {
            return Step::Done(Read::Wait(WaitFor::Tcp));
        }
        Step::Done(Read::Tcp { most: u64::MAX })
    }

    fn read_invited(&mut self, seen: &Seen) -> Step<Read> {
        if seen.knows(Known::TCP_EMPTY) {
            return Step::Done(Read::Wait(WaitFor::TcpOrRing));
        }
        if seen.knows(Known::TCP_EOF) {
            return self.end_of_tcp(seen);
        }
        if is_mistaken!(R, InvitedReadsAll) {
            return Step::Done(Read::Tcp { most: u64::MAX });
        }
        if seen.queued != 0 {
            return Step::Done(Read::Tcp { most: seen.queued });
        }
        match seen.peeked() {
            None => Step::Observe(Observation::Peek),
            Some(Peeked::Nothing) => Step::Done(Read::Wait(WaitFor::TcpOrRing)),
            Some(Peeked::Error) => self.fail(seen),
            Some(Peeked::End) if seen.is(Conditions::BETWEEN_HOSTS) => {
                Self::end_between_hosts(seen)
            }
            Some(Peeked::End) => self.end_of_tcp(seen),
            // The kernel counts only up to an urgent byte. The sender of one pins its stream before
            // it sends it. It was not on the ring: its `Up` would have arrived before the byte.
            Some(Peeked::Bytes | Peeked::UrgentMark) if !seen.is(Conditions::PINNED) => {
                Step::Pin(Cause::Urgent)
            }
            Some(Peeked::Bytes | Peeked::UrgentMark) => Step::Done(Read::Tcp { most: u64::MAX }),
        }
    }

    fn read_up_to_limit(&self, seen: &Seen) -> Step<Read> {
        if seen.knows(Known::TCP_EMPTY) {
            return Step::Done(Read::Wait(WaitFor::TcpOrRing));
        }
        if seen.knows(Known::TCP_EOF) {
            // If this process has ended the receiving direction, bytes can still be read once they
            // arrive. If the peer has ended TCP before the agreed offset, bytes are lost.
            let is_own = seen.is(Conditions::RECEIVING_ENDED) && !seen.is(Conditions::BROKEN);
            return Step::Done(if is_own { Read::End } else { Fault::Lost.into() });
        }
        if is_mistaken!(R, LimitIgnored) {
            return Step::Done(Read::Tcp { most: u64::MAX });
        }
        Step::Done(Read::Tcp { most: self.limit.wrapping_sub(self.tcp_bytes) })
    }

    fn read_ring(&mut self, seen: &mut Seen) -> Step<Read> {
        if !seen.knows(Known::RING_EMPTY) {
            return Step::Done(Read::Ring);
        }
        if seen.knows(Known::RING_BROKE) && seen.is(Conditions::BETWEEN_HOSTS) {
            return Step::Done(Read::BreakOff);
        }
        if seen.knows(Known::RING_FAILED) {
            return Step::Done(Read::Fail);
        }
        if is_mistaken!(R, RingEndIsTheEnd) && seen.knows(Known::RING_CLOSED) {
            return Step::Done(Read::End);
        }
        let is_due = self.pending_error != 0
            || seen.is(Conditions::SOCKET_CHECK_DUE.with(Conditions::RECEIVING_ENDED));
        if !seen.knows(Known::RING_CLOSED.or(Known::TCP_ENDED)) {
            if !is_due || seen.knows(Known::TCP_OPEN) {
                return Step::Done(Read::Wait(WaitFor::Ring));
            }
            return Step::Observe(Observation::TcpEnded);
        }
        match seen.peeked() {
            None => Step::Observe(Observation::Peek),
            Some(Peeked::Error) => self.fail(seen),
            Some(peeked) => self.end_after_ring(seen, peeked),
        }
    }

    /// The ring, or TCP, has ended, and a peek on TCP returned `peeked`.
    fn end_after_ring(&mut self, seen: &mut Seen, peeked: Peeked) -> Step<Read> {
        if let Some(first) = Self::check_for_more(seen) {
            return first;
        }
        match peeked {
            Peeked::End | Peeked::Nothing if seen.is(Conditions::BETWEEN_HOSTS) => {
                Self::end_between_hosts(seen)
            }
            Peeked::End => self.end_of_tcp(seen),
            // The end of the stream has arrived on the ring; that of TCP is on its way.
            Peeked::Nothing if seen.knows(Known::RING_CLOSED) => Step::Done(Read::End),
            Peeked::Nothing => Step::Done(Read::Wait(WaitFor::Ring)),
            Peeked::Bytes | Peeked::UrgentMark if !seen.is(Conditions::PINNED) => {
                Step::Pin(Cause::ForeignUse)
            }
            Peeked::Bytes | Peeked::UrgentMark => Step::Done(Fault::ForeignBytes.into()),
            Peeked::Error => self.fail(seen),
        }
    }

    /// All that the peer sent before it ended has arrived on the ring: checks whether bytes are
    /// there. A message that the peer has left the ring moves the direction in `advance`.
    fn check_for_more(seen: &mut Seen) -> Option<Step<Read>> {
        if !seen.knows(Known::ALL_MESSAGES) {
            return Some(Step::Observe(Observation::AllMessages));
        }
        if !seen.knows(Known::RING) {
            return Some(Step::Observe(Observation::RingBytes));
        }
        if seen.ring != 0 {
            seen.read_ring_again();
            return Some(Step::Done(Read::Ring));
        }
        None
    }

    /// TCP has ended between hosts, and no bytes are on the ring. Unless the end is on the ring as
    /// well, bytes may be lost, or still on their way.
    fn end_between_hosts(seen: &Seen) -> Step<Read> {
        if seen.is(Conditions::RECEIVING_ENDED) {
            return Step::Done(Read::End);
        }
        if !seen.knows(Known::RING_OPEN.or(Known::RING_ENDED)) {
            return Step::Observe(Observation::RingEnd);
        }
        if seen.is(Conditions::RING_FAILED.with(Conditions::BROKEN)) {
            return Step::Done(Read::BreakOff);
        }
        if seen.knows(Known::RING_ENDED) || is_mistaken!(R, EndOfTcpBetweenHosts) {
            return Step::Done(Read::End);
        }
        if seen.is(Conditions::END_OVERDUE) {
            return Step::Done(Read::BreakOff);
        }
        Step::Done(Read::WaitBriefly)
    }

    /// A peek took an error from the kernel's socket, and no bytes come before it. A call that has
    /// received something leaves it to the next one, which finds the end of TCP as well.
    fn fail(&mut self, seen: &Seen) -> Step<Read> {
        if seen.is(Conditions::HAS_RECEIVED) && !seen.is(Conditions::BETWEEN_HOSTS) {
            return Step::Done(Read::Stop);
        }
        self.pending_error = 0;
        Step::Done(Read::Fail)
    }

    /// TCP has ended, and no more bytes can arrive.
    fn end_of_tcp(&mut self, seen: &Seen) -> Step<Read> {
        if std::mem::take(&mut self.pending_error) != 0 || seen.is(Conditions::BROKEN) {
            return Step::Done(Fault::Lost.into());
        }
        if !seen.is(Conditions::PAIRED) || seen.knows(Known::NONE_UNREAD) {
            return Step::Done(Read::End);
        }
        if seen.knows(Known::UNREAD) {
            return Step::Done(Read::Reset);
        }
        Step::Observe(Observation::LeftUnread)
    }
}
