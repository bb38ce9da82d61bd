//! The pump: completions in, dispatch to both directions, receives and credits out.

use crate::engine::config::Wire;
use crate::engine::resources::{CONTROL, PLAIN};
use crate::engine::shared::{FLAG_DISCONNECTED, FLAG_EOF, FLAG_SEND_CLOSED, RecvSide};
use crate::engine::stream::Stream;
use rsock_proto::switch::Message;
use rsock_proto::{Ctrl, Ext, Imm, LifecycleEvent, Msg, PeerError};
use rsock_verbs::{
    Backend, Completion, CompletionQueue, MemoryRegion, QueuePair, SendFlags, WcOp, WcStatus,
};
use std::io::IoSlice;

/// Messages that one call takes, as a multiple of the receives kept posted.
const MOST: usize = 4;
/// Receives that may be owed to the queue: few beside what a peer without credit needs.
const MOST_OWED: u32 = 8;
/// Completions taken at once.
const BATCH: usize = 16;

impl<B: Backend> Stream<B> {
    /// Takes every completion there is. The caller holds the `recv` lock.
    pub(super) fn pump(&self, recv: &mut RecvSide) {
        let mut batch = [Completion::BLANK; BATCH];
        let mut taken = 0;
        let mut failed = None;
        let under_way = recv.ctrl;
        loop {
            let n = self.parts.cq.poll(&mut batch);
            for wc in &batch[..n] {
                match wc.result() {
                    Ok(wc) => self.complete(recv, wc),
                    Err(status) => failed = failed.or(Some(status)),
                }
            }
            taken += n;
            if n < BATCH {
                break;
            }
            if taken >= MOST * self.config.recv_depth() as usize {
                // Credit is given outside this loop: an honest peer has run out of it long before.
                self.ring.shared.mail.fail(libc::EPROTO);
                break;
            }
        }
        if recv.ctrl != under_way {
            // A grant may have waited for that. Not inside the loop: see there.
            self.grant(recv);
        }
        if let Some(status) = failed {
            // Only now: what explains it may have been among the later completions.
            self.completion_failed(status);
        }
        if taken != 0 {
            self.announce();
        }
    }

    fn complete(&self, recv: &mut RecvSide, wc: &Completion) {
        let word = match wc.op {
            WcOp::RecvWriteImm => wc.imm,
            WcOp::Recv if self.parts.wire == Wire::MsgSend && wc.len == 4 => {
                let slot = usize::try_from(wc.id.0).unwrap_or(0);
                let mut word = [0; 4];
                self.parts.region.copy_out(self.parts.layout.words + 4 * slot, &mut word);
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
        let is_posted = match self.parts.wire {
            Wire::WriteImm => {
                recv.n_owed += 1;
                recv.n_owed < MOST_OWED || self.repost(recv)
            }
            Wire::MsgSend => self.parts.post_receive(u32::try_from(wc.id.0).unwrap_or(0)).is_ok(),
        };
        if !is_posted || self.dispatch(recv, Imm(word)).is_err() {
            self.ring.shared.mail.fail(libc::EPROTO);
        }
    }

    /// Posts the receives that are owed; false if the queue takes none.
    ///
    /// INVARIANT: never more than [`MOST_OWED`], and none once the peer may send that much more: credit
    /// is only given after this, and what is no data (which needs no credit) is made up for at once.
    pub(super) fn repost(&self, recv: &mut RecvSide) -> bool {
        while recv.n_owed != 0 {
            if self.parts.post_receive(0).is_err() {
                return false;
            }
            recv.n_owed -= 1;
        }
        true
    }

    fn dispatch(&self, recv: &mut RecvSide, word: Imm) -> Result<(), PeerError> {
        let mail = &self.ring.shared.mail;
        match word.decode()? {
            Msg::Data { len } => {
                recv.half.handle_data(len)?;
                recv.dirty = (recv.dirty + len as usize).min(self.parts.layout.ring_len());
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
            // A word of rsock's own from a peer with which none were agreed on means nothing.
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

    /// Moves the lifecycle, and does what the move asks for.
    pub(super) fn advance(&self, recv: &mut RecvSide, event: LifecycleEvent) {
        // A shutdown of what is over already changes nothing.
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
            // After an orderly end the peer takes its queue pair and memory away, whatever is posted.
            _ if mail.has(FLAG_DISCONNECTED) => {}
            WcStatus::RETRY_EXC if self.prober.is_asking() => mail.fail(libc::ETIMEDOUT),
            // Its queue pair goes first and its memory next: a writer may meet either.
            WcStatus::WR_FLUSH | WcStatus::RETRY_EXC | WcStatus::REM_ACCESS => {
                mail.fail(libc::ECONNRESET);
            }
            _ => mail.fail(libc::EIO),
        }
    }

    /// Gives the peer credits and buffers that are due.
    pub(super) fn grant(&self, recv: &mut RecvSide) {
        // A peer that keeps receives for control messages is told at once, without asking what became of it.
        let (id, flags) = match self.limits_ctrl {
            true => (CONTROL, SendFlags::SIGNALED),
            false => (PLAIN, SendFlags::empty()),
        };
        while let Some(grant) = recv.half.next_grant() {
            if B::SENDS_WAIT && self.parts.qp.is_full() {
                // The places that are left are for the ends of directions.
                break;
            }
            if !recv.life.is_connected() {
                // Nothing comes any more, and C takes no message after its end.
                break;
            }
            if !recv.ctrl.has_room_for_grant() {
                // What completes makes room, and the pump tries again.
                break;
            }
            if !self.repost(recv) {
                break;
            }
            let posted = match &grant.entry {
                Some((addr, rkey, entry)) => {
                    let (at, entry) = (Some((*addr, *rkey)), [IoSlice::new(entry)]);
                    self.parts.post_flagged(id, at, &entry, grant.imm, flags)
                }
                None => self.parts.post_flagged(id, None, &[], grant.imm, flags),
            };
            if posted.is_err() {
                // The peer takes no control message now; the next call tries again.
                break;
            }
            recv.half.commit_grant();
            if self.limits_ctrl {
                let had_room = recv.ctrl.post();
                debug_assert!(had_room, "looked for above");
            }
        }
    }

    /// Tells every waiter of this process family that something changed.
    pub(super) fn announce(&self) {
        self.ring.shared.mail.marks.announce(|| self.parts.cq.wake_waiters());
    }
}
