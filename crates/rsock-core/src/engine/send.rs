//! Sending: gathers the program's bytes into messages, as far as the peer has room.

use crate::engine::QpStream;
use crate::engine::buffers::layout::{Layout, N_SLOTS};
use crate::engine::shared::{FLAG_SEND_CLOSED, SendState};
use crate::interrupt::Section;
use crate::iov::Rest;
use rsock_proto::{DataWrite, EMPTY_SLOT, RemoteSge, SendBlocked, TABLE_ENTRY, TransferSize};
use rsock_verbs::{Backend, MemoryRegion, PostError, QueuePair};
use std::io::IoSlice;
use std::sync::atomic::{Ordering, fence};

/// Pieces of user memory gathered into one message.
pub(super) const MAX_PIECES: usize = 4;

/// How often in a row a send looks for credit again after it has received some that made no room.
/// The peer may send such messages without end, faster than they are taken.
const MOST_LOOKS: u32 = 16;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The peer has no room now, or has granted no credit. (`EAGAIN`)
    WouldBlock,
    /// This direction is shut down, or the peer has disconnected in good order.
    Closed,
    /// The connection failed with this errno.
    Failed(i32),
    /// The program's buffer is not mapped memory. (`EFAULT`)
    Fault,
}

impl<B: Backend> QpStream<B> {
    /// Sends as much of `bufs` as the peer has room for; never blocks. The bytes have reached the
    /// peer, or are under way, when this returns.
    ///
    /// # Errors
    /// [`SendError`], if not one byte could be sent.
    pub fn try_send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let _section = Section::enter();
        self.check_send()?;
        let mut send = self.ring.lock_send();
        self.take_credits(&mut send);
        let mut rest = Rest::new(bufs);
        // A short first message lets the receiver start copying early. It need not where messages
        // before this one still occupy it.
        let is_ahead =
            B::SENDS_WAIT && rest.len > self.config.first_message && !self.resources.qp.is_idle();
        let max = self.config.max_message;
        let mut size =
            TransferSize::new(if is_ahead { max } else { self.config.first_message }, max);
        let (mut sent, mut n_looks) = (0, 0);
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
                    n_looks = 0;
                }
                Err(SendBlocked::Closed) => break,
                Err(SendBlocked::Credits | SendBlocked::Buffer) => {
                    n_looks += 1;
                    if n_looks > MOST_LOOKS || !self.poll_credits(&mut send) {
                        break;
                    }
                }
            }
        }
        self.ring.shared.mail.count_send(&mut send, sent);
        if sent == 0 && !bufs.iter().all(|b| b.is_empty()) {
            drop(send);
            self.check_send()?;
            return Err(SendError::WouldBlock);
        }
        Ok(sent)
    }

    /// Sends all of `bufs`, which have `len` bytes together and at least one, as one message, if
    /// the peer has room and credit for it. False: nothing was sent, and [`Self::try_send`] tells
    /// why. The caller is in a [`Section`].
    #[inline]
    pub(crate) fn try_send_whole(&self, bufs: &[IoSlice<'_>], len: usize) -> bool {
        if len > self.config.first_message || bufs.len() > MAX_PIECES || self.check_send().is_err()
        {
            return false;
        }
        let mut send = self.ring.lock_send();
        self.take_credits(&mut send);
        let Ok(write) = send.half.peek(len) else { return false };
        let is_sent =
            write.len as usize == len && self.post_pieces(&mut send, &write, bufs).is_ok();
        if is_sent {
            self.ring.shared.mail.count_send(&mut send, len);
        }
        is_sent
    }

    /// Posts the beginning of `rest` as one message. Returns its bytes.
    ///
    /// # Errors
    /// As [`Self::post_pieces`].
    fn post_data(
        &self,
        send: &mut SendState,
        write: &DataWrite,
        rest: &Rest<'_>,
    ) -> Result<usize, SendError> {
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        let (n, len) = rest.pieces(write.len as usize, &mut pieces);
        // A message of more pieces than one work request takes is cut short.
        let write = if len == write.len as usize {
            *write
        } else {
            send.half.peek(len).map_err(|_| SendError::WouldBlock)?
        };
        self.post_pieces(send, &write, &pieces[..n]).map(|()| len)
    }

    /// Posts `pieces`, at most [`MAX_PIECES`], as the message `write`.
    ///
    /// # Errors
    /// [`SendError::Fault`]; otherwise the queue is full, or has failed.
    #[inline]
    fn post_pieces(
        &self,
        send: &mut SendState,
        write: &DataWrite,
        pieces: &[IoSlice<'_>],
    ) -> Result<(), SendError> {
        const FULL: SendError = SendError::WouldBlock;
        if self.queue_is_full() {
            return Err(FULL);
        }
        let at = Some((write.remote, write.rkey));
        match self.resources.post_message(at, pieces, write.imm) {
            Ok(()) => {
                send.half.commit(write);
                Ok(())
            }
            Err(PostError::QueueFull) => {
                // A queue that has failed fills up with flushed requests. Their completions say
                // so, and a sender that has credit has no other reason to take them.
                self.pump_if_free();
                Err(FULL)
            }
            Err(PostError::Fault) => Err(SendError::Fault),
            // The queue pair has failed, as it does when the peer destroys its own. A local cause
            // has been recorded already by the thread that polled its completion.
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

    #[inline]
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

    /// Takes the credits and buffers that the pump left for the sender. True if there were any.
    #[inline]
    fn take_credits(&self, send: &mut SendState) -> bool {
        // SYNC(credit): pairs with the Release in `Mailbox::put_credit`.
        let credits = self.ring.shared.mail.credits.load(Ordering::Acquire);
        let has_more = credits != send.credits_seen;
        if has_more {
            self.take_new_credits(send, credits);
        }
        has_more
    }

    #[inline(never)]
    fn take_new_credits(&self, send: &mut SendState, credits: u64) {
        send.credits_seen = credits;
        send.half.handle_credit(rsock_proto::SeqNo(u16::try_from(credits & 0xFFFF).unwrap_or(0)));
        // At most two buffers can be announced at once, so at most two slots are full.
        for _ in 0..N_SLOTS {
            let at = Layout::slot(send.half.next_slot());
            let Some(sge) = self.read_slot(at) else { break };
            if send.half.handle_slot(sge).is_err() {
                // The peer wrote a slot whose buffer is not used up yet.
                self.ring.shared.mail.fail(libc::EPROTO);
                break;
            }
            self.resources.table.copy_in(at, &EMPTY_SLOT);
        }
    }

    /// The entry in the slot at `at`. The device may be writing one whose message has not arrived
    /// yet: `None` until all of it is there.
    fn read_slot(&self, at: usize) -> Option<RemoteSge> {
        let mut entry = EMPTY_SLOT;
        let (lower, upper) = entry.split_at_mut(TABLE_ENTRY / 2);
        // The upper word first, as `from_slot` says.
        self.resources.table.copy_out(at + lower.len(), upper);
        fence(Ordering::Acquire);
        self.resources.table.copy_out(at, lower);
        RemoteSge::from_slot(&entry)
    }

    /// Looks for new credit, and runs the pump if no other thread does. True if there is some.
    pub(super) fn poll_credits(&self, send: &mut SendState) -> bool {
        if self.take_credits(send) {
            return true;
        }
        self.pump_if_free();
        self.take_credits(send)
    }
}
