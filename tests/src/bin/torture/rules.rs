//! What kernel TCP allows, and nothing else. docs/reliability.md states these rules.

use crate::shared::{End, PROCESSES, Shared};
use std::sync::atomic::Ordering::SeqCst;

/// Whether a descriptor of `end` is open for certain, in a process that has not gone.
pub(crate) fn is_open(shared: &Shared, end: End) -> bool {
    let open = &shared.state(end).n_open;
    (0..PROCESSES)
        .any(|p| open[p].load(SeqCst) > 0 && shared.processes[p].is_gone.load(SeqCst) == 0)
}

/// Whether no descriptor of `end` can be open any more.
pub(crate) fn is_closed(shared: &Shared, end: End) -> bool {
    let state = shared.state(end);
    let is_taken = end.side == 0 || shared.connection(end).is_accepted.load(SeqCst) != 0;
    is_taken
        && state.n_mailed.load(SeqCst) == 0
        && (0..PROCESSES).all(|p| {
            state.n_maybe_open[p].load(SeqCst) == 0
                || shared.processes[p].is_reaped.load(SeqCst) != 0
        })
}

/// Whether `end` may be told of a reset: the peer's end has been closed, and not in order. It was
/// closed with bytes that it had not read, was sent some afterwards, was not accepted yet, or was
/// closed with `SO_LINGER` 0. Or one of the ends has shut down both ways: what reaches it then
/// resets the connection at both ends.
pub(crate) fn may_be_reset(shared: &Shared, end: End) -> bool {
    let peer = end.peer();
    if is_shut_both_ways(shared, end) || is_shut_both_ways(shared, peer) {
        return true;
    }
    if is_open(shared, peer) {
        return false;
    }
    let ours = shared.written_by(end);
    shared.state(peer).is_abortive.load(SeqCst) != 0
        || ours.attempted.load(SeqCst) > ours.read.load(SeqCst)
        || ours.is_read_unsure.load(SeqCst) != 0
        || shared.connection(end).is_accepted.load(SeqCst) == 0
}

fn is_shut_both_ways(shared: &Shared, end: End) -> bool {
    shared.written_by(end).has_shut_begun.load(SeqCst) != 0
        && shared.read_by(end).is_read_shut.load(SeqCst) != 0
}

/// Whether the peer of `end` may have ended what it writes in order.
pub(crate) fn may_have_ended(shared: &Shared, end: End) -> bool {
    shared.read_by(end).has_shut_begun.load(SeqCst) != 0 || !is_open(shared, end.peer())
}

/// Judges that `end` has read the end of the stream.
///
/// # Errors
/// With what TCP would not do.
pub(crate) fn judge_end(shared: &Shared, end: End) -> Result<(), String> {
    let direction = shared.read_by(end);
    if direction.is_read_shut.load(SeqCst) != 0
        || direction.is_read_unsure.load(SeqCst) != 0
        || may_be_reset(shared, end)
    {
        return Ok(());
    }
    let read = direction.read.load(SeqCst);
    let sent = direction.sent.load(SeqCst);
    if read < sent {
        return Err(format!("the {end} has read the end after {read} of {sent} bytes"));
    }
    if !may_have_ended(shared, end) {
        return Err(format!(
            "the {end} has read an end after {read} bytes, but its peer is open and has not shut \
             down"
        ));
    }
    Ok(())
}

/// Judges that a receive of `end` has failed with `errno`.
///
/// # Errors
/// With what TCP would not do.
pub(crate) fn judge_receive_error(shared: &Shared, end: End, errno: i32) -> Result<(), String> {
    let is_reset = matches!(errno, libc::ECONNRESET | libc::EPIPE);
    if is_reset && may_be_reset(shared, end) {
        return Ok(());
    }
    let direction = shared.read_by(end);
    let (read, sent) = (direction.read.load(SeqCst), direction.sent.load(SeqCst));
    let why = std::io::Error::from_raw_os_error(errno);
    Err(format!("receiving, the {end} is told `{why}` after {read} of {sent} bytes"))
}

/// Judges that a send of `end` has failed with `errno`.
///
/// # Errors
/// With what TCP would not do.
pub(crate) fn judge_send_error(shared: &Shared, end: End, errno: i32) -> Result<(), String> {
    let is_shut = shared.written_by(end).has_shut_begun.load(SeqCst) != 0;
    let is_over = errno == libc::EPIPE || errno == libc::ECONNRESET;
    if (is_over && may_be_reset(shared, end)) || (errno == libc::EPIPE && is_shut) {
        return Ok(());
    }
    let why = std::io::Error::from_raw_os_error(errno);
    Err(format!("sending, the {end} is told `{why}`, but its peer is open"))
}

/// Judges what `poll` says of `end`, of whose stream `read` bytes had been read before it was
/// asked.
///
/// # Errors
/// With what TCP would not say.
pub(crate) fn judge_readiness(
    shared: &Shared,
    end: End,
    revents: i16,
    read: u64,
) -> Result<(), String> {
    if revents & libc::POLLNVAL != 0 {
        return Err(format!("poll says that a descriptor of the {end} is not open"));
    }
    let direction = shared.read_by(end);
    let is_over = may_have_ended(shared, end)
        || may_be_reset(shared, end)
        || direction.is_read_shut.load(SeqCst) != 0;
    if revents & libc::POLLRDHUP != 0 && !is_over {
        return Err(format!("poll says that the peer of the {end} has ended, which is open"));
    }
    let attempted = direction.attempted.load(SeqCst);
    let is_unsure = direction.is_read_unsure.load(SeqCst) != 0;
    if revents & libc::POLLIN != 0 && !is_over && !is_unsure && read >= attempted {
        return Err(format!("poll says that the {end} can read, but nothing more was sent to it"));
    }
    Ok(())
}
