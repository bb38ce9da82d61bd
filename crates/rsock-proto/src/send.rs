//! The sending half of a stream: where the next bytes go in the peer's memory, and whether they
//! may.
//!
//! The peer announces buffers in a local table; this half fills each completely, in order, and
//! never sends more messages than the peer's credits allow. What the peer announces is its own
//! memory: a hostile announcement can only hurt the peer, so it is checked for arithmetic, not for
//! sense.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rs_can_send`, `rs_write_data`, `rs_poll_cq`, `rsend`.

use super::conn_data::ConnData;
use super::error::PeerError;
use super::imm::{Imm, MAX_DATA_LEN, SeqNo};
use super::sgl::RemoteSge;
use rsock_verbs::{RKey, RemoteAddr};

/// Most entries of the local table of announced buffers.
pub const MAX_SLOTS: usize = 8;

/// What the engine decides about a sending half.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Longest message, in bytes; 1 to [`MAX_DATA_LEN`].
    pub max_message: u32,
    /// Entries of the local table, as the local connection data says; 2 to [`MAX_SLOTS`].
    pub n_slots: u8,
}

/// One data message: a write with immediate that may be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataWrite {
    /// Where the bytes go.
    pub remote: RemoteAddr,
    /// The key of that memory.
    pub rkey: RKey,
    /// How many of the caller's bytes, at least one.
    pub len: u32,
    /// The word that announces them.
    pub imm: Imm,
}

/// Why nothing may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendBlocked {
    /// The peer has given no credit for another message.
    Credits,
    /// The peer has announced no more room.
    Buffer,
    /// Sending has ended.
    Closed,
}

/// The sending half of a stream.
///
/// # Invariants
/// `current.len == 0` only if `n_pending == 0`; the announced buffers held, current and pending,
/// are at most `n_slots`.
#[derive(Clone, Copy, Debug)]
pub struct SendHalf {
    current: RemoteSge,
    max_message: u32,
    next_seq: SeqNo,
    credit_limit: SeqNo,
    reserve: u16,
    closed: bool,
    next_slot: u8,
    n_slots: u8,
    /// Announced buffers behind the current one: a ring of `n_pending` from `first_pending`.
    first_pending: u8,
    n_pending: u8,
    pending: [RemoteSge; MAX_SLOTS],
}

impl SendHalf {
    /// For a peer that introduced itself with `peer`.
    ///
    /// A peer whose first buffer is empty announces its first one in slot 0, any other in slot 1.
    ///
    /// # Errors
    /// [`PeerError::RangeWraps`] if the peer's first buffer does not end inside the address space.
    ///
    /// # Panics
    /// If `cfg` is outside its documented limits.
    pub fn new(cfg: SendConfig, peer: &ConnData) -> Result<Self, PeerError> {
        assert!((1..=MAX_DATA_LEN).contains(&cfg.max_message), "max_message out of range");
        assert!((2..=MAX_SLOTS).contains(&usize::from(cfg.n_slots)), "n_slots out of range");
        if !peer.data_buf.is_in_address_space() {
            return Err(PeerError::RangeWraps);
        }
        Ok(Self {
            current: peer.data_buf,
            max_message: cfg.max_message,
            next_seq: SeqNo(0),
            credit_limit: SeqNo(peer.credits),
            reserve: 0,
            closed: false,
            next_slot: u8::from(peer.data_buf.len != 0),
            n_slots: cfg.n_slots,
            first_pending: 0,
            n_pending: 0,
            pending: [RemoteSge::default(); MAX_SLOTS],
        })
    }

    /// Leaves the last `n` credits unused, so that control messages find receives at a peer that
    /// posts no spare ones (C). At most half of the credits the peer began with, whose return C
    /// waits for.
    #[must_use]
    pub fn with_reserve(mut self, n: u16) -> Self {
        self.reserve = n.min(self.credits() / 2);
        self
    }

    /// The message that would carry the first of `want` bytes (at least one).
    ///
    /// Post it, then [`commit`](Self::commit) it before the next `peek`.
    ///
    /// # Errors
    /// Why nothing may be sent now.
    ///
    /// # Panics
    /// In debug builds if `want` is 0: an empty message does not exist.
    #[inline]
    pub fn peek(&self, want: usize) -> Result<DataWrite, SendBlocked> {
        debug_assert!(want > 0, "an empty message does not exist");
        if self.closed {
            return Err(SendBlocked::Closed);
        }
        if self.credits() <= self.reserve {
            return Err(SendBlocked::Credits);
        }
        if self.current.len == 0 {
            return Err(SendBlocked::Buffer);
        }
        let most = self.max_message.min(self.current.len);
        let len = u32::try_from(want).map_or(most, |want| most.min(want));
        Ok(DataWrite {
            remote: self.current.addr,
            rkey: self.current.key,
            len,
            imm: Imm::data(len),
        })
    }

    /// `write`, the last result of [`peek`](Self::peek), was posted.
    #[inline]
    pub fn commit(&mut self, write: &DataWrite) {
        debug_assert_eq!(write.remote, self.current.addr, "not the message that was peeked");
        debug_assert!(write.len <= self.current.len, "not the message that was peeked");
        self.next_seq = self.next_seq.wrapping_add(1);
        self.current.addr = self.current.addr.wrapping_add(write.len.into());
        self.current.len = self.current.len.saturating_sub(write.len);
        if self.current.len == 0 {
            self.promote();
        }
    }

    /// The peer permits messages until the local counter reaches `limit`.
    ///
    /// COMPAT: any value is taken and compared for inequality, as C does; a peer that moves its
    /// limit back behind the local counter has opened a window of up to 65535 messages.
    #[inline]
    #[doc(alias = "sseq_comp")]
    pub fn handle_credit(&mut self, limit: SeqNo) {
        self.credit_limit = limit;
    }

    /// Index of the entry of the local table where the next announced buffer will appear.
    ///
    /// Read it after each credit message, and after each entry found. When
    /// [an entry](RemoteSge::from_slot) is there, overwrite it with
    /// [`EMPTY_SLOT`](super::EMPTY_SLOT) and give the entry to [`handle_slot`](Self::handle_slot).
    #[inline]
    #[must_use]
    #[doc(alias = "target_sge")]
    pub fn next_slot(&self) -> usize {
        self.next_slot.into()
    }

    /// The entry at [`next_slot`](Self::next_slot) was found to be `sge`.
    ///
    /// # Errors
    /// [`PeerError::EmptyBuffer`], [`PeerError::RangeWraps`], or [`PeerError::TooManyBuffers`] when
    /// the peer announces into a slot whose buffer is not filled.
    #[inline]
    pub fn handle_slot(&mut self, sge: RemoteSge) -> Result<(), PeerError> {
        if sge.len == 0 {
            return Err(PeerError::EmptyBuffer);
        }
        if !sge.is_in_address_space() {
            return Err(PeerError::RangeWraps);
        }
        if self.current.len == 0 {
            self.current = sge;
        } else if self.n_pending + 1 < self.n_slots {
            self.pending[slot(self.first_pending, self.n_pending)] = sge;
            self.n_pending += 1;
        } else {
            return Err(PeerError::TooManyBuffers);
        }
        self.next_slot = if self.next_slot + 1 == self.n_slots { 0 } else { self.next_slot + 1 };
        Ok(())
    }

    /// Ends sending.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether sending has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Bytes that could be sent now without hearing from the peer; 0 without a credit.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.closed {
            return 0;
        }
        let messages = u64::from(self.credits().saturating_sub(self.reserve));
        let announced: u64 = self.announced().map(|sge| u64::from(sge.len)).sum();
        let bytes = announced.min(messages * u64::from(self.max_message));
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The announced memory that nothing has been written to yet, in the order in which it will be
    /// filled. Until the next [`commit`](Self::commit) it holds no stream bytes: an idle stream may
    /// release those pages.
    pub fn announced(&self) -> impl Iterator<Item = RemoteSge> + '_ {
        let pending = (0..self.n_pending).map(|i| self.pending[slot(self.first_pending, i)]);
        std::iter::once(self.current).filter(|sge| sge.len != 0).chain(pending)
    }

    /// Messages that may be sent before the limit, the reserve included.
    #[inline]
    fn credits(&self) -> u16 {
        self.credit_limit.since(self.next_seq)
    }

    fn promote(&mut self) {
        if self.n_pending != 0 {
            self.current = self.pending[slot(self.first_pending, 0)];
            self.first_pending = self.first_pending.wrapping_add(1);
            self.n_pending -= 1;
        }
    }
}

/// Index `i` places after `first` in the ring of pending buffers.
#[inline]
fn slot(first: u8, i: u8) -> usize {
    usize::from(first.wrapping_add(i)) % MAX_SLOTS
}

/// The sizes in which a long write is cut, so that copying and sending overlap: the first messages
/// are short and each is twice the one before it.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "RS_OLAP_START_SIZE")]
pub struct TransferSize {
    next: usize,
    max: usize,
}

impl TransferSize {
    /// From `start` bytes doubling up to `max`.
    ///
    /// # Panics
    /// If `start` is 0 or above `max`.
    #[must_use]
    pub const fn new(start: usize, max: usize) -> Self {
        assert!(0 < start && start <= max);
        Self { next: start, max }
    }

    /// The size of the next message when `remaining` bytes are left.
    #[inline]
    #[must_use]
    pub fn step(&mut self, remaining: usize) -> usize {
        let size = self.next.min(remaining);
        if size < remaining {
            self.next = self.next.saturating_mul(2).min(self.max);
        }
        size
    }
}

const _: () = assert!(size_of::<SendHalf>() <= 192 && MAX_SLOTS.is_power_of_two());
