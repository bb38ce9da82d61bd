//! The memory regions of one link: a table in the segment for the peer, and a private table for
//! this process, which no peer can change.

use super::layout::{FOREIGN, REGION_TABLE, REGIONS, RegionEntry};
use super::segment::Mapping;
use crate::error::Error;
use crate::types::{Access, LKey, RKey};
use crate::wc::WcStatus;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const CHUNK: u32 = 256;

/// This process's private record of a region.
#[derive(Debug, Default)]
struct Record {
    /// 0 while unused. Stored last, cleared first.
    key: AtomicU32,
    access: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
}

type Chunk = Box<[Record]>;

/// # Invariants
/// A key is an index below and a generation above its low 16 bits. A key that was withdrawn does
/// not come back until its generation wraps.
#[derive(Debug)]
pub(super) struct Regions {
    indices: Mutex<Indices>,
    records: Box<[OnceLock<Chunk>]>,
}

#[derive(Debug, Default)]
struct Indices {
    generations: Vec<u16>,
    free: Vec<u32>,
}

/// Where a region lies, and what may be done with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Virtual address in this process.
    pub(super) addr: u64,
    pub(super) len: u64,
    /// Offset in the segment; `None` for foreign memory.
    pub(super) offset: Option<u64>,
    pub(super) access: Access,
}

impl Regions {
    pub(super) fn new() -> Self {
        let n = (REGIONS / CHUNK) as usize;
        Self {
            indices: Mutex::default(),
            records: std::iter::repeat_with(OnceLock::new).take(n).collect(),
        }
    }

    fn indices(&self) -> MutexGuard<'_, Indices> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a region in `own`'s table and in the private one.
    pub(super) fn add(&self, own: &Mapping, extent: Extent) -> Result<u32, Error> {
        let mut indices = self.indices();
        let index = match indices.free.pop() {
            Some(index) => index,
            None => {
                let index = indices.generations.len();
                let index = u32::try_from(index).ok().filter(|i| *i < REGIONS);
                indices.generations.push(1);
                index.ok_or(Error::Exhausted("regions"))?
            }
        };
        let key = u32::from(indices.generations[index as usize]) << 16 | index;
        drop(indices);

        let fresh = || std::iter::repeat_with(Record::default).take(CHUNK as usize).collect();
        let chunk = self.records[(index / CHUNK) as usize].get_or_init(fresh);
        let record = &chunk[(index % CHUNK) as usize];
        record.access.store(extent.access.bits(), Ordering::Relaxed);
        record.addr.store(extent.addr, Ordering::Relaxed);
        record.len.store(extent.len, Ordering::Relaxed);
        // SYNC(region): publishes the fields. Pairs with the Acquire in `covers`.
        record.key.store(key, Ordering::Release);

        let entry = entry(own, index).ok_or(Error::Exhausted("regions"))?;
        let foreign = if extent.offset.is_none() { FOREIGN } else { 0 };
        entry.access.store(extent.access.bits() | foreign, Ordering::Relaxed);
        entry.offset.store(extent.offset.unwrap_or(0), Ordering::Relaxed);
        entry.len.store(extent.len, Ordering::Relaxed);
        entry.addr.store(extent.addr, Ordering::Relaxed);
        // SYNC(region): publishes the fields. Pairs with the Acquire in `RemoteRegion::look_up`.
        entry.key.store(key, Ordering::Release);
        Ok(key)
    }

    /// Withdraws a region. A copy that has begun may still write its memory.
    pub(super) fn remove(&self, own: &Mapping, key: u32) {
        let index = key % REGIONS;
        if let Some(entry) = entry(own, index) {
            entry.key.store(0, Ordering::Release);
        }
        if let Some(record) = self.record(index) {
            record.key.store(0, Ordering::Release);
        }
        let mut indices = self.indices();
        if let Some(generation) = indices.generations.get_mut(index as usize) {
            // 0 is skipped: no key is 0.
            *generation = generation.checked_add(1).unwrap_or(1);
            indices.free.push(index);
        }
    }

    /// Whether `lkey` covers `addr..addr + len` and allows `need`.
    pub(super) fn covers(&self, lkey: LKey, addr: u64, len: u64, need: Access) -> bool {
        self.record(lkey.0 % REGIONS).is_some_and(|r| {
            // SYNC(region): pairs with the Release in `add`.
            r.key.load(Ordering::Acquire) == lkey.0
                && Access::from_bits_truncate(r.access.load(Ordering::Relaxed)).contains(need)
                && spans(r.addr.load(Ordering::Relaxed), r.len.load(Ordering::Relaxed), addr, len)
        })
    }

    fn record(&self, index: u32) -> Option<&Record> {
        let chunk = self.records.get((index / CHUNK) as usize)?.get()?;
        chunk.get((index % CHUNK) as usize)
    }
}

fn entry(own: &Mapping, index: u32) -> Option<&RegionEntry> {
    own.at(REGION_TABLE + u64::from(index) * size_of::<RegionEntry>() as u64)
}

/// Whether `addr..addr + len` lies inside `start..start + size`.
fn spans(start: u64, size: u64, addr: u64, len: u64) -> bool {
    let into = addr.wrapping_sub(start);
    into <= size && len <= size - into
}

/// A region of the peer, as last looked up: a private copy of its entry, checked against this
/// process's mapping.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemoteRegion {
    /// 0 for nothing.
    key: u32,
    foreign: bool,
    addr: u64,
    len: u64,
    offset: u64,
}

/// Where a WRITE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To this offset of the peer's segment; the whole span lies inside this process's mapping.
    Segment(u64),
    /// To this address of the peer's process.
    Foreign(u64),
}

impl RemoteRegion {
    /// Looks `rkey` up in the peer's table; refused if the peer has no such region, does not open
    /// it to writes, or describes it as lying outside its segment.
    #[cold]
    pub(super) fn look_up(peer_segment: &Mapping, rkey: RKey) -> Result<Self, WcStatus> {
        const NO: WcStatus = WcStatus::REM_ACCESS;
        let entry = entry(peer_segment, rkey.0 % REGIONS).ok_or(NO)?;
        // SYNC(region): pairs with the Release in `add`.
        if rkey.0 == 0 || entry.key.load(Ordering::Acquire) != rkey.0 {
            return Err(NO);
        }
        let access = entry.access.load(Ordering::Relaxed);
        let remote = Self {
            key: rkey.0,
            foreign: access & FOREIGN != 0,
            addr: entry.addr.load(Ordering::Relaxed),
            len: entry.len.load(Ordering::Relaxed),
            offset: entry.offset.load(Ordering::Relaxed),
        };
        let opened = Access::from_bits_truncate(access).contains(Access::REMOTE_WRITE);
        let inside = remote.foreign || peer_segment.covers(remote.offset, remote.len);
        if opened && inside { Ok(remote) } else { Err(NO) }
    }

    /// Whether this is still region `rkey`: the owner may have withdrawn it since.
    #[inline(always)]
    pub(super) fn is_current(&self, peer_segment: &Mapping, rkey: RKey) -> bool {
        self.key == rkey.0
            && self.key != 0
            && entry(peer_segment, self.key % REGIONS)
                .is_some_and(|e| e.key.load(Ordering::Acquire) == self.key)
    }

    /// Where `len` bytes for `addr` go, if they lie inside the region.
    #[inline(always)]
    pub(super) fn target(&self, addr: u64, len: u64) -> Option<Target> {
        if !spans(self.addr, self.len, addr, len) {
            return None;
        }
        if self.foreign {
            return Some(Target::Foreign(addr));
        }
        Some(Target::Segment(self.offset + addr.wrapping_sub(self.addr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::segment;
    use proptest::prelude::*;

    proptest! {
        /// For any content of the peer's table, a target lies inside the mapping of the peer's
        /// segment.
        #[test]
        fn targets_stay_inside_the_mapping(
            key in 1u32..=u32::MAX, access: u32, offset: u64, len: u64, base: u64,
            addr: u64, size in 0u64..1 << 32,
        ) {
            let (_fd, m) = segment::create().expect("segment");
            let e = entry(&m, key % REGIONS).expect("entry");
            for (offset, len, addr) in [
                (offset, len, addr),
                (offset % m.len(), len % m.len(), base.wrapping_add(addr % m.len())),
            ] {
                e.access.store(access, Ordering::Relaxed);
                e.offset.store(offset, Ordering::Relaxed);
                e.len.store(len, Ordering::Relaxed);
                e.addr.store(base, Ordering::Relaxed);
                e.key.store(key, Ordering::Relaxed);
                let region = RemoteRegion::look_up(&m, RKey(key)).ok();
                let found = region.and_then(|r| r.target(addr, size));
                if let Some(Target::Segment(at)) = found {
                    prop_assert!(m.covers(at, size));
                }
            }
        }
    }

    #[test]
    fn a_withdrawn_key_never_matches_again() {
        let (_fd, m) = segment::create().expect("segment");
        let regions = Regions::new();
        let extent = Extent { addr: 4096, len: 100, offset: Some(0), access: Access::all() };
        let key = regions.add(&m, extent).expect("key");
        let seen = RemoteRegion::look_up(&m, RKey(key)).expect("region");
        assert!(seen.is_current(&m, RKey(key)));
        assert!(regions.covers(LKey(key), 4096, 100, Access::LOCAL_WRITE));
        assert!(!regions.covers(LKey(key), 4096, 101, Access::LOCAL_WRITE));
        assert!(!regions.covers(LKey(key), 4095, 1, Access::LOCAL_WRITE));
        regions.remove(&m, key);
        let again = regions.add(&m, extent).expect("key");
        assert_eq!(again & 0xffff, key & 0xffff);
        assert!(again != key && !seen.is_current(&m, RKey(key)));
        assert!(RemoteRegion::look_up(&m, RKey(key)).is_err());
        assert!(!regions.covers(LKey(key), 4096, 100, Access::LOCAL_WRITE));
    }
}
