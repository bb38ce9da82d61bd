//! Keeps the whole process on TCP, from some moment on and for good.
//!
//! For programs that bypass the hooks altogether: an io_uring reads, writes and polls kernel
//! sockets, and a system call filter may forbid calls that the core needs. Every stream leaves its
//! ring, and none is adopted any more.

use crate::{fdtable, guard, handoff, log};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_verbs::untrusted;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// The reason; `FallbackReason::None` as long as streams may leave TCP.
static REASON: AtomicU8 = AtomicU8::new(FallbackReason::None as u8);

/// Whether the process stays on TCP.
#[inline]
pub(crate) fn is_on() -> bool {
    REASON.load(Ordering::Relaxed) != FallbackReason::None as u8
}

/// Whether the program restricts its own system calls: the hooks make none of their own then.
#[inline]
pub(crate) fn is_sandboxed() -> bool {
    REASON.load(Ordering::Relaxed) == FallbackReason::Sandbox as u8
}

/// The program is about to restrict its own system calls. Removes all table entries, but for
/// streams that another thread is still receiving from.
///
/// # Errors
/// As [`begin`].
pub(crate) fn before_sandbox() -> Result<(), c_int> {
    if guard::is_in_core() || is_sandboxed() {
        return Ok(());
    }
    log::line(format_args!("system call filter: the process stays on TCP"));
    begin(FallbackReason::Sandbox)?;
    log::end();
    untrusted::stop_inspecting();
    fdtable::forget();
    Ok(())
}

/// Has every stream and UDP socket of the process leave its ring. Streams that another thread is
/// receiving from get the ring's remaining bytes by that thread.
///
/// # Errors
/// The errno of a stream that cannot leave: the kernel alone would lose bytes of it.
pub(crate) fn begin(why: FallbackReason) -> Result<(), c_int> {
    if guard::is_in_core() {
        return Ok(());
    }
    REASON.store(why as u8, Ordering::SeqCst);
    // SYNC(tcp-only): a thread that adopts a candidate which is not seen below loads the reason
    // after this fence in the order of `SeqCst`, for it claims the entry by a compare-and-swap
    // first.
    fence(Ordering::SeqCst);
    fdtable::datagrams::pin_all(why);
    for fd in fdtable::known_fds(0, u32::MAX) {
        if fdtable::is_connection(fd) {
            fdtable::pin(fd, why);
        }
    }
    let mut result = Ok(());
    for stream in fdtable::accelerated_streams() {
        result = result.and(handoff::before_kernel_use(stream, why));
    }
    result
}
