//! Queues of a queue pair: receives wait until a message arrives, the outcomes of sends until they
//! are polled.
//!
//! Entries live in family memory and are made of atomics; the counters in `qp/shared.rs` and the
//! locks named there decide which thread may use which entry.

use crate::error::Error;
use crate::family::{FamilySafe, FamilySlice, ZeroInit};
use crate::types::{LKey, WrId};
use crate::wc::{WcOp, WcStatus};
use crate::wr::Sge;
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
        let cells = FamilySlice::zeroed(entries as usize * per_entry)
            .ok_or(Error::Exhausted("family memory"))?;
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
    /// Empty where receives have none.
    ids: FamilySlice<AtomicU64>,
    /// Pieces of each entry; empty where receives have none.
    counts: FamilySlice<AtomicU32>,
    sges: SgeTable,
    mask: u32,
    max_sge: u32,
}

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u32, has_ids: bool) -> Result<Self, Error> {
        let entries = depth.max(1).next_power_of_two();
        let room = || Error::Exhausted("family memory");
        let with_id = if has_ids { entries as usize } else { 0 };
        let counted = if max_sge == 0 { 0 } else { entries as usize };
        Ok(Self {
            ids: FamilySlice::zeroed(with_id).ok_or_else(room)?,
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
        if let Some(stored) = self.ids.get(i) {
            stored.store(id.0, Ordering::Relaxed);
        }
        if self.max_sge != 0 {
            // `sges` is at most `max_sge` long: checked by the caller.
            let n = u32::try_from(sges.len()).unwrap_or(0);
            self.counts[i].store(n, Ordering::Relaxed);
            self.sges.store(i, sges);
        }
    }

    #[inline(always)]
    pub(super) fn id(&self, index: u32) -> WrId {
        let stored = self.ids.get((index & self.mask) as usize);
        WrId(stored.map_or(0, |id| id.load(Ordering::Relaxed)))
    }

    pub(super) fn sges(&self, index: u32) -> Sges {
        let i = (index & self.mask) as usize;
        let n = if self.max_sge == 0 { 0 } else { self.counts[i].load(Ordering::Relaxed) };
        self.sges.load(i, n as usize)
    }
}

/// The outcome of a send.
#[derive(Debug)]
struct SendCell {
    id: AtomicU64,
    /// Status above the operation.
    outcome: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl FamilySafe for SendCell {}

// SAFETY: made of atomic integers.
unsafe impl ZeroInit for SendCell {}

/// The ring of sends whose completions were not polled yet. The owner of the queue keeps its
/// counters.
#[derive(Debug)]
pub(super) struct DoneSends {
    cells: FamilySlice<SendCell>,
    mask: u32,
}

impl DoneSends {
    pub(super) fn new(depth: u32) -> Result<Self, Error> {
        let entries = depth.max(1).next_power_of_two();
        let cells = FamilySlice::zeroed(entries as usize);
        Ok(Self { cells: cells.ok_or(Error::Exhausted("family memory"))?, mask: entries - 1 })
    }

    pub(super) fn capacity(&self) -> u32 {
        self.mask + 1
    }

    #[cold]
    pub(super) fn put(&self, index: u32, id: WrId, op: WcOp, status: WcStatus) {
        let cell = &self.cells[(index & self.mask) as usize];
        cell.id.store(id.0, Ordering::Relaxed);
        let code = u64::from(op == WcOp::Send);
        cell.outcome.store(u64::from(status.0) << 32 | code, Ordering::Relaxed);
    }

    pub(super) fn get(&self, index: u32) -> (WrId, WcOp, WcStatus) {
        let cell = &self.cells[(index & self.mask) as usize];
        let outcome = cell.outcome.load(Ordering::Relaxed);
        let op = if outcome & 1 != 0 { WcOp::Send } else { WcOp::Write };
        (WrId(cell.id.load(Ordering::Relaxed)), op, WcStatus((outcome >> 32) as u32))
    }
}
