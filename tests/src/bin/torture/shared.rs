//! What the processes of a run share: a memory file of atomics in which each notes what it is about
//! to do and what it has done, so that every other one, and the driver, can judge what it sees.
//!
//! INVARIANT: a bound is moved before a call in the direction that allows more, and after it in the
//! direction that allows less. So what a judge reads never forbids what TCP may do.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// Processes of a run: two that the driver starts, and one that is forked.
pub(crate) const PROCESSES: usize = 3;
/// Threads of a process.
pub(crate) const THREADS: usize = 4;
/// Descriptors of connections that a process may hold.
pub(crate) const SLOTS: usize = 20;
/// Connections of a run.
pub(crate) const CONNECTIONS: usize = 96;
/// Calls of each thread that are remembered.
pub(crate) const REMEMBERED: usize = 24;

/// All of it. Zeroes are its beginning.
#[repr(C)]
pub(crate) struct Shared {
    /// 1 once a process has found something wrong.
    pub(crate) has_failed: AtomicU32,
    /// Length of `failure`, once it is complete.
    pub(crate) failure_len: AtomicU32,
    /// What it found.
    pub(crate) failure: [AtomicU64; 256],
    /// Connections made so far.
    pub(crate) n_connections: AtomicU32,
    /// Client ports given out so far.
    pub(crate) n_ports: AtomicU32,
    /// Bytes that were read and found right.
    pub(crate) n_checked: AtomicU64,
    pub(crate) processes: [Process; PROCESSES],
    pub(crate) connections: [Connection; CONNECTIONS],
}

#[repr(C)]
pub(crate) struct Process {
    /// Whether it is, or was, there.
    pub(crate) is_claimed: AtomicU32,
    /// Set before it is killed or ends.
    pub(crate) is_gone: AtomicU32,
    /// Set by the driver once the kernel has nothing of it any more.
    pub(crate) is_reaped: AtomicU32,
    /// Set before it is killed.
    pub(crate) is_killed: AtomicU32,
    pub(crate) pid: AtomicI32,
    pub(crate) phase: AtomicU32,
    /// The process that forks this one, and 1.
    pub(crate) parent: AtomicU32,
    /// Whether the fork is complete.
    pub(crate) is_forked: AtomicU32,
    /// Its listening descriptor and the port, which a child inherits.
    pub(crate) listener: AtomicI32,
    pub(crate) port: AtomicU32,
    /// Whether a connection may have been accepted without a note: exec or death came between.
    pub(crate) has_lost_accepts: AtomicU32,
    pub(crate) slots: [Slot; SLOTS],
    pub(crate) threads: [Thread; THREADS],
}

/// A descriptor of a process.
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) lock: AtomicU32,
    /// `EMPTY`, `RESERVED` or `OPEN`.
    pub(crate) state: AtomicU32,
    pub(crate) fd: AtomicI32,
    /// The end of a connection, as [`End::index`].
    pub(crate) end: AtomicU32,
}

pub(crate) const EMPTY: u32 = 0;
pub(crate) const RESERVED: u32 = 1;
pub(crate) const OPEN: u32 = 2;

#[repr(C)]
pub(crate) struct Thread {
    pub(crate) tid: AtomicI32,
    /// The next operation.
    pub(crate) next: AtomicU32,
    /// The blocking call in progress: 0, or its kind and 1.
    pub(crate) call: AtomicU32,
    /// The slots that it uses, as bits.
    pub(crate) slots: AtomicU32,
    pub(crate) end: AtomicU32,
    /// The number that it was made with.
    pub(crate) fd: AtomicI32,
    /// 1 if that call does not wait.
    pub(crate) is_brief: AtomicU32,
    /// Bytes that it asks for at least, before it may return.
    pub(crate) least: AtomicU64,
    /// When it began, in nanoseconds of the monotonic clock.
    pub(crate) since: AtomicU64,
    /// Restarting signals sent to it by its siblings, and handled.
    pub(crate) n_signals_sent: AtomicU32,
    pub(crate) n_signals_handled: AtomicU32,
    pub(crate) n_remembered: AtomicU32,
    pub(crate) remembered: [Remembered; REMEMBERED],
}

/// A call that has returned.
#[repr(C)]
pub(crate) struct Remembered {
    pub(crate) operation: AtomicU32,
    pub(crate) kind: AtomicU32,
    pub(crate) fd: AtomicI32,
    pub(crate) end: AtomicU32,
    pub(crate) asked: AtomicU64,
    pub(crate) result: AtomicI64,
    pub(crate) errno: AtomicI32,
}

#[repr(C)]
pub(crate) struct Connection {
    /// Of the client.
    pub(crate) port: AtomicU32,
    /// The process whose listener it goes to.
    pub(crate) to: AtomicU32,
    /// Rounds of questions and answers that its ends exchange first.
    pub(crate) n_warm: AtomicU32,
    pub(crate) is_connected: AtomicU32,
    pub(crate) is_accepted: AtomicU32,
    /// By the end that writes: 0 the client, 1 the server.
    pub(crate) directions: [Direction; 2],
    pub(crate) ends: [EndState; 2],
}

#[repr(C)]
pub(crate) struct Direction {
    /// Bytes that calls have returned as sent.
    pub(crate) sent: AtomicU64,
    /// The same, with those of a call in progress.
    pub(crate) attempted: AtomicU64,
    /// Bytes that calls have returned as read.
    pub(crate) read: AtomicU64,
    /// The thread whose turn it is to write, to read: 0, or [`turn`].
    pub(crate) writer: AtomicU32,
    pub(crate) reader: AtomicU32,
    /// Whether a process has gone in the middle of writing, reading, so that the position is
    /// unknown.
    pub(crate) is_write_unsure: AtomicU32,
    pub(crate) is_read_unsure: AtomicU32,
    /// Whether two processes read it, one of them by a relay: see `Worker::give_up_order`.
    pub(crate) is_order_lost: AtomicU32,
    /// `shutdown` of the writing side has begun; has been done.
    pub(crate) has_shut_begun: AtomicU32,
    pub(crate) is_shut: AtomicU32,
    /// `shutdown` of the reading side has begun.
    pub(crate) is_read_shut: AtomicU32,
    /// The reader has seen the end, or an error.
    pub(crate) is_ended: AtomicU32,
}

#[repr(C)]
pub(crate) struct EndState {
    /// Descriptors that are certainly open, and may be open, by process.
    pub(crate) n_open: [AtomicI32; PROCESSES],
    pub(crate) n_maybe_open: [AtomicI32; PROCESSES],
    /// Descriptors that may be under way in a message.
    pub(crate) n_mailed: AtomicI32,
    /// Whether it was ever made non-blocking.
    pub(crate) is_nonblocking: AtomicU32,
    /// Whether its close may be a reset (`SO_LINGER` with 0).
    pub(crate) is_abortive: AtomicU32,
    /// Whether its kernel has lost the reset that ended the connection: nothing ends a call.
    pub(crate) has_lost_reset: AtomicU32,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) connection: usize,
    /// 0 the client, 1 the server.
    pub(crate) side: usize,
}

impl End {
    pub(crate) fn index(self) -> u32 {
        u32::try_from(self.connection * 2 + self.side).expect("few")
    }

    pub(crate) fn of_index(index: u32) -> Self {
        let index = index as usize;
        Self { connection: index / 2, side: index % 2 }
    }

    pub(crate) fn peer(self) -> Self {
        Self { side: 1 - self.side, ..self }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection {} {}", self.connection, ["client", "server"][self.side])
    }
}

impl Shared {
    pub(crate) fn connection(&self, end: End) -> &Connection {
        &self.connections[end.connection]
    }

    pub(crate) fn state(&self, end: End) -> &EndState {
        &self.connection(end).ends[end.side]
    }

    /// The direction that `end` writes.
    pub(crate) fn written_by(&self, end: End) -> &Direction {
        &self.connection(end).directions[end.side]
    }

    /// The direction that `end` reads.
    pub(crate) fn read_by(&self, end: End) -> &Direction {
        self.written_by(end.peer())
    }
}

/// Marks a thread as the owner of a turn.
pub(crate) fn turn(process: usize, thread: usize) -> u32 {
    u32::try_from(process * THREADS + thread + 1).expect("few")
}

/// The process of a turn's owner.
pub(crate) fn process_of_turn(turn: u32) -> Option<usize> {
    turn.checked_sub(1).map(|turn| turn as usize / THREADS)
}
