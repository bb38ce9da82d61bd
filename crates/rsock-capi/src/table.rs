//! The descriptor table: descriptor numbers to sockets.
//!
//! Two levels, for as many numbers as descriptors have. Each number has a lock of its own, so
//! threads that use different sockets share no lock.

use crate::any_socket::AnySocket;
use crate::errno::error;
use libc::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A socket with its number.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) socket: AnySocket,
    /// `FD_CLOEXEC` as the program set it. The descriptors behind a socket are always closed on
    /// exec: the new program could not use them.
    pub(crate) close_on_exec: AtomicBool,
}

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

type Cell = RwLock<Option<Arc<Entry>>>;

static TABLE: [OnceLock<Box<[Cell]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

fn position(fd: c_int) -> Option<(usize, usize)> {
    let fd = usize::try_from(fd).ok()?;
    (fd < CHUNK * CHUNKS).then_some((fd / CHUNK, fd % CHUNK))
}

/// The socket of `fd`, if the table has one.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<Arc<Entry>> {
    let (chunk, at) = position(fd)?;
    TABLE[chunk].get()?[at].read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The socket of `fd`.
///
/// # Errors
/// `EBADF` if the table has none.
pub(crate) fn get(fd: c_int) -> io::Result<Arc<Entry>> {
    find(fd).map_or_else(|| error(libc::EBADF), Ok)
}

/// Gives `socket` its number: that of its descriptor.
///
/// # Errors
/// `ENFILE` for a number that is larger than any descriptor has been.
pub(crate) fn insert(socket: AnySocket, close_on_exec: bool) -> io::Result<c_int> {
    let fd = socket.as_fd().as_raw_fd();
    let Some((chunk, at)) = position(fd) else { return error(libc::ENFILE) };
    let cells = TABLE[chunk].get_or_init(|| (0..CHUNK).map(|_| RwLock::new(None)).collect());
    let entry = Entry { socket, close_on_exec: AtomicBool::new(close_on_exec) };
    let stale = cells[at].write().unwrap_or_else(PoisonError::into_inner).replace(Arc::new(entry));
    if let Some(stale) = stale {
        // The program closed the old socket's descriptor without `rclose`, and the number is the
        // new socket's now: that must be neither shut down nor closed.
        stale.socket.close_without_descriptor();
        std::mem::forget(stale);
    }
    Ok(fd)
}

/// Removes the socket of a number.
///
/// # Errors
/// `EBADF` if the table has none.
pub(crate) fn remove(fd: c_int) -> io::Result<Arc<Entry>> {
    let cell = position(fd).and_then(|(chunk, at)| TABLE[chunk].get().map(|cells| &cells[at]));
    let Some(cell) = cell else { return error(libc::EBADF) };
    cell.write()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .map_or_else(|| error(libc::EBADF), Ok)
}
