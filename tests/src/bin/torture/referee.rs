//! Judges calls that do not return: one that nothing will end is interrupted, one that should have
//! returned is a failure.
//!
//! So threads may block wherever they like, and no schedule hangs by its own fault.

use crate::kernel_tcp;
use crate::rules;
use crate::schedule::Kind;
use crate::shared::{End, PROCESSES, Shared, THREADS, Thread};
use crate::sys;
use std::sync::atomic::Ordering::SeqCst;

/// How long a call may take before it counts as asleep.
const ASLEEP_AFTER: u64 = 4_000_000;

/// How long a call that waits for nothing that is there may sleep while another thread is awake,
/// and may yet do what ends it.
const LONG_SLEEP: u64 = 60_000_000;

/// How long a call may sleep although what it waits for is there: many times what a loaded machine
/// needs.
const LIMIT: u64 = 40_000_000_000;

/// Looks at every thread once.
///
/// # Errors
/// With the call that sleeps although it should have returned.
pub(crate) fn look(shared: &Shared) -> Result<(), String> {
    let now = sys::now();
    let limit = if are_all_asleep(shared, now) { ASLEEP_AFTER } else { LONG_SLEEP };
    for p in 0..PROCESSES {
        let process = &shared.processes[p];
        if process.is_claimed.load(SeqCst) == 0 || process.is_gone.load(SeqCst) != 0 {
            continue;
        }
        for t in 0..THREADS {
            let thread = &process.threads[t];
            let Some(kind) = call_of(thread) else { continue };
            let age = now.saturating_sub(thread.since.load(SeqCst));
            if age < limit {
                continue;
            }
            match reason_to_return(shared, p, thread, kind, now) {
                None => {
                    let (pid, tid) = (process.pid.load(SeqCst), thread.tid.load(SeqCst));
                    if pid != 0 && tid != 0 && call_of(thread).is_some() {
                        sys::signal_thread(pid, tid, libc::SIGUSR1);
                    }
                }
                Some(_) if age > LIMIT && is_kernels_own(shared) => {}
                Some(why) if age > LIMIT => {
                    let end = End::of_index(thread.end.load(SeqCst));
                    let name = kind.name();
                    return Err(format!(
                        "HANG: process {p}, thread {t}: `{name}` on the {end} sleeps although {why}"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// Whether the kernel has reasons of its own for which the run waits.
pub(crate) fn is_kernels_own(shared: &Shared) -> bool {
    kernel_tcp::mark_lost_resets(shared) > 0 || kernel_tcp::retransmits(shared)
}

/// Whether no thread will do anything until a call returns.
fn are_all_asleep(shared: &Shared, now: u64) -> bool {
    shared.processes.iter().all(|process| {
        let is_there = process.is_claimed.load(SeqCst) != 0 && process.is_gone.load(SeqCst) == 0;
        if !is_there || process.phase.load(SeqCst) != 0 {
            return true;
        }
        let mut running = process.threads.iter().filter(|t| t.tid.load(SeqCst) != 0).peekable();
        // One without threads is about to have them.
        running.peek().is_some()
            && running.all(|thread| {
                let age = now.saturating_sub(thread.since.load(SeqCst));
                call_of(thread).is_some() && age >= ASLEEP_AFTER
            })
    })
}

/// The call that a thread is in.
pub(crate) fn call_of(thread: &Thread) -> Option<Kind> {
    let call = thread.call.load(SeqCst).checked_sub(1)?;
    Kind::ALL.get(call as usize).copied()
}

/// Why a call must return on its own; `None` if it may sleep for ever.
fn reason_to_return(
    shared: &Shared,
    process: usize,
    thread: &Thread,
    kind: Kind,
    now: u64,
) -> Option<&'static str> {
    let end = End::of_index(thread.end.load(SeqCst));
    let least = thread.least.load(SeqCst);
    let read = shared.read_by(end);
    let is_over = rules::is_closed(shared, end.peer());
    if is_stream_call(kind) && shared.state(end).has_lost_reset.load(SeqCst) != 0 {
        return None;
    }
    match kind {
        Kind::Accept => {
            let is_certain = shared.processes[process].has_lost_accepts.load(SeqCst) == 0;
            let waiting = shared.connections.iter().any(|c| is_waiting(shared, c, process));
            (is_certain && waiting).then_some("a connection is there")
        }
        Kind::Send | Kind::Flood | Kind::Drip => {
            let written = shared.written_by(end);
            if is_over {
                Some("the peer has closed")
            } else if written.is_shut.load(SeqCst) != 0 {
                Some("this side is shut down")
            } else if is_asleep(shared, written.reader.load(SeqCst), now) {
                Some("the reader waits too")
            } else {
                None
            }
        }
        Kind::Recv | Kind::Peek | Kind::Sip | Kind::Poll => {
            let ahead = read.sent.load(SeqCst).saturating_sub(read.read.load(SeqCst));
            if least > 0 && read.is_read_unsure.load(SeqCst) == 0 && ahead >= least {
                Some("bytes are there")
            } else if read.is_order_lost.load(SeqCst) != 0 {
                None
            } else if least > 0 && (read.is_shut.load(SeqCst) != 0 || is_over) {
                Some("the peer has ended")
            } else if least > 0
                && kind != Kind::Poll
                && is_asleep(shared, read.writer.load(SeqCst), now)
            {
                Some("the writer waits too")
            } else {
                None
            }
        }
        _ => Some("nothing is to be waited for"),
    }
}

/// Whether a call of this kind may wait for the peer's bytes, or for room at the peer.
fn is_stream_call(kind: Kind) -> bool {
    use Kind::{Drip, Flood, Peek, Poll, Recv, Send, Sip};
    matches!(kind, Send | Flood | Drip | Recv | Peek | Sip | Poll)
}

/// Whether the owner of a turn has been in a call for long.
fn is_asleep(shared: &Shared, turn: u32, now: u64) -> bool {
    let Some(owner) = turn.checked_sub(1).map(|owner| owner as usize) else { return false };
    let thread = &shared.processes[owner / THREADS].threads[owner % THREADS];
    call_of(thread).is_some() && now.saturating_sub(thread.since.load(SeqCst)) > ASLEEP_AFTER
}

/// Whether a connection waits in the queue of the listener of `process`.
fn is_waiting(shared: &Shared, c: &crate::shared::Connection, process: usize) -> bool {
    let listener = &shared.processes[process];
    let to = &shared.processes[c.to.load(SeqCst) as usize];
    // A listener may be shared with a child: then either process may accept, and a killed one may
    // have accepted before its death.
    let is_alone = (0..PROCESSES).all(|other| {
        other == process
            || shared.processes[other].is_claimed.load(SeqCst) == 0
            || shared.processes[other].port.load(SeqCst) != listener.port.load(SeqCst)
    });
    is_alone
        && c.is_connected.load(SeqCst) != 0
        && c.is_accepted.load(SeqCst) == 0
        && to.port.load(SeqCst) == listener.port.load(SeqCst)
}
