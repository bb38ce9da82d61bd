//! One stream over one queue pair.

use crate::engine::adaptive_buffer::Growth;
use crate::engine::config::Config;
use crate::engine::delivery_timeout::Doubt;
use crate::engine::iomap::Iomaps;
use crate::engine::keepalive::Prober;
use crate::engine::layout::{Layout, N_SLOTS};
use crate::engine::resources::{CONTROL, Parts};
use crate::engine::ring::Ring;
use crate::engine::shared::{FLAG_DISCONNECTED, FLAG_EOF, FLAG_SEND_CLOSED, RecvSide, SendSide};
use crate::interrupt::Section;
use crate::iov::Rest;
use rsock_proto::{
    self, Ctrl, DataWrite, LifecycleEvent, RemoteSge, SendBlocked, TABLE_ENTRY, TransferSize,
};
use rsock_verbs::{Backend, CompletionQueue, MemoryRegion, PostError, QueuePair, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pieces of user memory gathered into one message.
pub(super) const MAX_PIECES: usize = 4;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No credit or no room at the peer now. (`EAGAIN`)
    WouldBlock,
    /// This direction is shut down, or the peer has gone in good order.
    Closed,
    /// The connection failed with this errno.
    Failed(i32),
    /// What is to be sent is not in memory. (`EFAULT`)
    Fault,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// Nothing there now. (`EAGAIN`)
    WouldBlock,
    /// The connection failed with this errno.
    Failed(i32),
    /// The room for it is not in memory, and the bytes are still there. (`EFAULT`)
    Fault,
}

/// One connected stream.
#[derive(Debug)]
pub struct Stream<B: Backend> {
    pub(super) parts: Parts<B>,
    pub(super) ring: Arc<Ring<B>>,
    pub(super) config: Config,
    pub(super) extensions: bool,
    /// Whether the peer keeps no receives for control messages (C), and sends wait for it to post some.
    pub(super) limits_ctrl: bool,
    pub(super) doubt: Doubt,
    pub(super) prober: Prober,
    /// After the queue pair, these two: nothing may arrive in memory that is gone.
    pub(super) growth: Growth<B>,
    pub(super) iomaps: Iomaps<B>,
}

impl<B: Backend> Stream<B> {
    /// Sends as much of `bufs` as there is room for; never blocks. The bytes are at the peer, or
    /// on their way, when this returns.
    ///
    /// # Errors
    /// [`SendError`], if not one byte could be sent.
    pub fn try_send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let _section = Section::enter();
        self.check_send()?;
        let mut send = self.ring.lock_send();
        self.absorb(&mut send);
        let mut rest = Rest::new(bufs);
        // A receiver that has enough to copy need not start early.
        let is_ahead =
            B::SENDS_WAIT && rest.len > self.config.first_message && !self.parts.qp.is_idle();
        let max = self.config.max_message;
        let mut size =
            TransferSize::new(if is_ahead { max } else { self.config.first_message }, max);
        let mut sent = 0;
        while rest.len != 0 {
            match send.half.peek(size.step(rest.len)) {
                Ok(write) => {
                    let posted = match self.post_data(&mut send, &write, &rest) {
                        Err(SendError::Fault) if sent == 0 => return Err(SendError::Fault),
                        posted => posted,
                    };
                    let Ok(done) = posted else { break };
                    rest.advance(done);
                    sent += done;
                }
                Err(SendBlocked::Closed) => break,
                Err(SendBlocked::Credits | SendBlocked::Buffer) => {
                    if !self.refill(&mut send) {
                        break;
                    }
                }
            }
        }
        send.sent += sent as u64;
        if sent == 0 && !bufs.iter().all(|b| b.is_empty()) {
            drop(send);
            self.check_send()?;
            return Err(SendError::WouldBlock);
        }
        Ok(sent)
    }

    /// Posts the beginning of `rest` as one message; how many bytes.
    ///
    /// # Errors
    /// [`SendError::Fault`]; otherwise the queue is full, or has failed.
    fn post_data(
        &self,
        send: &mut SendSide,
        write: &DataWrite,
        rest: &Rest<'_>,
    ) -> Result<usize, SendError> {
        const FULL: SendError = SendError::WouldBlock;
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        let (n, len) = rest.pieces(write.len as usize, &mut pieces);
        // A message of more pieces than one request takes is cut short.
        let write = if len == write.len as usize {
            *write
        } else {
            send.half.peek(len).map_err(|_| FULL)?
        };
        if self.queue_is_full() {
            return Err(FULL);
        }
        let at = Some((write.remote, write.rkey));
        match self.parts.post_message(at, &pieces[..n], write.imm) {
            Ok(()) => {
                send.half.commit(&write);
                Ok(len)
            }
            Err(PostError::QueueFull) => Err(FULL),
            Err(PostError::Fault) => Err(SendError::Fault),
            // The queue pair failed under us, as it does when the peer takes its own away; a cause of
            // ours has been recorded by whoever polled its completion.
            Err(PostError::State) => {
                self.ring.shared.mail.fail(libc::ECONNRESET);
                Err(FULL)
            }
            Err(_) => {
                self.ring.shared.mail.fail(libc::EIO);
                Err(FULL)
            }
        }
    }

    /// Receives what has arrived; never blocks. `Ok(0)` is the end of the stream, or an empty
    /// `bufs`. With `peek` the bytes stay.
    ///
    /// # Errors
    /// [`RecvError`], if nothing was received.
    pub fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, RecvError> {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        if self.parts.cq.is_ready() {
            self.pump(&mut recv);
        }
        let mut growth = self.growth();
        let mut taken = 0;
        let mut is_missing = false;
        for buf in bufs.iter_mut() {
            let mut at = 0;
            while at < buf.len() {
                let Some(span) = recv.half.span_at(if peek { taken } else { 0 }) else { break };
                let n = span.len.min(buf.len() - at);
                if !self.copy_span(growth.as_deref(), span, &mut buf[at..at + n]) {
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
                self.parts.qp.note_consumed(taken as u64);
            }
            recv.moderation.note_read(taken);
            match &mut growth {
                Some(growth) => self.adapt(growth, &mut recv.half, taken),
                None if B::PINS => {}
                None => self.ring.usage.note(recv.dirty),
            }
            self.grant(&mut recv);
        }
        if taken == 0 {
            // PERF: who waits now has the time. On the way from an arrival to the next post it took
            // 1.2 of 6.8 thousand cycles in an emulated guest.
            self.repost(&mut recv);
        }
        if taken != 0 || bufs.iter().all(|b| b.is_empty()) {
            return Ok(taken);
        }
        drop((growth, recv));
        if is_missing {
            return Err(RecvError::Fault);
        }
        let error = self.ring.shared.mail.error.load(Ordering::Acquire);
        if error != 0 {
            return Err(RecvError::Failed(error.cast_signed()));
        }
        if self.ring.shared.mail.has(FLAG_EOF) { Ok(0) } else { Err(RecvError::WouldBlock) }
    }

    /// Dispatches what has arrived.
    pub fn progress(&self) {
        let _section = Section::enter();
        if self.parts.cq.is_ready() {
            self.pump(&mut self.ring.lock_recv());
        }
    }

    /// Ends one or both directions, and tells the peer. Bytes already sent still arrive.
    pub fn shutdown(&self, how: Shutdown) {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        self.advance(
            &mut recv,
            match how {
                Shutdown::Read => LifecycleEvent::LocalShutRd,
                Shutdown::Write => LifecycleEvent::LocalShutWr,
                Shutdown::Both => LifecycleEvent::LocalShutRdWr,
            },
        );
    }

    /// The peer's process or host is gone, says whoever watches: what has arrived stays readable,
    /// then the stream ends; nothing more can be sent.
    pub fn peer_gone(&self) {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        drop(recv);
        let mail = &self.ring.shared.mail;
        mail.raise(FLAG_DISCONNECTED | FLAG_SEND_CLOSED | FLAG_EOF);
        self.announce();
    }

    /// The failure, once; as `SO_ERROR`.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        match self.ring.shared.mail.error.load(Ordering::Acquire) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno.cast_signed())),
        }
    }

    pub(super) fn check_send(&self) -> Result<(), SendError> {
        let mail = &self.ring.shared.mail;
        if !mail.has(FLAG_SEND_CLOSED) {
            return Ok(());
        }
        match mail.error.load(Ordering::Acquire) {
            0 => Err(SendError::Closed),
            errno => Err(SendError::Failed(errno.cast_signed())),
        }
    }

    /// Takes over what the pump left for the sender. True if anything was new.
    fn absorb(&self, send: &mut SendSide) -> bool {
        // SYNC(credit): pairs with the Release in `Mailbox::put_credit`.
        let credits = self.ring.shared.mail.credits.load(Ordering::Acquire);
        if credits == send.credits_seen {
            return false;
        }
        send.credits_seen = credits;
        send.half.handle_credit(rsock_proto::SeqNo(u16::try_from(credits & 0xFFFF).unwrap_or(0)));
        // At most two buffers can be announced at once, so at most two slots are full.
        for _ in 0..N_SLOTS {
            let at = Layout::slot(send.half.next_slot());
            let mut entry = [0; TABLE_ENTRY];
            self.parts.region.copy_out(at, &mut entry);
            let sge = RemoteSge::from_table_bytes(&entry);
            if sge.len == 0 {
                break;
            }
            if send.half.handle_slot(sge).is_err() {
                // Not free yet: the peer wrote a slot that we have not used up.
                self.ring.shared.mail.fail(libc::EPROTO);
                break;
            }
            self.parts.region.copy_in(at, &[0; TABLE_ENTRY]);
        }
        true
    }

    /// Looks for new credit, pumping if nobody else does. True if something changed.
    pub(super) fn refill(&self, send: &mut SendSide) -> bool {
        if self.absorb(send) {
            return true;
        }
        if self.parts.cq.is_ready()
            && let Some(mut recv) = self.ring.shared.recv.0.try_lock()
        {
            self.pump(&mut recv);
        }
        self.absorb(send)
    }

    /// Sends a control message; a peer that takes none any more is as good as gone.
    pub(super) fn send_ctrl(&self, recv: &mut RecvSide, ctrl: Ctrl) {
        // Its completion tells that everything before it has arrived: see `is_drained`.
        let flags = if B::SENDS_WAIT { SendFlags::SIGNALED } else { SendFlags::empty() };
        let word = rsock_proto::Msg::Ctrl(ctrl).encode();
        if self.parts.post_flagged(CONTROL, None, &[], word, flags).is_err() {
            // The peer has stopped taking messages altogether: it learns from the hang-up.
            self.ring.shared.mail.raise(FLAG_DISCONNECTED);
        } else if self.limits_ctrl {
            let had_room = recv.ctrl.post();
            debug_assert!(had_room, "grants leave room for each end, and each is said once");
        }
    }
}
