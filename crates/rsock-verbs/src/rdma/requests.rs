//! Requests in C's form.

use super::MAX_SGE;
use super::outstanding_sends::{RECEIVE, SIGNALED};
use crate::error::PostError;
use crate::types::WrId;
use crate::wr::{RecvWr, Sge};
use rsock_rdma_sys::verbs::{ibv_recv_wr, ibv_sge};
use std::ptr;

/// Calls `f` with a receive in C's form, and with a place for the one that was refused.
pub(super) fn with_recv_wr(
    wr: &RecvWr<'_>,
    f: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> Result<(), PostError>,
) -> Result<(), PostError> {
    if wr.id.0 & (SIGNALED | RECEIVE) != 0 {
        return Err(PostError::Invalid);
    }
    let mut sges = [NO_SGE; MAX_SGE as usize];
    let num_sge = entries(wr.sges, &mut sges)?;
    let sg_list = sges.as_mut_ptr();
    let mut raw = ibv_recv_wr { wr_id: wr.id.0 | RECEIVE, next: ptr::null_mut(), sg_list, num_sge };
    let mut bad = ptr::null_mut();
    f(&raw mut raw, &raw mut bad)
}

/// Most receives of a chain.
const CHAIN: usize = 8;

/// Calls `f` with a chain of `n` receives without memory, or of the most of them that a chain has,
/// each with `id`; and with a place for the first that was refused. `f` returns whether all were
/// taken. Returns how many were.
pub(super) fn with_empty_recv_wrs(
    id: WrId,
    n: u32,
    f: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> bool,
) -> u32 {
    let n = CHAIN.min(n as usize);
    if n == 0 || id.0 & (SIGNALED | RECEIVE) != 0 {
        return 0;
    }
    let mut sge = NO_SGE;
    let sg_list = &raw mut sge;
    let one = ibv_recv_wr { wr_id: id.0 | RECEIVE, next: ptr::null_mut(), sg_list, num_sge: 0 };
    let mut chain = [one; CHAIN];
    for i in (1..n).rev() {
        let next = &raw mut chain[i];
        chain[i - 1].next = next;
    }
    let mut bad = ptr::null_mut();
    let taken = match f(chain.as_mut_ptr(), &raw mut bad) {
        true => n,
        false => chain[..n].iter().position(|wr| ptr::eq(wr, bad)).unwrap_or(0),
    };
    // At most CHAIN.
    u32::try_from(taken).unwrap_or(0)
}

/// Entries in C's form; returns how many.
#[inline]
pub(super) fn entries(from: &[Sge], to: &mut [ibv_sge]) -> Result<i32, PostError> {
    let to = to.get_mut(..from.len()).ok_or(PostError::Invalid)?;
    for (to, from) in to.iter_mut().zip(from) {
        *to = ibv_sge { addr: from.addr, length: from.len, lkey: from.lkey.0 };
    }
    i32::try_from(from.len()).map_err(|_| PostError::Invalid)
}

pub(super) const NO_SGE: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
