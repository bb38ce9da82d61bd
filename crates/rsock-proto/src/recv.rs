//! The receiving half of a stream: what has arrived, what was read, and what the peer may send.
//!
//! Received bytes lie in one ring of `n_bufs` equal buffers at consecutive addresses. Buffers are
//! announced in that order, and the peer fills each completely before it starts the next, so the
//! stream is linear in the ring. The first announcement may be shorter (`first_len`); the second is
//! then the rest of that buffer.
//!
//! The ring can be [replaced](RecvHalf::replace_ring): the room that was announced in the old one
//! is filled and read there first; then the old one is empty and not used again. It can also be
//! [extended](RecvHalf::extend_ring) by buffers behind its last one.
//!
//! The ring holds, from its oldest byte on: unread bytes, then announced room that the peer may be
//! writing to at any moment, then free room, which only this end uses. A buffer becomes announced
//! only when all of it is free, and a slot of the peer's table is reused only when the buffer it
//! announced has been filled.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rs_give_credits`, `rs_send_credits`, `rs_poll_cq`,
//! `rrecv`.

use super::conn_data::{ConnData, ConnFlags};
use super::error::PeerError;
use super::imm::{Imm, SeqNo};
use super::sgl::{RemoteSge, TABLE_ENTRY};
use rsock_verbs::{RKey, RemoteAddr};

/// What the engine decides about a receiving half.
#[derive(Clone, Copy, Debug)]
pub struct RecvConfig {
    /// Address of the ring, as the peer will use it.
    pub region: RemoteAddr,
    /// Key of the ring's region.
    pub rkey: RKey,
    /// Bytes of each buffer.
    pub buf_len: u32,
    /// Buffers, at least two. C has two.
    pub n_bufs: u8,
    /// Messages that may be under way, at least one: receives that are always posted.
    pub window: u16,
    /// Bytes of the first announcement, 1 to `buf_len`.
    pub first_len: u32,
}

/// A ring that replaces the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Address of the ring, as the peer will use it.
    pub region: RemoteAddr,
    /// Key of the ring's region.
    pub rkey: RKey,
    /// Bytes of each buffer.
    pub buf_len: u32,
    /// Buffers, at least two.
    pub n_bufs: u8,
}

/// A run of bytes in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Bytes from the start of the ring.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Whether it lies in the ring before the last [replacement](RecvHalf::replace_ring).
    pub is_old: bool,
}

/// A message that lets the peer send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The word, with the new limit.
    pub imm: Imm,
    /// A table entry to write with it: address, key, bytes. Without one the message is empty.
    pub entry: Option<(RemoteAddr, RKey, [u8; TABLE_ENTRY])>,
}

/// The receiving half of a stream.
///
/// # Invariants
/// `readable <= committed`, `old_left <= committed <= old_left + ring_len` and `old_left <=
/// old_len`; `read_off` and `grant_off` are below `ring_len`, and `grant_off` is `committed -
/// old_left` bytes after `read_off`; `filling` is what is left of the oldest announced buffer that
/// is not full, 0 if there is none.
#[derive(Clone, Copy, Debug)]
pub struct RecvHalf {
    /// Arrived and not read, in bytes.
    readable: u64,
    /// Where the oldest unread byte is.
    read_off: u64,
    /// Unread bytes and announced room.
    committed: u64,
    /// Where the next announcement begins.
    grant_off: u64,
    ring_len: u64,
    /// Unread bytes and announced room in the old ring, which come before all others.
    old_left: u64,
    /// Where the oldest unread byte of the old ring is.
    old_off: u64,
    old_len: u64,
    region: RemoteAddr,
    rkey: RKey,
    buf_len: u32,
    filling: u32,
    /// Length of the announcement after the first, while that one is not filled; 0 otherwise.
    after_first: u32,
    /// Messages that arrived.
    next_seq: SeqNo,
    /// The limit that the peer knows.
    limit: SeqNo,
    window: u16,
    /// Announced buffers that are not full.
    n_unfilled: u8,
    has_peer: bool,
    swap: bool,
    counts_iomaps: bool,
    /// The peer's table: address, key, entries.
    table: RemoteSge,
    /// The entry of it to write next.
    next_slot: u32,
}

impl RecvHalf {
    /// With the first buffer announced; see [`conn_fields`](Self::conn_fields).
    ///
    /// # Panics
    /// If `cfg` is outside its documented limits, or the ring does not fit the address space.
    #[must_use]
    pub fn new(cfg: RecvConfig) -> Self {
        assert!(cfg.n_bufs >= 2 && cfg.window >= 1, "too few buffers or messages");
        assert!((1..=cfg.buf_len).contains(&cfg.first_len), "first_len out of range");
        let ring_len = u64::from(cfg.buf_len) * u64::from(cfg.n_bufs);
        assert!(cfg.region.0.checked_add(ring_len).is_some(), "the ring wraps");
        let first = u64::from(cfg.first_len);
        Self {
            readable: 0,
            read_off: 0,
            committed: first,
            grant_off: first,
            ring_len,
            old_left: 0,
            old_off: 0,
            old_len: 0,
            region: cfg.region,
            rkey: cfg.rkey,
            buf_len: cfg.buf_len,
            filling: cfg.first_len,
            after_first: cfg.buf_len - cfg.first_len,
            next_seq: SeqNo(0),
            limit: SeqNo(cfg.window),
            window: cfg.window,
            n_unfilled: 1,
            has_peer: false,
            swap: false,
            counts_iomaps: true,
            table: RemoteSge::default(),
            next_slot: 1,
        }
    }

    /// Writes this half's part of the local connection data: credits and first buffer. Only before
    /// anything has arrived.
    #[must_use]
    pub fn conn_fields(&self) -> (u16, RemoteSge) {
        (self.window, RemoteSge { addr: self.region, key: self.rkey, len: self.filling })
    }

    /// The peer introduced itself: from now on grants are possible.
    ///
    /// # Errors
    /// [`PeerError::TableTooSmall`] for a table of fewer than two entries,
    /// [`PeerError::RangeWraps`] if it does not end inside the address space.
    pub fn set_peer(&mut self, peer: &ConnData) -> Result<(), PeerError> {
        let table = peer.target_sgl;
        if table.len < 2 {
            return Err(PeerError::TableTooSmall(table.len));
        }
        let bytes = u64::from(table.len) * TABLE_ENTRY as u64;
        if table.addr.0.checked_add(bytes).is_none() {
            return Err(PeerError::RangeWraps);
        }
        self.table = table;
        self.swap = peer.swaps();
        self.counts_iomaps = !peer.flags.contains(ConnFlags::EXT);
        self.has_peer = true;
        Ok(())
    }

    /// A data message arrived.
    ///
    /// COMPAT: also after the end of the stream: a C program can write after its own shutdown, and
    /// gets the bytes through.
    ///
    /// # Errors
    /// [`PeerError::EmptyData`], [`PeerError::DataOverrun`] if it passes the end of the buffer
    /// being filled, [`PeerError::NoCredit`] if it is beyond the limit that this half granted. The
    /// half is unchanged.
    #[inline]
    pub fn handle_data(&mut self, len: u32) -> Result<(), PeerError> {
        if len == 0 {
            return Err(PeerError::EmptyData);
        }
        if len > self.filling {
            return Err(PeerError::DataOverrun { len, room: self.filling });
        }
        if self.next_seq == self.limit {
            return Err(PeerError::NoCredit);
        }
        self.next_seq = self.next_seq.wrapping_add(1);
        self.readable += u64::from(len);
        self.filling -= len;
        if self.filling == 0 {
            self.buffer_filled();
        }
        Ok(())
    }

    /// An iomap message arrived.
    ///
    /// COMPAT: C counts the ones it sends against its credits and never returns a credit for those
    /// it receives; this half returns them. A peer with [`ConnFlags::EXT`] does not count them.
    ///
    /// # Errors
    /// [`PeerError::NoCredit`] if it is beyond the limit that this half granted.
    pub fn handle_iomap_msg(&mut self) -> Result<(), PeerError> {
        if self.counts_iomaps {
            if self.next_seq == self.limit {
                return Err(PeerError::NoCredit);
            }
            self.next_seq = self.next_seq.wrapping_add(1);
        }
        Ok(())
    }

    /// Bytes that can be read now.
    #[inline]
    #[must_use]
    pub fn readable(&self) -> usize {
        to_usize(self.readable)
    }

    /// The bytes `skip` further on, as far as they are contiguous.
    #[inline]
    #[must_use]
    pub fn span_at(&self, skip: usize) -> Option<Span> {
        let skip = skip as u64;
        if skip >= self.readable {
            return None;
        }
        if skip < self.old_left {
            let offset = wrap(self.old_off + skip, self.old_len);
            let len = (self.readable.min(self.old_left) - skip).min(self.old_len - offset);
            return Some(Span { offset: to_usize(offset), len: to_usize(len), is_old: true });
        }
        let offset = wrap(self.read_off + (skip - self.old_left), self.ring_len);
        let len = (self.readable - skip).min(self.ring_len - offset);
        Some(Span { offset: to_usize(offset), len: to_usize(len), is_old: false })
    }

    /// The first `n` readable bytes were read.
    ///
    /// # Panics
    /// In debug builds if there are fewer.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.readable(), "more consumed than was there");
        let n = (n as u64).min(self.readable);
        self.readable -= n;
        self.committed -= n;
        let old = n.min(self.old_left);
        if old != 0 {
            self.old_left -= old;
            self.old_off = wrap(self.old_off + old, self.old_len);
        }
        self.read_off = wrap(self.read_off + (n - old), self.ring_len);
    }

    /// Whether [`replace_ring`](Self::replace_ring) would do something now: the old ring is empty,
    /// and a buffer can be announced behind at most one that is not full.
    #[inline]
    #[must_use]
    pub fn can_replace_ring(&self) -> bool {
        self.has_peer && self.n_unfilled <= 1 && self.old_left == 0 && self.after_first == 0
    }

    /// From the next announcement on buffers lie in another ring, all of whose bytes are free.
    /// False, and nothing changes, unless [`can_replace_ring`](Self::can_replace_ring).
    ///
    /// # Panics
    /// If `ring` is outside its documented limits, or does not fit the address space.
    pub fn replace_ring(&mut self, ring: RingConfig) -> bool {
        assert!(ring.n_bufs >= 2 && ring.buf_len >= 1, "too few buffers");
        let ring_len = u64::from(ring.buf_len) * u64::from(ring.n_bufs);
        assert!(ring.region.0.checked_add(ring_len).is_some(), "the ring wraps");
        if !self.can_replace_ring() {
            return false;
        }
        (self.old_left, self.old_off, self.old_len) =
            (self.committed, self.read_off, self.ring_len);
        (self.read_off, self.grant_off, self.ring_len) = (0, 0, ring_len);
        (self.region, self.rkey, self.buf_len) = (ring.region, ring.rkey, ring.buf_len);
        true
    }

    /// Whether [`extend_ring`](Self::extend_ring) would do something now: the next announcement
    /// begins at the start of the ring, so that what is in use reaches up to its end.
    #[inline]
    #[must_use]
    pub fn can_extend_ring(&self) -> bool {
        self.has_peer && self.grant_off == 0
    }

    /// Lets the ring have `n_bufs` buffers, of which those beyond the present ones are free. False,
    /// and nothing changes, if they are not more, or unless
    /// [`can_extend_ring`](Self::can_extend_ring).
    ///
    /// # Panics
    /// If the ring then does not fit the address space.
    pub fn extend_ring(&mut self, n_bufs: u8) -> bool {
        let ring_len = u64::from(self.buf_len) * u64::from(n_bufs);
        if !self.can_extend_ring() || ring_len <= self.ring_len {
            return false;
        }
        assert!(self.region.0.checked_add(ring_len).is_some(), "the ring wraps");
        if self.committed != self.old_left {
            self.grant_off = self.ring_len;
        }
        self.ring_len = ring_len;
        true
    }

    /// Whether the ring before the last [replacement](Self::replace_ring) holds nothing and is
    /// announced nowhere: the peer never writes to it again.
    #[inline]
    #[must_use]
    pub fn is_old_ring_free(&self) -> bool {
        self.old_left == 0
    }

    /// Whether there is a [next grant](Self::next_grant).
    #[inline]
    #[must_use]
    pub fn has_next_grant(&self) -> bool {
        self.has_peer && (self.can_announce() || self.is_credit_due())
    }

    /// The message that lets the peer send more, if one is due: when a buffer can be announced, or
    /// at least half the window has arrived since the last one.
    ///
    /// Post it and [`commit_grant`](Self::commit_grant) it before any other call on this half; then
    /// call this again.
    #[inline]
    #[must_use]
    pub fn next_grant(&self) -> Option<Grant> {
        if !self.has_next_grant() {
            return None;
        }
        // Otherwise credit alone is due.
        let entry = self.can_announce().then(|| {
            let sge = RemoteSge {
                addr: self.region.wrapping_add(self.grant_off),
                key: self.rkey,
                len: self.next_len(),
            };
            let at = u64::from(self.next_slot) * TABLE_ENTRY as u64;
            (self.table.addr.wrapping_add(at), self.table.key, sge.to_table_bytes(self.swap))
        });
        Some(Grant { imm: Imm::credit(self.next_seq.wrapping_add(self.window)), entry })
    }

    /// The message that [`next_grant`](Self::next_grant) answered was posted.
    #[inline]
    pub fn commit_grant(&mut self) {
        if self.can_announce() {
            let len = self.next_len();
            if self.n_unfilled == 0 {
                self.filling = len;
            }
            self.n_unfilled += 1;
            self.committed += u64::from(len);
            self.grant_off = wrap(self.grant_off + u64::from(len), self.ring_len);
            self.next_slot =
                if self.next_slot + 1 == self.table.len { 0 } else { self.next_slot + 1 };
        }
        self.limit = self.next_seq.wrapping_add(self.window);
    }

    fn buffer_filled(&mut self) {
        self.n_unfilled -= 1;
        let rest = std::mem::take(&mut self.after_first);
        self.filling = match self.n_unfilled {
            0 => 0,
            _ if rest != 0 => rest,
            _ => self.buf_len,
        };
    }

    /// Length of the next announcement: up to the end of the buffer that it begins in.
    #[inline]
    fn next_len(&self) -> u32 {
        // Only the first announcement of all ends inside a buffer, the first one.
        match u32::try_from(self.grant_off) {
            Ok(off) if off < self.buf_len => self.buf_len - off,
            _ => self.buf_len,
        }
    }

    #[inline]
    fn can_announce(&self) -> bool {
        self.has_peer
            && u32::from(self.n_unfilled) < self.table.len
            && self.n_unfilled < u8::MAX
            && u64::from(self.next_len()) <= self.ring_len - (self.committed - self.old_left)
    }

    #[inline]
    fn is_credit_due(&self) -> bool {
        let left = self.limit.since(self.next_seq);
        left < self.window && self.window - left >= self.window / 2
    }
}

#[inline]
fn wrap(offset: u64, ring_len: u64) -> u64 {
    if offset >= ring_len { offset - ring_len } else { offset }
}

/// Offsets in the ring fit the address space: the ring is mapped.
#[inline]
fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

const _: () = assert!(size_of::<RecvHalf>() <= 128);
