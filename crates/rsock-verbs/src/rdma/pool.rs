//! Memory for the bytes of sends that are under way: registered once, and shared by the queue pairs
//! of a domain, so that a queue pair which sends nothing has none.
//!
//! It comes in pieces of a few sizes, cut from slabs. A piece belongs to one queue pair until its
//! requests have completed; the piece that was given back last is the next one to be used. Peers
//! have no rights there.

use super::mr::RdmaMr;
use super::{FreePieces, N_PIECE_SIZES, Pool, RdmaPd};
use crate::error::Error;
use crate::types::Access;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Bytes of the smallest piece.
pub(super) const SMALLEST: u32 = 4 << 10;
/// Bytes of the largest piece.
pub(super) const LARGEST: u32 = SMALLEST << (N_PIECE_SIZES - 1);
/// Bytes of a slab: registration is slow.
const SLAB: usize = 256 << 10;

/// A piece in use; it goes back to its pool.
#[derive(Debug)]
pub(super) struct Piece {
    slab: Arc<RdmaMr>,
    at: usize,
    size: usize,
    pool: Arc<Pool>,
}

impl Pool {
    fn free(&self) -> MutexGuard<'_, FreePieces> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece of at least `len` bytes, at most [`LARGEST`].
    ///
    /// # Errors
    /// When no more memory can be registered.
    pub(super) fn take(self: &Arc<Self>, pd: &Arc<RdmaPd>, len: u32) -> Result<Piece, Error> {
        let size = size_of_len(len);
        let mut free = self.free();
        if free[size].is_empty() {
            let slab = Arc::new(RdmaMr::alloc(pd, SLAB, Access::LOCAL_WRITE)?);
            let places = (0..SLAB).step_by(bytes(size));
            // The lowest address comes last, and is used first.
            let places = places.rev().map(|at| (Arc::clone(&slab), at));
            free[size].extend(places);
        }
        let (slab, at) = free[size].pop().ok_or(Error::Exhausted("registered memory"))?;
        Ok(Piece { slab, at, size, pool: Arc::clone(self) })
    }
}

impl Piece {
    /// Its bytes.
    pub(super) fn len(&self) -> u32 {
        SMALLEST << self.size
    }

    /// Its region, and its offset there.
    pub(super) fn place(&self) -> (&RdmaMr, usize) {
        (&self.slab, self.at)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut free = self.pool.free();
        let (free, n) = (&mut free[self.size], SLAB / bytes(self.size));
        free.push((Arc::clone(&self.slab), self.at));
        // One slab is kept for the next burst.
        if free.len() >= 2 * n {
            let is_of_slab = |(slab, _): &(Arc<RdmaMr>, usize)| Arc::ptr_eq(slab, &self.slab);
            if free.iter().filter(|piece| is_of_slab(piece)).count() == n {
                free.retain(|piece| !is_of_slab(piece));
            }
        }
    }
}

/// The smallest size for `len` bytes.
fn size_of_len(len: u32) -> usize {
    (0..N_PIECE_SIZES - 1).find(|size| SMALLEST << size >= len).unwrap_or(N_PIECE_SIZES - 1)
}

fn bytes(size: usize) -> usize {
    (SMALLEST << size) as usize
}
