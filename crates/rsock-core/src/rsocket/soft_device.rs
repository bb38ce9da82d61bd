//! The shared-memory device that rsockets streams use on one host.

use rsock_verbs::soft::SoftContext;
use std::io;

/// Opens the device for this process; a forked child must open its own.
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
