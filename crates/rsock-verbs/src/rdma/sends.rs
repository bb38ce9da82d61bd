//! Requests under way: what a queue pair and its completion queue know together.
//!
//! A send queue gives its places back only when a *signaled* request completes. So every so often an
//! unsignaled one is signaled behind the caller's back, and its completion swallowed. The same
//! completions say which copies of the caller's bytes the device needs no longer.
//!
//! Invariants: signaled requests complete in the order of posting, and a completion stands for all
//! requests before it. Whenever a post finds no room, a signaled request is under way, so that a
//! completion tells when there is some again.

use super::RdmaPd;
use super::mr::RdmaMr;
use crate::error::{Error, PostError};
use crate::types::{Access, WrId};
use crate::wr::Sge;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// In a request's name for the device: the rest is not the caller's name but a number of ours.
pub(super) const SIGNALED: u64 = 1 << 63;
/// In a request's name for the device: a receive.
pub(super) const RECEIVE: u64 = 1 << 62;

/// Places of a queue that is called full.
const RESERVE: u64 = 8;

/// The next number of a signaled request. One count for all: names that were in use before a queue
/// pair's end mean nothing to another one.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The sends of one queue pair.
#[derive(Debug)]
pub(super) struct Sends {
    ledger: Mutex<Ledger>,
    depth: u64,
    /// Unsignaled requests that may follow one another.
    max_unsignaled: u32,
    /// Largest request that can be copied, in bytes.
    max_copy: u32,
}

/// The part that changes.
#[derive(Debug)]
pub(super) struct Ledger {
    signaled: VecDeque<Signaled>,
    n_unsignaled: u32,
    /// Requests posted so far, and those of them that are known to have completed.
    posted: u64,
    done: u64,
    copies: Option<Copies>,
}

#[derive(Debug)]
struct Signaled {
    number: u64,
    id: WrId,
    /// Whether the caller asked for the completion.
    is_wanted: bool,
    /// Requests posted up to this one.
    posted: u64,
    /// Up to where copies are free once it has completed.
    copied: u64,
}

/// Bytes that the device still reads, in order, in a ring of registered memory. Positions count bytes
/// from the beginning and never wrap.
#[derive(Debug)]
struct Copies {
    mr: RdmaMr,
    head: u64,
    tail: u64,
    /// The head when something was last signaled.
    told: u64,
}

impl Sends {
    pub(super) fn new(depth: u32, max_copy: u32) -> Arc<Self> {
        let ledger =
            Ledger { signaled: VecDeque::new(), n_unsignaled: 0, posted: 0, done: 0, copies: None };
        // More than half of the queue is never without a signaled request.
        let max_unsignaled = depth / 2;
        Arc::new(Self { ledger: Mutex::new(ledger), depth: depth.into(), max_unsignaled, max_copy })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what `sges` name, for a request that is posted next; where it lies, and the position
    /// behind it.
    ///
    /// # Safety
    /// The entries name readable memory.
    pub(super) unsafe fn copy(
        &self,
        ledger: &mut Ledger,
        pd: &Arc<RdmaPd>,
        sges: &[Sge],
        len: u32,
    ) -> Result<(Sge, u64), PostError> {
        if len > self.max_copy {
            return Err(PostError::Invalid);
        }
        let copies = match &mut ledger.copies {
            Some(copies) => copies,
            none => {
                // No memory to copy to is no room, for good: the device has none either.
                let new = Copies::new(pd, self.max_copy).map_err(|_| PostError::QueueFull)?;
                none.insert(new)
            }
        };
        let (at, end) = copies.place(len).ok_or(PostError::QueueFull)?;
        let mut to = at;
        for sge in sges {
            let from = std::ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
            // SAFETY: the caller promises the memory.
            unsafe { copies.mr.copy_in_raw(to, from, sge.len as usize) };
            to += sge.len as usize;
        }
        Ok((copies.mr.sge(at, len), end))
    }

    /// Whether the next request must be signaled, the copies then reaching to `end`.
    pub(super) fn is_due(&self, ledger: &Ledger, end: Option<u64>) -> bool {
        ledger.n_unsignaled + 1 >= self.max_unsignaled
            || ledger.copies.as_ref().is_some_and(|copies| {
                end.unwrap_or(copies.head) - copies.told >= u64::from(self.max_copy)
            })
    }

    /// Whether the longest request may find no room now, or the few that are kept for short ones are
    /// all that is left.
    pub(super) fn is_full(&self) -> bool {
        let ledger = self.lock();
        ledger.posted - ledger.done + RESERVE > self.depth
            || ledger.copies.as_ref().is_some_and(|copies| copies.place(self.max_copy).is_none())
    }

    /// Whether no signaled request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().signaled.is_empty()
    }

    /// What became of signaled request `number`: the caller's name for it, and whether the caller
    /// wants to know of a success. `None` if it is not ours.
    pub(super) fn complete(&self, number: u64) -> Option<(WrId, bool)> {
        let mut ledger = self.lock();
        let known = ledger.signaled.front().is_some_and(|first| first.number <= number);
        while known && let Some(done) = ledger.signaled.pop_front() {
            ledger.done = done.posted;
            if let Some(copies) = &mut ledger.copies {
                copies.tail = done.copied;
            }
            if done.number == number {
                return Some((done.id, done.is_wanted));
            }
        }
        None
    }
}

/// The name of the next signaled request.
pub(super) fn next_number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed) & (RECEIVE - 1)
}

impl Ledger {
    /// A request was posted: signaled under `number`, or not; with copies up to `end`, or without.
    pub(super) fn posted(
        &mut self,
        id: WrId,
        number: Option<u64>,
        is_wanted: bool,
        end: Option<u64>,
    ) {
        if let (Some(copies), Some(end)) = (&mut self.copies, end) {
            copies.head = end;
        }
        self.posted += 1;
        let posted = self.posted;
        let Some(number) = number else {
            self.n_unsignaled += 1;
            return;
        };
        self.n_unsignaled = 0;
        let copied = self.copies.as_mut().map_or(0, |copies| {
            copies.told = copies.head;
            copies.head
        });
        self.signaled.push_back(Signaled { number, id, is_wanted, posted, copied });
    }
}

impl Copies {
    fn new(pd: &Arc<RdmaPd>, max_copy: u32) -> Result<Self, Error> {
        // The largest request, four times: one quarter may be lost at the end of the ring, one may
        // be unsignaled.
        let mr = RdmaMr::alloc(pd, 4 * max_copy as usize, Access::LOCAL_WRITE)?;
        Ok(Self { mr, head: 0, tail: 0, told: 0 })
    }

    /// Where the next `len` bytes go, in one piece, and the position behind them.
    fn place(&self, len: u32) -> Option<(usize, u64)> {
        use crate::device::MemoryRegion;
        let (size, len) = (self.mr.len() as u64, u64::from(len));
        let mut at = self.head;
        if at % size + len > size {
            at += size - at % size;
        }
        let end = at + len;
        (end - self.tail <= size).then_some((usize::try_from(at % size).unwrap_or(0), end))
    }
}
