//! What the library knows of each descriptor number: a row, of which several modules fill in a
//! part. A program that starts touches one page for its first descriptors, and a call one line for
//! its own.

use crate::chunked::{Chunked, Zeroed};
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// A page of rows: a process that forks or ends looks through all rows of a chunk.
const PER_CHUNK: usize = 64;

/// With `PER_CHUNK`, the kernel's default for the largest descriptor number. Sockets with higher
/// numbers stay on TCP.
const CHUNKS: usize = 16 << 10;

/// The number of descriptors that there is room for.
pub(crate) const MOST: usize = PER_CHUNK * CHUNKS;

static ROWS: Chunked<Row, PER_CHUNK, CHUNKS> = Chunked::new();

/// What is known of one descriptor number: nothing where all is zero.
#[repr(C, align(64))]
pub(crate) struct Row {
    /// The socket: a word of [`crate::fdtable`].
    pub(crate) socket: AtomicU64,
    /// The epoll set that the number names: see [`crate::event_set`].
    pub(crate) event_set: AtomicPtr<c_void>,
    /// The watch of a member of epoll sets: see [`crate::watched`].
    pub(crate) watch: AtomicU64,
    /// Of a watch of the kernel's alone: what the program has asked for.
    pub(crate) watched_events: AtomicU32,
    /// Threads that receive from it in the kernel, while it is a UDP candidate: see
    /// [`crate::fdtable::datagrams`].
    pub(crate) kernel_receivers: AtomicU32,
    /// As `watched_events`.
    pub(crate) watched_data: AtomicU64,
    /// What `socket` was when the stream was found quiet: see [`crate::quiet_set`].
    pub(crate) quiet: AtomicU64,
    /// The stream's place in a quiet set.
    pub(crate) quiet_place: AtomicU32,
}

const _: () = assert!(PER_CHUNK * size_of::<Row>() == 4096);

// SAFETY: atomic integers and a pointer, of which zero is a value; no drop.
unsafe impl Zeroed for Row {}

/// The row of `fd`, if it or one of its neighbours has been used.
#[inline]
pub(crate) fn row(fd: c_int) -> Option<&'static Row> {
    ROWS.get(usize::try_from(fd).ok()?)
}

/// The row of `fd`, for a caller that is about to fill in its part. `None` out of range or memory.
pub(crate) fn row_or_map(fd: c_int) -> Option<&'static Row> {
    ROWS.get_or_map(usize::try_from(fd).ok()?)
}

/// One past the largest number that can have a row that is not all zero.
pub(crate) fn end() -> usize {
    ROWS.end()
}
