//! The first calls of a connection go to the kernel, and nothing of this library is made for it: a
//! short connection ends before it is adopted. The table's word counts the calls and their bytes,
//! which the stream goes on from.

use super::claim;
use super::entry;
use super::word::{ADOPTING, CANDIDATE, IN_KERNEL, Word};
use crate::{errno, guard, next, tcp_only, threads};
use libc::{c_int, c_void, off_t};
use rsock_core::accelerate::{FallbackReason, is_nonblocking, note_kernel_call, recv_before_sleep};
use rsock_core::interrupt::{self, Section};
use rsock_verbs::raw;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that the kernel alone makes.
const FIRST_CALLS: u64 = 4;
/// Most bytes of such a send: an empty send queue takes them all.
const MOST_SENT: usize = 16 << 10;

/// What the kernel alone is asked to honour in a first send.
const SEND_FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Sends `len` bytes at `buf` by the kernel, if this is one of the first calls on `fd`. `None` if
/// the caller has to: then nothing was sent.
///
/// # Safety
/// Of memory that is not the program's to read, the kernel reports `EFAULT`.
#[inline]
pub(crate) unsafe fn send_bytes_first(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let (entry, word) = candidate(fd)?;
    if flags & !SEND_FLAGS != 0 || len == 0 || len > MOST_SENT {
        return None;
    }
    let sent = by_kernel(entry, word, Word::with_sent, || {
        let (address, none) = (ptr::null::<c_void>(), 0usize);
        // SAFETY: the kernel reads the bytes, as the caller of the hook has asked.
        unsafe { raw::syscall!(libc::SYS_sendto, fd, buf, len, SEND_FLAGS, address, none) }
    });
    sent.filter(may_stand)
}

/// As [`send_bytes_first`], of `bufs`.
pub(crate) fn send_first(
    fd: c_int,
    bufs: &[IoSlice<'_>],
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let (entry, word) = candidate(fd)?;
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    if flags & !SEND_FLAGS != 0 || len == 0 || len > MOST_SENT {
        return None;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = by_kernel(entry, word, Word::with_sent, || {
        // SAFETY: not -1; the program's own, which it does not close during its call.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(sendmsg(socket, bufs, &mut SendAncillaryBuffer::default(), flags)?)
    });
    sent.filter(may_stand)
}

/// As [`send_bytes_first`], of `len` bytes of the file `from`, as `sendfile(2)`. Only on a socket
/// that does not block: the system call has no flag like `MSG_DONTWAIT`. It may still wait for the
/// file, and other threads' calls on the socket then wait with it.
///
/// # Safety
/// Of an offset that is not the program's, the kernel reports `EFAULT`.
pub(crate) unsafe fn sendfile_first(
    fd: c_int,
    from: c_int,
    offset: *mut off_t,
    len: usize,
) -> Option<Result<usize, c_int>> {
    let (entry, word) = candidate(fd)?;
    if len == 0 || len > MOST_SENT {
        return None;
    }
    let sent = by_kernel(entry, word, Word::with_sent, || {
        // SAFETY: not -1; the program's own, which it does not close during its call.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        if !is_nonblocking(socket) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // SAFETY: the kernel reads and writes the offset, as the caller of the hook has asked.
        unsafe { raw::syscall!(libc::SYS_sendfile, fd, from, offset, len) }
    });
    sent.filter(may_stand)
}

/// Whether the outcome of a send is that of the program's call, which may have to wait.
fn may_stand(sent: &Result<usize, c_int>) -> bool {
    *sent != Err(libc::EAGAIN)
}

/// Receives up to `len` bytes to `buf` by the kernel, if this is one of the first calls on `fd`.
/// `None` if the caller has to: then nothing was received.
///
/// # Safety
/// Of memory that is not the program's to write, the kernel reports `EFAULT`.
#[inline]
pub(crate) unsafe fn recv_bytes_first(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let (entry, word) = candidate(fd)?;
    if flags & !libc::MSG_DONTWAIT != 0 || len == 0 {
        return None;
    }
    if flags == 0 && threads::is_alone() {
        // SAFETY: the caller's promise.
        return unsafe { recv_alone(fd, entry, word, buf, len) };
    }
    let tried = by_kernel(entry, word, Word::with_received, || {
        let none = ptr::null_mut::<c_void>();
        // SAFETY: the kernel writes to the memory that the caller of the hook has given for that.
        unsafe { raw::syscall!(libc::SYS_recvfrom, fd, buf, len, libc::MSG_DONTWAIT, none, none) }
    })?;
    unless_it_waits(tried, fd, entry, word, flags)
}

/// Receives by the kernel as the only thread of the process, and waits there: no other thread can
/// close the number or adopt the socket meanwhile. `None` as in [`recv_bytes_first`].
///
/// # Safety
/// As [`recv_bytes_first`].
unsafe fn recv_alone(
    fd: c_int,
    entry: &AtomicU64,
    word: Word,
    buf: *mut c_void,
    len: usize,
) -> Option<Result<usize, c_int>> {
    // A signal handler could make a thread: one that adopts the socket meanwhile keeps it on TCP.
    let claimed = Word(word.0 | IN_KERNEL);
    if !may_be_kernels(word) || !claim::replace(entry, word.0, claimed.0) {
        return None;
    }
    // SAFETY: the caller's promise.
    let received = unsafe { recv_soon(fd, buf, len) }.unwrap_or_else(|| {
        // SAFETY: the kernel writes to the memory that the caller of the hook has given for that.
        let n = unsafe { next::recv(fd, buf, len, 0) };
        usize::try_from(n).map_err(|_| errno::read())
    });
    let after = received.ok().and_then(|n| word.with_received(n)).unwrap_or(word);
    claim::replace(entry, claimed.0, after.0);
    Some(received)
}

/// Receives what comes within a moment, where it pays off to ask the kernel for that; `None` if
/// nothing does, and the call has to wait.
///
/// # Safety
/// As [`recv_bytes_first`].
unsafe fn recv_soon(fd: c_int, buf: *mut c_void, len: usize) -> Option<Result<usize, c_int>> {
    // SAFETY: not -1; the program's own, which no other thread closes.
    let socket = || Ok(unsafe { BorrowedFd::borrow_raw(fd) });
    let soon = recv_before_sleep(socket, |_| {
        note_kernel_call();
        let none = ptr::null_mut::<c_void>();
        // SAFETY: the kernel writes to the memory that the caller of the hook has given for that.
        let received = unsafe {
            raw::syscall!(libc::SYS_recvfrom, fd, buf, len, libc::MSG_DONTWAIT, none, none)
        };
        received.map_err(|e| Errno::from_raw_os_error(errno::of(&e)))
    });
    soon.map(|received| received.map_err(Errno::raw_os_error))
}

/// As [`recv_bytes_first`], into `bufs`.
pub(crate) fn recv_first(
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let (entry, word) = candidate(fd)?;
    if flags & !libc::MSG_DONTWAIT != 0 || bufs.iter().all(|buf| buf.is_empty()) {
        return None;
    }
    let tried = by_kernel(entry, word, Word::with_received, || {
        // SAFETY: not -1; the program's own, which it does not close during its call.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let control = &mut RecvAncillaryBuffer::default();
        Ok(recvmsg(socket, bufs, control, RecvFlags::DONTWAIT)?.bytes)
    })?;
    unless_it_waits(tried, fd, entry, word, flags)
}

/// The outcome of a receive, if it is that of the program's call: `None` if that has to wait.
#[inline]
fn unless_it_waits(
    tried: Result<usize, c_int>,
    fd: c_int,
    entry: &AtomicU64,
    word: Word,
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    if tried != Err(libc::EAGAIN) || flags & libc::MSG_DONTWAIT != 0 {
        return Some(tried);
    }
    // SAFETY: not -1; only asked about.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    // A call that waits keeps its connection if another thread closes the number meanwhile, which
    // a stream knows how to do.
    let is_answer = is_nonblocking(socket) && entry.load(Ordering::Acquire) == word.0;
    is_answer.then_some(tried)
}

/// The entry of a candidate that the kernel still serves.
#[inline]
fn candidate(fd: c_int) -> Option<(&'static AtomicU64, Word)> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    (word.kind() == CANDIDATE && !word.is_datagram()).then_some((entry, word))
}

/// Whether a call on a candidate is one of those that the kernel alone makes.
#[inline]
fn may_be_kernels(word: Word) -> bool {
    word.reason() == FallbackReason::None
        && word.n_first_calls() < FIRST_CALLS
        && word.0 & IN_KERNEL == 0
        && !guard::is_in_core()
        && !interrupt::is_in_handler()
        && !tcp_only::is_on()
}

/// Makes a call that does not wait for the peer, while no other thread can adopt the socket.
/// `count` enters what it returned into the word.
#[inline]
fn by_kernel(
    entry: &AtomicU64,
    word: Word,
    count: impl Fn(Word, usize) -> Option<Word>,
    call: impl FnOnce() -> io::Result<usize>,
) -> Option<Result<usize, c_int>> {
    if !may_be_kernels(word) {
        return None;
    }
    let _section = Section::enter();
    // As an adoption claims it, which keeps the flag of a connection that is being made.
    let claimed = Word(word.0 & !CANDIDATE | ADOPTING);
    if !claim::replace(entry, word.0, claimed.0) {
        return None;
    }
    note_kernel_call();
    let result = call().map_err(|e| errno::of(&e));
    // A word that has no room for the number stays as it was. The kernel has counted more bytes
    // than it by then, so the connection stays on TCP once it is adopted.
    let after = result.ok().and_then(|n| count(word, n)).unwrap_or(word);
    claim::replace(entry, claimed.0, after.0);
    match result {
        Err(libc::ENOTSOCK | libc::EBADF | libc::ENOTCONN) => None,
        result => Some(result),
    }
}
