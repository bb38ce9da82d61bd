//! The first calls of a connection go to the kernel, and nothing of this library is made for it: a
//! short connection ends before it is adopted. The table's word counts the calls and their bytes,
//! which the stream goes on from.

use super::claim;
use super::entry;
use super::word::{ADOPTING, CANDIDATE, Word};
use crate::{guard, tcp_only};
use libc::c_int;
use rsock_core::accelerate::{FallbackReason, is_nonblocking};
use rsock_core::interrupt::{self, Section};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, send, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that the kernel alone makes.
const FIRST_CALLS: u64 = 4;
/// Most bytes of such a send: an empty send queue takes them all.
const MOST_SENT: usize = 16 << 10;

/// Sends `bufs` by the kernel, if this is one of the first calls on `fd`. `None` if the caller has
/// to: then nothing was sent.
pub(crate) fn send_first(
    fd: c_int,
    bufs: &[IoSlice<'_>],
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    const KNOWN: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let (entry, word) = candidate(fd)?;
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    if flags & !KNOWN != 0 || len == 0 || len > MOST_SENT {
        return None;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = by_kernel(fd, entry, word, Word::with_sent, |socket| match bufs {
        [one] => send(socket, one, flags),
        _ => sendmsg(socket, bufs, &mut SendAncillaryBuffer::default(), flags),
    });
    // The caller may have to wait.
    sent.filter(|sent| *sent != Err(libc::EAGAIN))
}

/// Receives into `bufs` by the kernel, if this is one of the first calls on `fd`. `None` if the
/// caller has to: then nothing was received.
pub(crate) fn recv_first(
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Option<Result<usize, c_int>> {
    let (entry, word) = candidate(fd)?;
    if flags & !libc::MSG_DONTWAIT != 0 || bufs.iter().all(|buf| buf.is_empty()) {
        return None;
    }
    let tried = by_kernel(fd, entry, word, Word::with_received, |socket| match bufs {
        [one] => recv(socket, &mut **one, RecvFlags::DONTWAIT).map(|(n, _)| n),
        _ => {
            let control = &mut RecvAncillaryBuffer::default();
            recvmsg(socket, bufs, control, RecvFlags::DONTWAIT).map(|m| m.bytes)
        }
    })?;
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

/// Makes a call that does not wait, while no other thread can adopt the socket. `count` enters what
/// it returned into the word.
fn by_kernel(
    fd: c_int,
    entry: &AtomicU64,
    word: Word,
    count: impl Fn(Word, usize) -> Option<Word>,
    call: impl FnOnce(BorrowedFd<'_>) -> Result<usize, Errno>,
) -> Option<Result<usize, c_int>> {
    let is_first = word.reason() == FallbackReason::None && word.n_first_calls() < FIRST_CALLS;
    if !is_first || guard::is_in_core() || interrupt::is_in_handler() || tcp_only::is_on() {
        return None;
    }
    let _section = Section::enter();
    // As an adoption claims it, which keeps the flag of a connection that is being made.
    let claimed = Word(word.0 & !CANDIDATE | ADOPTING);
    if !claim::replace(entry, word.0, claimed.0) {
        return None;
    }
    // SAFETY: not -1; the program's own, which it does not close during its call.
    let result = call(unsafe { BorrowedFd::borrow_raw(fd) });
    // A word that has no room for the number is adopted by the next call, and stays on TCP then:
    // the kernel has counted more.
    let after = result.ok().and_then(|n| count(word, n)).unwrap_or(word);
    claim::replace(entry, claimed.0, after.0);
    match result {
        Err(Errno::NOTSOCK | Errno::BADF | Errno::NOTCONN) => None,
        result => Some(result.map_err(Errno::raw_os_error)),
    }
}
