//! The query of a call that receives.

use super::{Receiver, Source};
use crate::switch::rules::is_mistaken;
use crate::switch::seen::Known;
use crate::switch::{Cause, Conditions, Fault, Heard, Look, Peeked, Rules, Seen, Step};

/// What a receiving call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Read the kernel's socket, at most so many bytes. Then [`Receiver::took_tcp`], or the fact
    /// that nothing came and the query again.
    Tcp {
        /// Bytes at most; `u64::MAX` for any number.
        most: u64,
    },
    /// Read the ring. Then [`Receiver::took_ring`], or the fact that nothing came and the query
    /// again.
    Ring,
    /// Nothing is there. Wait, if the call may, and begin a new try.
    Wait(WaitFor),
    /// Nothing is there, and nothing announces what is missing. Begin a new try in a moment.
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
    /// Whether [`Self::read`] would answer [`Read::Ring`] after a look for messages that finds no
    /// others than `messages`. For the calls that are many: a read of the ring needs no look
    /// before it, because a sender that has left the ring writes there only after another
    /// invitation.
    #[inline]
    #[must_use]
    pub fn reads_ring(&self, now: Conditions, messages: Heard) -> bool {
        self.source == Source::Ring
            && self.owes_error == 0
            && now.has(Conditions::PAIRED)
            && !now.has(Conditions::PINNED)
            && messages.counts.downs() == self.downs
    }

    /// Whether [`Self::read`] would answer [`WaitFor::Ring`] after [`Self::reads_ring`] and a read
    /// that found the ring empty, where `messages` were taken by the end of that read.
    #[inline]
    #[must_use]
    pub fn waits_for_ring(&self, now: Conditions, messages: Heard) -> bool {
        let must_look = Conditions::LOOK_DUE.with(Conditions::RECEIVING_ENDED);
        self.reads_ring(now, messages) && !now.has(must_look)
    }

    /// What a receiving call does next.
    #[must_use]
    pub fn read(&mut self, seen: &mut Seen) -> Step<Read> {
        if seen.peeked() == Some(Peeked::Error) && !is_mistaken!(R, ErrorForgotten) {
            // There may be bytes before it, and this try may end with them.
            self.owes_error = 1;
        }
        // Bytes that are queued before the look for an answer were written before it.
        let has_order = !is_mistaken!(R, QueueAfterMessages);
        if self.source == Source::Invited && !seen.knows(Known::QUEUED) && has_order {
            return Step::Look(Look::Queued);
        }
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if self.source != Source::Ring && seen.is(Conditions::HAS_RECEIVED) {
            if !seen.knows(Known::TCP_GOES_ON.or(Known::TCP_STOPS)) {
                return Step::Look(Look::TcpStops);
            }
            if seen.knows(Known::TCP_STOPS) {
                return Step::Done(Read::Stop);
            }
        }
        match self.source {
            Source::Tcp => self.read_tcp(seen),
            // Its queue is looked at first: see above.
            Source::Invited if !seen.knows(Known::QUEUED) => Step::Look(Look::Queued),
            Source::Invited => self.read_invited(seen),
            Source::Clamped => self.read_clamped(seen),
            Source::Ring => self.read_ring(seen),
        }
    }

    fn read_tcp(&mut self, seen: &Seen) -> Step<Read> {
        if seen.knows(Known::TCP_END) {
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
        if seen.knows(Known::TCP_END) {
            return self.end_of_tcp(seen);
        }
        if is_mistaken!(R, InvitedReadsAll) {
            return Step::Done(Read::Tcp { most: u64::MAX });
        }
        if seen.queued != 0 {
            return Step::Done(Read::Tcp { most: seen.queued });
        }
        match seen.peeked() {
            None => Step::Look(Look::Peek),
            Some(Peeked::Nothing) => Step::Done(Read::Wait(WaitFor::TcpOrRing)),
            Some(Peeked::Error) => self.fail(),
            Some(Peeked::End) if seen.is(Conditions::BETWEEN_HOSTS) => {
                Self::end_between_hosts(seen)
            }
            Some(Peeked::End) => self.end_of_tcp(seen),
            // The kernel counts only up to an urgent byte. A sender of one stays on TCP from before
            // it, and was not on the ring, or that had been heard.
            Some(Peeked::Bytes | Peeked::Mark) if !seen.is(Conditions::PINNED) => {
                Step::Pin(Cause::Urgent)
            }
            Some(Peeked::Bytes | Peeked::Mark) => Step::Done(Read::Tcp { most: u64::MAX }),
        }
    }

    fn read_clamped(&self, seen: &Seen) -> Step<Read> {
        if seen.knows(Known::TCP_EMPTY) {
            return Step::Done(Read::Wait(WaitFor::TcpOrRing));
        }
        if seen.knows(Known::TCP_END) {
            // Our own end: what has not arrived yet can still be read once it has. The peer's end
            // before the agreed byte: what should follow is lost.
            let is_ours = seen.is(Conditions::RECEIVING_ENDED) && !seen.is(Conditions::BROKEN);
            return Step::Done(if is_ours { Read::End } else { Fault::Lost.into() });
        }
        if is_mistaken!(R, ClampIgnored) {
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
        if is_mistaken!(R, RingEndIsTheEnd) && seen.knows(Known::RING_OVER) {
            return Step::Done(Read::End);
        }
        let is_due = seen.is(Conditions::LOOK_DUE.with(Conditions::RECEIVING_ENDED));
        if !seen.knows(Known::RING_OVER.or(Known::TCP_ENDED)) {
            if !is_due || seen.knows(Known::TCP_OPEN) {
                return Step::Done(Read::Wait(WaitFor::Ring));
            }
            return Step::Look(Look::TcpEnded);
        }
        match seen.peeked() {
            None => Step::Look(Look::Peek),
            Some(Peeked::Error) => self.fail(),
            Some(peeked) => self.end_behind_ring(seen, peeked),
        }
    }

    /// The ring, or TCP, has ended, and a look ahead on TCP met `peeked`.
    fn end_behind_ring(&mut self, seen: &mut Seen, peeked: Peeked) -> Step<Read> {
        if let Some(first) = Self::look_for_more(seen) {
            return first;
        }
        match peeked {
            Peeked::End | Peeked::Nothing if seen.is(Conditions::BETWEEN_HOSTS) => {
                Self::end_between_hosts(seen)
            }
            Peeked::End => self.end_of_tcp(seen),
            // The end of the stream stands on the ring; TCP's is on its way.
            Peeked::Nothing if seen.knows(Known::RING_OVER) => Step::Done(Read::End),
            Peeked::Nothing => Step::Done(Read::Wait(WaitFor::Ring)),
            Peeked::Bytes | Peeked::Mark if !seen.is(Conditions::PINNED) => {
                Step::Pin(Cause::ForeignUse)
            }
            Peeked::Bytes | Peeked::Mark => Step::Done(Fault::ForeignBytes.into()),
            Peeked::Error => self.fail(),
        }
    }

    /// Whatever the peer did before it ended is to be seen on the ring: looks whether there is
    /// something. The message that it has left the ring moves the direction by itself.
    fn look_for_more(seen: &mut Seen) -> Option<Step<Read>> {
        if !seen.knows(Known::MESSAGES) {
            return Some(Step::Look(Look::Messages));
        }
        if !seen.knows(Known::RING) {
            return Some(Step::Look(Look::RingBytes));
        }
        if seen.ring != 0 {
            seen.read_ring_again();
            return Some(Step::Done(Read::Ring));
        }
        None
    }

    /// TCP has ended between hosts, and nothing is on the ring. Without the end on the ring as
    /// well, something may be lost, or on its way still.
    fn end_between_hosts(seen: &Seen) -> Step<Read> {
        if seen.is(Conditions::RECEIVING_ENDED) {
            return Step::Done(Read::End);
        }
        if !seen.knows(Known::RING_OPEN.or(Known::RING_ENDED)) {
            return Step::Look(Look::RingEnd);
        }
        if seen.is(Conditions::RING_FAILED.with(Conditions::BROKEN)) {
            return Step::Done(Read::BreakOff);
        }
        if seen.knows(Known::RING_ENDED) || is_mistaken!(R, EndOfTcpBetweenHosts) {
            return Step::Done(Read::End);
        }
        if seen.is(Conditions::GRACE_OVER) {
            return Step::Done(Read::BreakOff);
        }
        Step::Done(Read::WaitBriefly)
    }

    /// A look ahead took an error from the kernel's socket, and nothing comes before it.
    fn fail(&mut self) -> Step<Read> {
        self.owes_error = 0;
        Step::Done(Read::Fail)
    }

    /// TCP has ended, and nothing else can come.
    fn end_of_tcp(&mut self, seen: &Seen) -> Step<Read> {
        if std::mem::take(&mut self.owes_error) != 0 || seen.is(Conditions::BROKEN) {
            return Step::Done(Fault::Lost.into());
        }
        if !seen.is(Conditions::PAIRED) || seen.knows(Known::NONE_UNREAD) {
            return Step::Done(Read::End);
        }
        if seen.knows(Known::UNREAD) {
            return Step::Done(Read::Reset);
        }
        Step::Look(Look::LeftUnread)
    }
}
