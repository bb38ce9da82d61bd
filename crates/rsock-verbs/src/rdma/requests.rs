//! Requests in C's form.

use super::MAX_SGE;
use super::outstanding_sends::{RECEIVE, SIGNALED};
use crate::error::PostError;
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
