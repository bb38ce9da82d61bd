//! The device that pure sockets run on.

use rsock_verbs::soft::SoftContext;
use std::io;

/// Opens it for this process; a forked child must open its own.
///
/// # Errors
/// When the system gives no random numbers.
pub(super) fn open() -> io::Result<SoftContext> {
    Ok(if crate::config::environment::is_message_send() {
        SoftContext::open_without_write_imm()?
    } else {
        SoftContext::open()?
    })
}
