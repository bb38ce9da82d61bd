//! Receiving: copies what has arrived to the program, and grants the peer room for more.

use crate::engine::QpStream;
use crate::engine::shared::FLAG_EOF;
use crate::engine::wait::HoldBack;
use crate::interrupt::Section;
use rsock_verbs::{Backend, CompletionQueue, QueuePair};
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// No bytes have arrived. (`EAGAIN`)
    WouldBlock,
    /// The connection failed with this errno.
    Failed(i32),
    /// The program's buffer is not mapped memory; the bytes stay in the stream. (`EFAULT`)
    Fault,
}

/// What a receive does with the bytes that it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// It takes them from the stream.
    Consume,
    /// It leaves them in the stream (`MSG_PEEK`).
    Peek,
}

impl ReadMode {
    /// The mode of a call with or without `MSG_PEEK`.
    #[must_use]
    pub fn of(is_peek: bool) -> Self {
        if is_peek { Self::Peek } else { Self::Consume }
    }
}

impl<B: Backend> QpStream<B> {
    /// Receives what has arrived; never blocks. `Ok(0)` is the end of the stream, or an empty
    /// `bufs`.
    ///
    /// # Errors
    /// [`RecvError`], if nothing was received.
    pub fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        mode: ReadMode,
    ) -> Result<usize, RecvError> {
        let _section = Section::enter();
        match bufs {
            [buf] if mode == ReadMode::Consume => self.try_recv_to(buf, |_| false),
            _ => self.receive(bufs, mode, |_| false),
        }
    }

    /// As [`Self::try_recv`], to one buffer, for a caller in a [`Section`]. Where nothing is there,
    /// `await_arrival` may wait for a moment, and says whether something has come. It is called
    /// with the lock held, and takes none.
    ///
    /// PERF: what lies between an arrival and the return delays the peer, and what lies before the
    /// arrival does not. There lie two locks and some 150 instructions that come after it where the
    /// caller waits and tries again (single steps of a round trip).
    ///
    /// # Errors
    /// [`RecvError`], if nothing was received.
    #[inline(always)]
    pub(crate) fn try_recv_to(
        &self,
        buf: &mut [u8],
        await_arrival: impl FnOnce(&mut HoldBack) -> bool,
    ) -> Result<usize, RecvError> {
        self.receive(&mut [IoSliceMut::new(buf)], ReadMode::Consume, await_arrival)
    }

    /// PERF: compiled once for each caller, as one knows the mode and that there is one buffer.
    #[inline(always)]
    fn receive(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        mode: ReadMode,
        await_arrival: impl FnOnce(&mut HoldBack) -> bool,
    ) -> Result<usize, RecvError> {
        let peek = mode == ReadMode::Peek;
        let mut recv = self.ring.lock_recv();
        let mut is_ready = self.resources.cq.is_ready();
        if !is_ready && recv.half.readable() == 0 {
            // PERF: a caller that finds nothing is about to wait, so it has the time. Between an
            // arrival and the next post it took 1.2 of 6.8 thousand cycles in an emulated guest.
            self.repost(&mut recv);
            is_ready = await_arrival(&mut recv.hold_back) && self.resources.cq.is_ready();
        }
        if is_ready {
            let n_messages = self.pump_reported(&mut recv);
            let len = recv.half.readable();
            recv.hold_back.learn(n_messages, len);
            // A poll that finds messages without bytes does not look whether bytes, or the peer's
            // close, are behind them. This call would find nothing, although they are there.
            if recv.half.readable() == 0 && self.resources.cq.is_ready() {
                self.pump(&mut recv);
            }
        }
        let mut adaptive = self.lock_adaptive();
        let (unread, set) = (recv.half.readable(), recv.set);
        recv.set.note_unread(unread);
        let mut taken = 0;
        let mut is_missing = false;
        for buf in bufs.iter_mut() {
            let mut at = 0;
            while at < buf.len() {
                let Some(span) = recv.half.span_at(if peek { taken } else { 0 }) else { break };
                let n = span.len.min(buf.len() - at);
                if !self.copy_span(adaptive.as_deref(), &set, span, &mut buf[at..at + n]) {
                    is_missing = true;
                    break;
                }
                if !peek {
                    recv.half.consume(n);
                }
                at += n;
                taken += n;
            }
            if at < buf.len() {
                break;
            }
        }
        if !peek {
            if taken != 0 {
                self.resources.qp.note_consumed(taken as u64);
            }
            recv.coalescing.note_read(taken);
            recv.hold_back.note_read(taken);
            match &mut adaptive {
                Some(adaptive) => self.adapt(adaptive, &mut recv.half, taken),
                None if B::PINS => {}
                None => self.ring.usage.note(recv.dirty),
            }
            self.grant(&mut recv);
        }
        if taken != 0 || bufs.iter().all(|b| b.is_empty()) {
            return Ok(taken);
        }
        drop((adaptive, recv));
        if is_missing {
            return Err(RecvError::Fault);
        }
        let error = self.ring.shared.mail.error.load(Ordering::Acquire);
        if error != 0 {
            return Err(RecvError::Failed(error.cast_signed()));
        }
        if self.ring.shared.mail.has(FLAG_EOF) { Ok(0) } else { Err(RecvError::WouldBlock) }
    }

    /// Whether something has arrived that was not dispatched yet.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.resources.cq.is_ready()
    }

    /// Dispatches what has arrived.
    pub fn progress(&self) {
        let _section = Section::enter();
        if self.resources.cq.is_ready() {
            self.pump(&mut self.ring.lock_recv());
        }
    }
}
