//! Attributes of queue pairs in C's form.

use rsock_rdma_sys::verbs::{ibv_qp_attr, ibv_qp_state};
use std::mem::MaybeUninit;

/// Attributes of zeros, for the fields that a change does not name.
pub(super) fn blank(state: ibv_qp_state) -> ibv_qp_attr {
    // SAFETY: all of its fields are numbers.
    let mut attr = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
    attr.qp_state = state;
    attr
}
