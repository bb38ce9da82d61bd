//! Queues of posted requests: receives wait until a message arrives, sends until they can be
//! submitted or until their completion is polled.
//!
//! Entries live in family memory and are made of atomics; the counters in `qp/shared.rs` and the
//! locks named there decide which thread may use which entry.

use crate::error::Error;
use crate::family::{FamilySafe, FamilySlice, ZeroInit};
use crate::types::{LKey, RKey, RemoteAddr, WrId};
use crate::wc::WcStatus;
use crate::wr::{SendOp, Sge};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most pieces of one request.
pub(super) const MAX_SGE: usize = 16;

#[derive(Debug)]
struct SgeCell {
    addr: AtomicU64,
    /// Length above the key.
    len_key: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl FamilySafe for SgeCell {}

// SAFETY: made of atomic integers.
unsafe impl ZeroInit for SgeCell {}

impl SgeCell {
    fn store(&self, sge: &Sge) {
        self.addr.store(sge.addr, Ordering::Relaxed);
        let packed = u64::from(sge.len) << 32 | u64::from(sge.lkey.0);
        self.len_key.store(packed, Ordering::Relaxed);
    }

    #[expect(clippy::cast_possible_truncation, reason = "two halves")]
    fn load(&self) -> Sge {
        let packed = self.len_key.load(Ordering::Relaxed);
        Sge {
            addr: self.addr.load(Ordering::Relaxed),
            len: (packed >> 32) as u32,
            lkey: LKey(packed as u32),
        }
    }
}

/// Scatter/gather entries of one request, copied out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sges {
    all: [Sge; MAX_SGE],
    n: usize,
}

impl Sges {
    pub(super) fn as_slice(&self) -> &[Sge] {
        &self.all[..self.n]
    }
}

#[derive(Debug)]
struct SgeTable {
    cells: FamilySlice<SgeCell>,
    per_entry: usize,
}

impl SgeTable {
    fn new(entries: u32, per_entry: u32) -> Result<Self, Error> {
        let per_entry = per_entry as usize;
        // One at least: the arena has no empty blocks.
        let n = (entries as usize * per_entry).max(1);
        let cells = FamilySlice::zeroed(n).ok_or(Error::Exhausted("family memory"))?;
        Ok(Self { cells, per_entry })
    }

    fn store(&self, entry: usize, sges: &[Sge]) {
        let cells = &self.cells[entry * self.per_entry..];
        for (cell, sge) in cells.iter().zip(sges) {
            cell.store(sge);
        }
    }

    fn load(&self, entry: usize, n: usize) -> Sges {
        let mut sges = Sges { all: [Sge { addr: 0, len: 0, lkey: LKey(0) }; MAX_SGE], n: 0 };
        let cells = &self.cells[entry * self.per_entry..];
        let n = n.min(self.per_entry).min(MAX_SGE);
        for (sge, cell) in sges.all.iter_mut().zip(&cells[..n]) {
            *sge = cell.load();
        }
        sges.n = n;
        sges
    }
}

/// A ring of receives. The owner of the queue keeps its counters.
#[derive(Debug)]
pub(super) struct RecvQueue {
    ids: FamilySlice<AtomicU64>,
    /// Pieces of each entry; stays all zero where receives have none.
    counts: FamilySlice<AtomicU32>,
    sges: SgeTable,
    mask: u32,
    max_sge: u32,
}

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        let entries = depth.max(1).next_power_of_two();
        let room = || Error::Exhausted("family memory");
        let counted = if max_sge == 0 { 1 } else { entries as usize };
        Ok(Self {
            ids: FamilySlice::zeroed(entries as usize).ok_or_else(room)?,
            counts: FamilySlice::zeroed(counted).ok_or_else(room)?,
            sges: SgeTable::new(entries, max_sge)?,
            mask: entries - 1,
            max_sge,
        })
    }

    #[inline(always)]
    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    #[inline(always)]
    pub(super) fn put(&self, index: u32, id: WrId, sges: &[Sge]) {
        let i = (index & self.mask) as usize;
        self.ids[i].store(id.0, Ordering::Relaxed);
        if self.max_sge != 0 {
            // `sges` is at most `max_sge` long: checked by the caller.
            let n = u32::try_from(sges.len()).unwrap_or(0);
            self.counts[i].store(n, Ordering::Relaxed);
            self.sges.store(i, sges);
        }
    }

    #[inline(always)]
    pub(super) fn id(&self, index: u32) -> WrId {
        WrId(self.ids[(index & self.mask) as usize].load(Ordering::Relaxed))
    }

    pub(super) fn sges(&self, index: u32) -> Sges {
        let i = (index & self.mask) as usize;
        let n = if self.max_sge == 0 { 0 } else { self.counts[i].load(Ordering::Relaxed) };
        self.sges.load(i, n as usize)
    }
}

/// A queued send.
#[derive(Debug)]
struct SendCell {
    id: AtomicU64,
    remote: AtomicU64,
    /// Immediate above the remote key.
    imm_key: AtomicU64,
    /// Status above, then pieces, signaled, operation: 32, 16, 8, 8 bits.
    meta: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl FamilySafe for SendCell {}

// SAFETY: made of atomic integers.
unsafe impl ZeroInit for SendCell {}

/// One queued send, copied out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) id: WrId,
    pub(super) op: SendOp,
    pub(super) signaled: bool,
    pub(super) status: WcStatus,
    n_sges: u16,
}

/// The ring of sends that wait to be submitted or to be polled.
#[derive(Debug)]
pub(super) struct SendQueue {
    cells: FamilySlice<SendCell>,
    sges: SgeTable,
    mask: u32,
    max_sge: u32,
}

impl SendQueue {
    pub(super) fn new(depth: u32, max_sge: u32) -> Result<Self, Error> {
        let entries = depth.max(1).next_power_of_two();
        Ok(Self {
            cells: FamilySlice::zeroed(entries as usize)
                .ok_or(Error::Exhausted("family memory"))?,
            sges: SgeTable::new(entries, max_sge)?,
            mask: entries - 1,
            max_sge,
        })
    }

    pub(super) fn capacity(&self) -> u32 {
        self.mask + 1
    }

    pub(super) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    #[cold]
    pub(super) fn put(&self, index: u32, id: WrId, op: SendOp, signaled: bool, sges: &[Sge]) {
        let i = (index & self.mask) as usize;
        let (code, remote, rkey, imm) = match op {
            SendOp::Send => (0, 0, 0, 0),
            SendOp::Write { remote, rkey } => (1, remote.0, rkey.0, 0),
            SendOp::WriteImm { remote, rkey, imm } => (2, remote.0, rkey.0, imm),
        };
        let cell = &self.cells[i];
        cell.id.store(id.0, Ordering::Relaxed);
        cell.remote.store(remote, Ordering::Relaxed);
        cell.imm_key.store(u64::from(imm) << 32 | u64::from(rkey), Ordering::Relaxed);
        let meta = (sges.len() as u64) << 16 | u64::from(signaled) << 8 | code;
        cell.meta.store(meta, Ordering::Relaxed);
        self.sges.store(i, sges);
    }

    #[expect(clippy::cast_possible_truncation, reason = "packed fields")]
    pub(super) fn get(&self, index: u32) -> Queued {
        let cell = &self.cells[(index & self.mask) as usize];
        let meta = cell.meta.load(Ordering::Relaxed);
        let remote = RemoteAddr(cell.remote.load(Ordering::Relaxed));
        let imm_key = cell.imm_key.load(Ordering::Relaxed);
        let (rkey, imm) = (RKey(imm_key as u32), (imm_key >> 32) as u32);
        Queued {
            id: WrId(cell.id.load(Ordering::Relaxed)),
            op: match meta & 0xff {
                0 => SendOp::Send,
                1 => SendOp::Write { remote, rkey },
                _ => SendOp::WriteImm { remote, rkey, imm },
            },
            signaled: meta >> 8 & 0xff != 0,
            status: WcStatus((meta >> 32) as u32),
            n_sges: (meta >> 16) as u16,
        }
    }

    pub(super) fn sges(&self, index: u32, queued: &Queued) -> Sges {
        self.sges.load((index & self.mask) as usize, queued.n_sges.into())
    }

    /// Stores an entry's outcome. A failure always produces a completion.
    pub(super) fn finish(&self, index: u32, status: WcStatus) {
        let cell = &self.cells[(index & self.mask) as usize];
        let mut meta = cell.meta.load(Ordering::Relaxed) & 0xffff_ffff;
        if status != WcStatus::SUCCESS {
            meta |= 1 << 8;
        }
        cell.meta.store(meta | u64::from(status.0) << 32, Ordering::Relaxed);
    }
}
