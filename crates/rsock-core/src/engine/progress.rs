//! The pump: takes completions, dispatches them to both directions, posts receives, grants credits.

use crate::engine::QpStream;
use crate::engine::config::Wire;
use crate::engine::resources::{CONTROL, PLAIN};
use crate::engine::shared::{FLAG_DISCONNECTED, FLAG_EOF, FLAG_SEND_CLOSED, RecvState};
use rsock_proto::switch::Message;
use rsock_proto::{Ctrl, Ext, Imm, LifecycleEvent, Msg, PeerError};
use rsock_verbs::{
    Backend, Completion, CompletionQueue, MemoryRegion, QueuePair, SendFlags, WcOp, WcStatus,
};
use std::io::IoSlice;

/// Messages that one call takes at most, as a multiple of the receives kept posted.
const MAX_BATCHES: usize = 4;
/// Receives that may be owed to the queue: few compared with those that a peer without credit
/// needs.
const MAX_OWED: u32 = 8;
/// Completions taken at once.
const BATCH: usize = 16;

/// What a call of the pump has taken.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    n: usize,
    /// The first failure.
    failed: Option<WcStatus>,
}

impl<B: Backend> QpStream<B> {
    /// Takes every completion there is. The caller holds the `recv` lock.
    pub(super) fn pump(&self, recv: &mut RecvState) {
        let _ = self.pump_while(recv, |cq| B::SENDS_WAIT || cq.is_ready());
    }

    /// Takes the completions that the device has reported already, and asks it where there are
    /// none; returns how many it has taken. The caller holds the `recv` lock, and wants bytes,
    /// whatever follows them: where it has got none, it asks again, as the device may have more.
    ///
    /// PERF: not to ask a device again saves some 220 instructions of a round trip's 3,600.
    pub(super) fn pump_reported(&self, recv: &mut RecvState) -> usize {
        self.pump_while(recv, B::Cq::has_reported)
    }

    /// Takes a completion, and the others if there `may_be_more`; returns how many.
    #[inline(always)]
    fn pump_while(&self, recv: &mut RecvState, may_be_more: impl FnOnce(&B::Cq) -> bool) -> usize {
        let under_way = recv.ctrl;
        let has_room = self.resources.cq.has_granted_room();
        let mut taken = Taken::default();
        // PERF: the first one alone, as mostly there is no other.
        if let Some(first) = self.resources.cq.poll_one() {
            self.take(recv, &mut taken, &first);
            if may_be_more(&self.resources.cq) {
                self.take_rest(recv, &mut taken);
            }
        }
        if recv.ctrl != under_way || std::mem::take(&mut recv.is_grant_due) {
            // A grant may have waited for such a completion, or for the device. Not inside the
            // loop: see there.
            self.grant_late(recv);
        }
        if let Some(status) = taken.failed {
            // Only now: a later completion may have carried the cause.
            self.completion_failed(status);
        }
        if taken.n != 0 || has_room {
            self.announce();
        }
        taken.n
    }

    /// As [`Self::pump`], where there may be completions and no other thread takes them.
    pub(super) fn pump_if_free(&self) {
        if self.resources.cq.is_ready()
            && let Some(mut recv) = self.ring.shared.recv.0.try_lock()
        {
            self.pump(&mut recv);
        }
    }

    #[inline(never)]
    fn take_rest(&self, recv: &mut RecvState, taken: &mut Taken) {
        let mut batch = [Completion::BLANK; BATCH];
        loop {
            let n = self.resources.cq.poll(&mut batch);
            for wc in &batch[..n] {
                self.take(recv, taken, wc);
            }
            if n < BATCH {
                break;
            }
            if taken.n >= MAX_BATCHES * self.config.recv_depth() as usize {
                // Credit is granted outside this loop: an honest peer has run out of it long
                // before.
                self.ring.shared.mail.fail(libc::EPROTO);
                break;
            }
        }
    }

    /// Dispatches a completion, or notes its failure.
    #[inline(always)]
    fn take(&self, recv: &mut RecvState, taken: &mut Taken, wc: &Completion) {
        match wc.result() {
            Ok(wc) => self.complete(recv, wc),
            Err(status) => taken.failed = taken.failed.or(Some(status)),
        }
        taken.n += 1;
    }

    #[inline]
    fn complete(&self, recv: &mut RecvState, wc: &Completion) {
        let word = match wc.op {
            WcOp::RecvWriteImm => wc.imm,
            WcOp::Recv if self.resources.wire == Wire::MsgSend && wc.len == 4 => {
                let slot = usize::try_from(wc.id.0).unwrap_or(0);
                let mut word = [0; 4];
                self.resources.table.copy_out(self.resources.layout.words + 4 * slot, &mut word);
                u32::from_ne_bytes(word)
            }
            WcOp::Recv => return self.ring.shared.mail.fail(libc::EPROTO),
            WcOp::Send | WcOp::Write => {
                if wc.id == CONTROL && self.limits_ctrl {
                    recv.ctrl.done(1);
                }
                return;
            }
        };
        let is_posted = match self.resources.wire {
            Wire::WriteImm => {
                recv.n_owed += 1;
                recv.n_owed < MAX_OWED || self.repost(recv)
            }
            Wire::MsgSend => {
                self.resources.post_word_receive(u32::try_from(wc.id.0).unwrap_or(0)).is_ok()
            }
        };
        if !is_posted || self.dispatch(recv, Imm(word)).is_err() {
            self.ring.shared.mail.fail(libc::EPROTO);
        }
    }

    /// Posts the receives that are owed; false if the queue takes none.
    ///
    /// INVARIANT: never more than [`MAX_OWED`] are owed, and none once the peer may send that many
    /// more: credit is granted only after this, and the receive of a control message, which needs
    /// no credit, is posted again at once.
    pub(super) fn repost(&self, recv: &mut RecvState) -> bool {
        if recv.n_owed != 0 {
            recv.n_owed -= self.resources.post_empty_receives(recv.n_owed);
        }
        recv.n_owed == 0
    }

    fn dispatch(&self, recv: &mut RecvState, word: Imm) -> Result<(), PeerError> {
        let mail = &self.ring.shared.mail;
        match word.decode()? {
            Msg::Data { len } => {
                recv.half.handle_data(len)?;
                let is_old_free = recv.half.is_old_ring_free();
                let layout = &self.resources.layout;
                let most = layout.most_dirty(&recv.set, is_old_free, recv.dirty);
                recv.dirty = (recv.dirty + len as usize).min(most);
                return Ok(());
            }
            Msg::Credit { limit } => mail.put_credit(limit.0),
            Msg::Iomap { index } => {
                recv.half.handle_iomap_msg()?;
                self.take_iomap(index)?;
            }
            Msg::Ctrl(ctrl) => {
                let event = match ctrl {
                    Ctrl::Shutdown => Some(LifecycleEvent::PeerShutdown),
                    Ctrl::Disconnect => Some(LifecycleEvent::PeerDisconnect),
                    Ctrl::Keepalive => None,
                };
                if let Some(event) = event {
                    self.advance(recv, event);
                }
            }
            // The word of an extension message means nothing from a peer with which none were
            // agreed on.
            Msg::Ext(_) if !self.has_extensions() => {}
            Msg::Ext(ext) => {
                let message = match ext {
                    Ext::Ready => Some(Message::Ready),
                    Ext::Up { offset26 } => {
                        mail.put_up_low(offset26);
                        Some(Message::Up { offset: offset26.into() })
                    }
                    Ext::UpHigh { high26 } => {
                        mail.put_up_high(high26);
                        None
                    }
                    Ext::Down => Some(Message::Down),
                    Ext::Leave => Some(Message::Leave),
                    Ext::Unknown { .. } => None,
                };
                if let Some(message) = message {
                    mail.put_message(message);
                }
            }
            Msg::Ignored => {}
        }
        self.repost(recv);
        Ok(())
    }

    /// Advances the lifecycle, and takes the actions of the transition.
    pub(super) fn advance(&self, recv: &mut RecvState, event: LifecycleEvent) {
        // A shutdown of a direction that has ended changes nothing.
        let Ok((mut next, send)) = recv.life.on(event) else { return };
        if let Some(ctrl) = send {
            self.send_ctrl(recv, ctrl);
            if let (Ctrl::Disconnect, Ok((done, _))) =
                (ctrl, next.on(LifecycleEvent::DisconnectDone))
            {
                next = done;
            }
        }
        recv.life = next;
        let mut flags = 0;
        if !next.is_writable() {
            flags |= FLAG_SEND_CLOSED;
        }
        if !next.is_readable() {
            flags |= FLAG_EOF;
        }
        if !next.is_connected() {
            flags |= FLAG_DISCONNECTED | FLAG_SEND_CLOSED | FLAG_EOF;
        }
        self.ring.shared.mail.raise(flags);
        self.announce();
    }

    fn completion_failed(&self, status: WcStatus) {
        let mail = &self.ring.shared.mail;
        match status {
            // After an orderly end the peer destroys its queue pair and memory, whatever is posted.
            _ if mail.has(FLAG_DISCONNECTED) => {}
            WcStatus::RETRY_EXC if self.prober.is_probing() => mail.fail(libc::ETIMEDOUT),
            // The peer destroys its queue pair first and its memory next: a write may fail by
            // either.
            WcStatus::WR_FLUSH | WcStatus::RETRY_EXC | WcStatus::REM_ACCESS => {
                mail.fail(libc::ECONNRESET);
            }
            _ => mail.fail(libc::EIO),
        }
    }

    /// As [`Self::grant`], for the pump, which seldom has to.
    #[cold]
    #[inline(never)]
    fn grant_late(&self, recv: &mut RecvState) {
        self.grant(recv);
    }

    /// Grants the peer the credits and buffers that are due.
    #[inline(always)]
    pub(super) fn grant(&self, recv: &mut RecvState) {
        self.choose_buffers(recv);
        if recv.half.has_next_grant() {
            self.post_grants(recv);
        }
    }

    /// Posts the grants that are due. PERF: apart from [`Self::grant`], as mostly none is: of some
    /// 870 instructions of a receive that is 60 (callgrind).
    #[inline(never)]
    fn post_grants(&self, recv: &mut RecvState) {
        // A peer that keeps receives posted for control messages needs no count of those under way.
        let (id, flags) = match self.limits_ctrl {
            true => (CONTROL, SendFlags::SIGNALED),
            false => (PLAIN, SendFlags::empty()),
        };
        while let Some(grant) = recv.half.next_grant() {
            if B::SENDS_WAIT && self.resources.qp.is_full() {
                // The entries that are left are reserved for the ends of the two directions.
                break;
            }
            if !recv.life.is_connected() {
                // Nothing more arrives, and librdmacm takes no message after its end.
                break;
            }
            if !recv.ctrl.has_room_for_grant() {
                // A completion makes room, and the pump tries again.
                break;
            }
            if !self.repost(recv) {
                break;
            }
            let posted = match &grant.entry {
                Some((addr, rkey, entry)) => {
                    let (at, entry) = (Some((*addr, *rkey)), [IoSlice::new(entry)]);
                    self.resources.post_flagged(id, at, &entry, grant.imm, flags)
                }
                None => self.resources.post_flagged(id, None, &[], grant.imm, flags),
            };
            if posted.is_err() {
                // The peer takes no control message now. It rings when it does.
                recv.is_grant_due = true;
                break;
            }
            recv.half.commit_grant();
            if self.limits_ctrl {
                let had_room = recv.ctrl.post();
                debug_assert!(had_room, "checked above");
            }
        }
    }

    /// Wakes every waiter in this process and its forked children: something changed.
    pub(crate) fn announce(&self) {
        self.ring.shared.mail.events.announce(|| self.resources.cq.wake_waiters());
    }
}
