//! Moves the whole process to TCP.
//!
//! For programs that bypass the hooks altogether: an io_uring reads, writes and polls kernel
//! sockets, and a system call filter may forbid calls that the core needs. Every stream leaves its
//! ring, and none is adopted any more ([`tcp_only`]).

use crate::{event_set, fdtable, guard, handoff, log, tcp_only};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_verbs::untrusted;

/// The program is about to restrict its own system calls. Removes all table entries, but for
/// streams that another thread is still receiving from.
///
/// # Errors
/// As [`begin`].
pub(crate) fn before_sandbox() -> Result<(), c_int> {
    if guard::is_in_core() || tcp_only::is_sandboxed() {
        return Ok(());
    }
    log::line(format_args!("system call filter: the process stays on TCP"));
    begin(FallbackReason::Sandbox)?;
    log::end();
    untrusted::note_restricted();
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
    tcp_only::note(why);
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
    event_set::settle_all();
    result
}
