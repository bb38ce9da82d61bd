//! One stream over one queue pair.

use super::config::{Config, Wire};
use super::doubt::Doubt;
use super::growth::Growth;
use super::iomap::Iomaps;
use super::layout::{Layout, N_SLOTS};
use super::resident::{self, Trim, Usage};
use super::ring::Ring;
use super::shared::{
    ExtSeen, FLAG_DISCONNECTED, FLAG_EOF, FLAG_SEND_CLOSED, Line, Mailbox, RecvSide, SendSide,
    Shared,
};
use crate::interrupt::Section;
use crate::iov::Rest;
use crate::proto::{
    self, Blocked, ConnData, ConnFlags, Ctrl, DataWrite, Ext, Lifecycle, LifecycleEvent,
    PROTOCOL_VERSION, RecvConfig, RecvHalf, RemoteSge, SendConfig, SendHalf, TABLE_ENTRY,
    TransferSize,
};
use rsock_verbs::family::{FamilyBox, Lock};
use rsock_verbs::{
    Access, Backend, CompletionQueue, Context, Error, MemoryRegion, PostError, ProtectionDomain,
    QpCap, QpNum, QueuePair, RecvWr, RemoteAddr, Retry, SendFlags, SendOp, Sge, WrId,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Bytes copied while one request is posted, at most.
const COPIED: u32 = 1 << 20;
/// Credits of a peer that posts no spare receives (C) that control messages of ours may need.
const RESERVE: u16 = 8;
/// Pieces of user memory gathered into one message.
const MAX_PIECES: usize = 4;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No credit or no room at the peer now. (`EAGAIN`)
    WouldBlock,
    /// This direction is shut down, or the peer has gone in good order.
    Closed,
    /// The connection failed with this errno.
    Failed(i32),
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// Nothing there now. (`EAGAIN`)
    WouldBlock,
    /// The connection failed with this errno.
    Failed(i32),
}

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

impl Ready {
    /// An end may have come since input and room were looked for. It is the end of both: who asks for
    /// input alone, as `select(2)` over `poll(2)` does, must not see it without input.
    fn with_end(mut self) -> Self {
        self.readable |= self.hung_up || self.failed;
        self.writable |= self.hung_up || self.failed;
        self
    }
}

/// The objects behind a stream. Declared in the order in which they must go.
#[derive(Debug)]
pub(super) struct Parts<B: Backend> {
    /// First: nothing may arrive once the region is gone.
    pub(super) qp: B::Qp,
    pub(super) cq: Arc<B::Cq>,
    pub(super) region: Arc<B::Mr>,
    pub(super) layout: Layout,
    pub(super) wire: Wire,
    /// Keeps the domain, and with it the peer's mapping.
    pub(super) pd: Arc<B::Pd>,
    pub(super) path: B::Path,
}

/// A stream before its peer is known: queues made, receives posted, memory registered.
#[derive(Debug)]
pub struct Preparing<B: Backend> {
    parts: Parts<B>,
    recv: RecvHalf,
    config: Config,
}

impl<B: Backend> Preparing<B> {
    /// Makes everything that this end's connection data will name.
    ///
    /// # Errors
    /// When memory, queues or descriptors run out.
    pub fn new(ctx: &B::Context, path: &B::Path, config: &Config) -> Result<Self, Error> {
        let wire = if ctx.attr().write_with_imm { Wire::WriteImm } else { Wire::MsgSend };
        let rest = config.at_rest::<B>();
        let layout = Layout::new(&rest, wire);
        let pd = ctx.alloc_pd(path)?;
        let region = pd.alloc_mr(layout.len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let depth = config.recv_depth();
        let max_inline = ctx.attr().max_inline;
        // One message is copied while it is posted, so it is as long as can be copied.
        let max_message = config.max_message.min(usize::try_from(max_inline).unwrap_or(usize::MAX));
        let first_message = config.first_message.min(max_message);
        let config = &Config { max_message, first_message, ..*config };
        let cap = QpCap {
            max_send_wr: B::SEND_DEPTH,
            max_recv_wr: depth,
            max_send_sge: u32::try_from(MAX_PIECES).unwrap_or(1),
            // Receives that only carry an immediate need no room for pieces.
            max_recv_sge: u32::from(wire == Wire::MsgSend),
            max_inline: max_inline.min(COPIED),
            signal_all: false,
        };
        let (cq, qp) = pd.create_lane(ctx, cap)?;
        qp.init(Access::REMOTE_WRITE)?;
        let recv = RecvHalf::new(RecvConfig {
            region: region.addr().wrapping_add(layout.ring as u64),
            rkey: region.rkey(),
            buf_len: rest.buf_len,
            n_bufs: rest.n_bufs,
            window: config.window,
            first_len: rest.buf_len,
        });
        let region = Arc::new(region);
        let parts = Parts { qp, cq, region, layout, wire, pd, path: path.clone() };
        for i in 0..depth {
            parts.post_receive(i).map_err(|_| Error::Exhausted("receive queue"))?;
        }
        Ok(Self { parts, recv, config: *config })
    }

    /// What the peer must be told.
    #[must_use]
    pub fn conn_data(&self) -> ConnData {
        let (credits, data_buf) = self.recv.conn_fields();
        let mut flags = ConnFlags::OURS;
        flags.set(ConnFlags::EXT, self.config.extensions);
        ConnData {
            version: PROTOCOL_VERSION,
            flags,
            credits,
            target_iomap_size: proto::iomap_size_to_wire(self.config.iomap_slots.into()),
            target_sgl: RemoteSge {
                addr: self.parts.region.addr(),
                key: self.parts.region.rkey(),
                len: N_SLOTS.into(),
            },
            data_buf,
        }
    }

    /// Number of the queue pair, for the peer.
    #[must_use]
    pub fn qp_num(&self) -> QpNum {
        self.parts.qp.qp_num()
    }

    /// Connects to queue pair `dest`, whose owner sent `peer`.
    ///
    /// # Errors
    /// `Invalid` if the peer's connection data cannot be used; `PeerGone`.
    pub fn connect(self, peer: &ConnData, dest: QpNum) -> Result<Stream<B>, Error> {
        let send = SendHalf::new(
            SendConfig {
                max_message: u32::try_from(self.config.max_message).unwrap_or(proto::MAX_DATA_LEN),
                n_slots: N_SLOTS,
            },
            peer,
        )
        .map_err(|_| Error::PeerViolation("connection data"))?;
        let send = if peer.has_ext() { send } else { send.with_reserve(RESERVE) };
        let mut recv = self.recv;
        recv.set_peer(peer).map_err(|_| Error::PeerViolation("connection data"))?;
        let shared = FamilyBox::new(Shared {
            send: Line(Lock::new(SendSide { half: send, credits_seen: 0 })),
            recv: Line(Lock::new(RecvSide {
                half: recv,
                life: Lifecycle::Open,
                dirty: 0,
                n_owed: 0,
            })),
            mail: Mailbox::default(),
        })
        .ok_or(Error::Exhausted("family memory"))?;
        let remote =
            proto::RemoteIomap::new(peer).map_err(|_| Error::PeerViolation("connection data"))?;
        self.parts.qp.ready_to_receive(&self.parts.path, dest)?;
        self.parts.qp.ready_to_send(Retry::default())?;
        let ring = Arc::new(Ring {
            shared,
            region: Arc::clone(&self.parts.region),
            cq: Arc::clone(&self.parts.cq),
            layout: self.parts.layout,
            usage: Usage::default(),
        });
        if !B::PINS {
            resident::register(Arc::downgrade(&ring) as Weak<dyn Trim>);
        }
        Ok(Stream {
            parts: self.parts,
            ring,
            growth: Growth::new(),
            config: self.config,
            extensions: self.config.extensions && peer.has_ext(),
            doubt: Doubt::default(),
            iomaps: Iomaps::new(remote, self.config.iomap_slots),
        })
    }
}

impl<B: Backend> Parts<B> {
    /// Posts receive `i`: empty, or with room for a message word.
    pub(super) fn post_receive(&self, i: u32) -> Result<(), PostError> {
        match self.wire {
            Wire::WriteImm => self.qp.post_recv_empty(WrId(i.into())),
            Wire::MsgSend => {
                let at = (self.layout.words + 4 * i as usize) as u64;
                let word = Sge {
                    addr: self.region.addr().wrapping_add(at).0,
                    len: 4,
                    lkey: self.region.lkey(),
                };
                let wr = RecvWr { id: WrId(i.into()), sges: &[word] };
                // SAFETY: the word lies in `self.region`, which is declared after `self.qp` and so
                // dropped later: it stays registered as long as the receive can complete.
                unsafe { self.qp.post_recv(&wr) }
            }
        }
    }

    /// Posts one message: `payload` to `remote`, then `word` as its notification.
    pub(super) fn post_message(
        &self,
        remote: Option<(RemoteAddr, rsock_verbs::RKey)>,
        payload: &[IoSlice<'_>],
        word: proto::Imm,
    ) -> Result<(), PostError> {
        self.post_flagged(remote, payload, word, SendFlags::empty())
    }

    fn post_flagged(
        &self,
        remote: Option<(RemoteAddr, rsock_verbs::RKey)>,
        payload: &[IoSlice<'_>],
        word: proto::Imm,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let (addr, rkey) = remote.unwrap_or_default();
        match self.wire {
            Wire::WriteImm => {
                let op = SendOp::WriteImm { remote: addr, rkey, imm: word.0 };
                self.qp.post_copy(WrId(0), op, payload, flags)
            }
            Wire::MsgSend => {
                // WIRE: the word travels in host order where there is no immediate. If the queue
                // is full in between, the whole message is posted again: the same bytes to the
                // same place.
                if !payload.is_empty() {
                    let op = SendOp::Write { remote: addr, rkey };
                    self.qp.post_copy(WrId(0), op, payload, SendFlags::empty())?;
                }
                let word = word.0.to_ne_bytes();
                self.qp.post_copy(WrId(0), SendOp::Send, &[IoSlice::new(&word)], flags)
            }
        }
    }
}

/// One connected stream.
#[derive(Debug)]
pub struct Stream<B: Backend> {
    pub(super) parts: Parts<B>,
    pub(super) ring: Arc<Ring<B>>,
    pub(super) config: Config,
    extensions: bool,
    pub(super) doubt: Doubt,
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
                    let Some(done) = self.post_data(&mut send, &write, &rest) else { break };
                    rest.advance(done);
                    sent += done;
                }
                Err(Blocked::Closed) => break,
                Err(Blocked::Credits | Blocked::Buffer) => {
                    if !self.refill(&mut send) {
                        break;
                    }
                }
            }
        }
        if sent == 0 && !bufs.iter().all(|b| b.is_empty()) {
            drop(send);
            self.check_send()?;
            return Err(SendError::WouldBlock);
        }
        Ok(sent)
    }

    /// Posts the beginning of `rest` as one message; how many bytes, or `None` if the queue is full.
    fn post_data(&self, send: &mut SendSide, write: &DataWrite, rest: &Rest<'_>) -> Option<usize> {
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        let (n, len) = rest.pieces(write.len as usize, &mut pieces);
        // A message of more pieces than one request takes is cut short.
        let write = if len == write.len as usize { *write } else { send.half.peek(len).ok()? };
        if self.queue_is_full() {
            return None;
        }
        let at = Some((write.remote, write.rkey));
        match self.parts.post_message(at, &pieces[..n], write.imm) {
            Ok(()) => {
                send.half.commit(&write);
                Some(len)
            }
            Err(PostError::QueueFull) => None,
            // The queue pair failed under us, as it does when the peer takes its own away; a cause of
            // ours has been recorded by whoever polled its completion.
            Err(PostError::State) => {
                self.ring.shared.mail.fail(libc::ECONNRESET);
                None
            }
            Err(_) => {
                self.ring.shared.mail.fail(libc::EIO);
                None
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
        for buf in bufs.iter_mut() {
            let mut at = 0;
            while at < buf.len() {
                let Some(span) = recv.half.span_at(if peek { taken } else { 0 }) else { break };
                let n = span.len.min(buf.len() - at);
                self.copy_span(growth.as_deref(), span, &mut buf[at..at + n]);
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
        let error = self.ring.shared.mail.error.load(Ordering::Acquire);
        if error != 0 {
            return Err(RecvError::Failed(error.cast_signed()));
        }
        if self.ring.shared.mail.has(FLAG_EOF) { Ok(0) } else { Err(RecvError::WouldBlock) }
    }

    /// What could be done now. Makes progress first.
    #[must_use]
    pub fn readiness(&self) -> Ready {
        let mail = &self.ring.shared.mail;
        let (readable, writable) = (self.has_input(), self.has_room());
        let failed = mail.error.load(Ordering::Acquire) != 0;
        Ready { readable, writable, hung_up: mail.has(FLAG_DISCONNECTED), failed }.with_end()
    }

    /// Whether a receive would return something: data, the end of the stream, or an error.
    #[must_use]
    pub fn has_input(&self) -> bool {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        if self.parts.cq.is_ready() {
            self.pump(&mut recv);
        }
        recv.half.readable() != 0 || self.ring.shared.mail.has(FLAG_EOF)
    }

    /// Dispatches what has arrived.
    pub fn progress(&self) {
        let _section = Section::enter();
        if self.parts.cq.is_ready() {
            self.pump(&mut self.ring.lock_recv());
        }
    }

    /// Whether the peer has said that it writes nothing more, or the stream is over. Takes what waits
    /// to be dispatched first.
    #[must_use]
    pub fn has_eof(&self) -> bool {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        self.ring.shared.mail.has(FLAG_EOF)
    }

    /// Whether a send would take something, or fail at once.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let _section = Section::enter();
        let mut send = self.ring.lock_send();
        self.refill(&mut send);
        send.half.room() != 0 && !self.queue_is_full()
            || self.ring.shared.mail.has(FLAG_SEND_CLOSED)
    }

    /// Whether the device takes no data now. Looks for completions first.
    pub(super) fn queue_is_full(&self) -> bool {
        if !B::SENDS_WAIT || !self.parts.qp.is_full() {
            return false;
        }
        if let Some(mut recv) = self.ring.shared.recv.0.try_lock() {
            self.pump(&mut recv);
        }
        self.parts.qp.is_full()
    }

    /// Whether everything that was sent is at the peer, the last word included; or will never be.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        if !B::SENDS_WAIT {
            return true;
        }
        let _section = Section::enter();
        self.pump(&mut self.ring.lock_recv());
        self.parts.qp.is_idle() || self.ring.shared.mail.error.load(Ordering::Acquire) != 0
    }

    /// Bytes that a receive could return now.
    #[must_use]
    pub fn bytes_readable(&self) -> usize {
        let _section = Section::enter();
        let mut recv = self.ring.lock_recv();
        self.pump(&mut recv);
        recv.half.readable()
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

    /// Whether both ends know the extension messages.
    #[must_use]
    pub fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Sends an extension message. Control messages need no credit; false if there is no room now.
    #[must_use]
    pub fn try_send_ext(&self, ext: Ext) -> bool {
        let _section = Section::enter();
        // The last word before bytes take another way, which must not be faster: see `is_drained`.
        let is_last = B::SENDS_WAIT && ext == Ext::Down;
        let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
        self.parts.post_flagged(None, &[], proto::Msg::Ext(ext).encode(), flags).is_ok()
    }

    /// Extension messages that arrived so far, without taking them; makes progress first if
    /// something is waiting.
    #[must_use]
    pub fn ext_seen(&self) -> ExtSeen {
        if self.parts.cq.is_ready() {
            let _section = Section::enter();
            if let Some(mut recv) = self.ring.shared.recv.0.try_lock() {
                self.pump(&mut recv);
            }
        }
        ExtSeen::from_bits_retain(self.ring.shared.mail.ext.load(Ordering::Acquire))
    }

    /// Extension messages that somebody's progress has brought so far.
    #[must_use]
    pub fn ext_arrived(&self) -> ExtSeen {
        ExtSeen::from_bits_retain(self.ring.shared.mail.ext.load(Ordering::Acquire))
    }

    /// Takes extension messages: clears `which`, returns those of them that had arrived.
    pub fn take_ext(&self, which: ExtSeen) -> ExtSeen {
        let old = self.ring.shared.mail.ext.fetch_and(!which.bits(), Ordering::AcqRel);
        ExtSeen::from_bits_retain(old) & which
    }

    /// Value of the last [`Ext::Up`].
    #[must_use]
    pub fn ext_up_offset(&self) -> u32 {
        self.ring.shared.mail.ext_up.load(Ordering::Acquire)
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
        send.half.handle_credit(proto::SeqNo(u16::try_from(credits & 0xFFFF).unwrap_or(0)));
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
    fn refill(&self, send: &mut SendSide) -> bool {
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
    pub(super) fn send_ctrl(&self, ctrl: Ctrl) {
        // Its completion tells that everything before it has arrived: see `is_drained`.
        let flags = if B::SENDS_WAIT { SendFlags::SIGNALED } else { SendFlags::empty() };
        let word = proto::Msg::Ctrl(ctrl).encode();
        if self.parts.post_flagged(None, &[], word, flags).is_err() {
            // The peer has stopped taking messages altogether: it learns from the hang-up.
            self.ring.shared.mail.raise(FLAG_DISCONNECTED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_came_while_we_looked_is_input_and_room() {
        let seen_before = Ready::default();
        let ends = [Ready { hung_up: true, ..seen_before }, Ready { failed: true, ..seen_before }];
        for end in ends {
            let told = end.with_end();
            assert!(told.readable && told.writable, "{told:?}");
        }
        assert_eq!(seen_before.with_end(), seen_before);
    }
}
