//! Requests under way: the state that a queue pair shares with its completion queue.
//!
//! Slots of a send queue become free only when a *signaled* request completes. So now and then an
//! unsignaled request is posted as signaled, and its completion is not passed on. The same
//! completions show which copies of the caller's bytes the device no longer needs: a long request
//! has a piece of memory to itself and is always signaled, short ones share a piece until it is
//! full.
//!
//! Invariants: signaled requests complete in the order of posting, and a completion covers all
//! requests before it. Whenever a post finds no room, a signaled request is under way, whose
//! completion makes room.

use super::Pool;
use super::RdmaPd;
use super::pool::{LARGEST, Piece, SMALLEST};
use crate::error::PostError;
use crate::types::WrId;
use crate::wr::Sge;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Set in a request's `wr_id` for the device: the other bits are a number of this module, not the
/// caller's id.
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
pub(super) struct OutstandingSends {
    ledger: Mutex<Ledger>,
    depth: u64,
    /// Unsignaled requests that may follow one another.
    max_unsignaled: u32,
    /// Largest request that can be copied, in bytes.
    max_copy: u32,
    pool: Arc<Pool>,
}

/// The part that changes.
#[derive(Debug)]
pub(super) struct Ledger {
    signaled: VecDeque<Signaled>,
    n_unsignaled: u32,
    /// Requests posted so far, and those of them that are known to have completed.
    posted: u64,
    done: u64,
    copies: Copies,
}

#[derive(Debug)]
struct Signaled {
    number: u64,
    id: WrId,
    /// Whether the caller asked for the completion.
    is_wanted: bool,
    /// Requests posted up to this one.
    posted: u64,
}

/// Bytes that the device still reads. Requests are named by how many were posted with them.
#[derive(Debug, Default)]
struct Copies {
    /// Pieces that get no more bytes, each with its last request, in order.
    held: VecDeque<(u64, Piece)>,
    /// Bytes of those.
    n_held: u32,
    /// For short requests.
    shared: Option<Shared>,
    /// A shared piece is among the held ones, and no request was signaled since.
    is_due: bool,
}

#[derive(Debug)]
struct Shared {
    piece: Piece,
    n_used: u32,
    last: u64,
}

/// Where the bytes of a request are that is posted next.
#[derive(Debug)]
pub(super) enum Copied {
    Own(Piece),
    /// So many bytes at the end of the shared piece.
    Shared(u32),
}

impl OutstandingSends {
    pub(super) fn new(depth: u32, max_copy: u32, pool: Arc<Pool>) -> Arc<Self> {
        let copies = Copies::default();
        let ledger =
            Ledger { signaled: VecDeque::new(), n_unsignaled: 0, posted: 0, done: 0, copies };
        // More than half of the queue is never without a signaled request.
        let max_unsignaled = depth / 2;
        let max_copy = max_copy.min(LARGEST);
        let ledger = Mutex::new(ledger);
        Arc::new(Self { ledger, depth: depth.into(), max_unsignaled, max_copy, pool })
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the bytes that `sges` name, for the request that is posted next. Returns the copy's
    /// entry for the device, and the value to record when the request is posted.
    ///
    /// # Safety
    /// The entries name readable memory.
    pub(super) unsafe fn copy(
        &self,
        ledger: &mut Ledger,
        pd: &Arc<RdmaPd>,
        sges: &[Sge],
        len: u32,
    ) -> Result<(Sge, Copied), PostError> {
        if len > self.max_copy {
            return Err(PostError::Invalid);
        }
        let copied = if len > SMALLEST {
            Copied::Own(self.take(ledger, pd, len)?)
        } else {
            self.make_room(ledger, pd, len)?;
            Copied::Shared(len)
        };
        let (mr, at) = match (&copied, &ledger.copies.shared) {
            (Copied::Own(piece), _) => piece.place(),
            (Copied::Shared(_), Some(shared)) => {
                let (mr, at) = shared.piece.place();
                (mr, at + shared.n_used as usize)
            }
            (Copied::Shared(_), None) => return Err(PostError::Invalid),
        };
        let mut to = at;
        for sge in sges {
            let from = std::ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
            // SAFETY: the caller promises the memory.
            if !unsafe { mr.try_copy_in(to, from, sge.len as usize) } {
                // A piece of its own goes back to the pool, and room in a shared one is counted
                // when it is posted.
                return Err(PostError::Fault);
            }
            to += sge.len as usize;
        }
        Ok((mr.sge(at, len), copied))
    }

    /// A piece for `len` bytes, if this queue pair may have one more.
    fn take(&self, ledger: &Ledger, pd: &Arc<RdmaPd>, len: u32) -> Result<Piece, PostError> {
        if ledger.copies.n_held + len > self.most_held() {
            return Err(PostError::QueueFull);
        }
        self.pool.take(pd, len).map_err(|_| match ledger.signaled.len() {
            // Nothing under way would ever make room.
            0 => PostError::Invalid,
            _ => PostError::QueueFull,
        })
    }

    /// Sees to it that the shared piece has room for `len` bytes.
    fn make_room(&self, ledger: &mut Ledger, pd: &Arc<RdmaPd>, len: u32) -> Result<(), PostError> {
        if ledger.copies.shared.as_ref().is_some_and(|s| s.n_used + len <= s.piece.len()) {
            return Ok(());
        }
        let piece = self.take(ledger, pd, SMALLEST)?;
        let last = ledger.posted;
        let copies = &mut ledger.copies;
        if let Some(full) = copies.shared.replace(Shared { piece, n_used: 0, last }) {
            copies.n_held += full.piece.len();
            copies.held.push_back((full.last, full.piece));
            copies.is_due = true;
        }
        Ok(())
    }

    /// Bytes of memory that requests under way may hold.
    fn most_held(&self) -> u32 {
        4 * self.max_copy.max(SMALLEST)
    }

    /// Whether the next request must be signaled.
    #[inline]
    pub(super) fn is_due(&self, ledger: &Ledger, copied: Option<&Copied>) -> bool {
        ledger.n_unsignaled + 1 >= self.max_unsignaled
            || ledger.copies.is_due
            || matches!(copied, Some(Copied::Own(_)))
    }

    /// Whether the longest request may find no room now, or the few that are kept for short ones
    /// are all that is left.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let ledger = self.lock();
        ledger.posted - ledger.done + RESERVE > self.depth
            || ledger.copies.n_held + self.max_copy > self.most_held()
    }

    /// Requests posted so far, and those of them that are known to have completed.
    pub(super) fn progress(&self) -> (u64, u64) {
        let ledger = self.lock();
        (ledger.posted, ledger.done)
    }

    /// Whether no signaled request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().signaled.is_empty()
    }

    /// If some requests are not known to have completed: how many are, and whether no other is
    /// signaled.
    pub(super) fn unsettled(&self) -> Option<(u64, bool)> {
        let ledger = self.lock();
        (ledger.posted != ledger.done).then(|| (ledger.done, ledger.signaled.is_empty()))
    }

    /// The outcome of signaled request `number`: the caller's id for it, and whether the caller
    /// asked for a completion on success. `None` if this module did not assign the number.
    pub(super) fn complete(&self, number: u64) -> Option<(WrId, bool)> {
        let mut ledger = self.lock();
        let known = ledger.signaled.front().is_some_and(|first| first.number <= number);
        while known && let Some(done) = ledger.signaled.pop_front() {
            ledger.done = done.posted;
            ledger.copies.release(done.posted);
            if done.number == number {
                return Some((done.id, done.is_wanted));
            }
        }
        None
    }
}

/// The number of the next signaled request.
pub(super) fn next_number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed) & (RECEIVE - 1)
}

impl Ledger {
    /// A request was posted: signaled under `number`, or not; with a copy, or without.
    #[inline]
    pub(super) fn posted(
        &mut self,
        id: WrId,
        number: Option<u64>,
        is_wanted: bool,
        copied: Option<Copied>,
    ) {
        self.posted += 1;
        let posted = self.posted;
        match (copied, &mut self.copies.shared) {
            (Some(Copied::Own(piece)), _) => {
                self.copies.n_held += piece.len();
                self.copies.held.push_back((posted, piece));
            }
            (Some(Copied::Shared(len)), Some(shared)) => {
                shared.n_used += len;
                shared.last = posted;
            }
            _ => {}
        }
        let Some(number) = number else {
            self.n_unsignaled += 1;
            return;
        };
        self.n_unsignaled = 0;
        self.copies.is_due = false;
        self.signaled.push_back(Signaled { number, id, is_wanted, posted });
    }
}

impl Copies {
    /// Requests up to the `done`th have completed.
    fn release(&mut self, done: u64) {
        while let Some((last, _)) = self.held.front()
            && *last <= done
            && let Some((_, piece)) = self.held.pop_front()
        {
            self.n_held -= piece.len();
        }
        if let Some(shared) = &mut self.shared
            && shared.last <= done
        {
            shared.n_used = 0;
        }
    }
}
