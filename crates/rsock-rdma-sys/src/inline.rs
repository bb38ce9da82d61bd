//! The verbs of the data path.
//!
//! In C these are inline functions: each calls the driver through the table of operations in the
//! object's device context, so no library has a symbol for them. A context that libibverbs opened
//! has all of them in its table; an empty place there is answered with `ENOSYS`, not with a jump to
//! nowhere.
//!
//! # Source
//! rdma-core v44.0, libibverbs/verbs.h.

use crate::verbs::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};
use std::ffi::c_int;

/// One call through the table of `$object`'s context.
macro_rules! through_table {
    ($object:ident, $operation:ident ( $($arg:expr),* ), else $absent:expr) => {{
        // SAFETY: the caller promises a live object, whose context outlives it and is set once,
        // when it is made. The field is read by value: no reference into the library's memory.
        let context = unsafe { (*$object).context };
        // SAFETY: as above; the table is filled before the context is handed out.
        let operation = unsafe { (*context).ops.$operation };
        match operation {
            // SAFETY: it is the driver's own function for this object; the arguments are as the
            // caller of this verb promises.
            Some(call) => unsafe { call($object, $($arg),*) },
            None => $absent,
        }
    }};
}

/// Takes up to `n` completions into `out`; returns how many, or a negative number.
///
/// # Safety
/// `cq` is a live completion queue and `out` has room for `n` entries.
#[inline]
#[doc(alias = "ibv_poll_cq")]
pub unsafe fn poll_cq(cq: *mut ibv_cq, n: c_int, out: *mut ibv_wc) -> c_int {
    through_table!(cq, poll_cq(n, out), else -libc::ENOSYS)
}

/// Asks for one event on the queue's channel at the next completion, or at the next solicited one.
/// Returns 0 or an errno.
///
/// # Safety
/// `cq` is a live completion queue.
#[inline]
#[doc(alias = "ibv_req_notify_cq")]
pub unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: bool) -> c_int {
    through_table!(cq, req_notify_cq(c_int::from(solicited_only)), else libc::ENOSYS)
}

/// Posts a chain of sends. Returns 0, or an errno with the first request that was not taken in
/// `bad`.
///
/// # Safety
/// `qp` is a live queue pair; `wr` and what it points to are readable during the call; memory that
/// it names stays valid until the request completes, or during the call for inline requests; `bad`
/// is writable.
#[inline]
#[doc(alias = "ibv_post_send")]
pub unsafe fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    through_table!(qp, post_send(wr, bad), else libc::ENOSYS)
}

/// Posts a chain of receives. Returns as [`post_send`].
///
/// # Safety
/// As for [`post_send`]; the memory is writable until the receive completes.
#[inline]
#[doc(alias = "ibv_post_recv")]
pub unsafe fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    through_table!(qp, post_recv(wr, bad), else libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::ibv_context;
    use std::mem::MaybeUninit;
    use std::ptr;

    /// A test driver in a context's table: the call reaches it with its arguments.
    unsafe extern "C" fn driver_poll(cq: *mut ibv_cq, n: c_int, out: *mut ibv_wc) -> c_int {
        assert!(!cq.is_null() && out.is_null());
        n + 1
    }

    #[test]
    fn calls_go_through_the_table_of_the_context() {
        // SAFETY: a context of zeros holds null pointers and empty places only.
        let mut context = unsafe { MaybeUninit::<ibv_context>::zeroed().assume_init() };
        // SAFETY: so does a queue.
        let mut cq = unsafe { MaybeUninit::<ibv_cq>::zeroed().assume_init() };
        cq.context = &raw mut context;
        // SAFETY: the queue lives, and its table is empty.
        assert_eq!(unsafe { poll_cq(&raw mut cq, 3, ptr::null_mut()) }, -libc::ENOSYS);
        // SAFETY: as above.
        assert_eq!(unsafe { req_notify_cq(&raw mut cq, false) }, libc::ENOSYS);
        context.ops.poll_cq = Some(driver_poll);
        cq.context = &raw mut context;
        // SAFETY: the queue lives, and the driver above writes nothing.
        assert_eq!(unsafe { poll_cq(&raw mut cq, 3, ptr::null_mut()) }, 4);
    }
}
