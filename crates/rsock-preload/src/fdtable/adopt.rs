//! Turns a candidate into an accelerated stream, at the first data call that the kernel alone does
//! not make.

use super::word::{ACCEPTED, ADOPTED, ADOPTING, CONNECTING, EMPTY, IN_KERNEL, TCP, Word};
use super::{claim, is_unchanged};
use crate::slot::{self, Direction, Handle, Socket};
use crate::{guard, log, tcp_only, watched};
use libc::c_int;
use rsock_core::accelerate::{self, AcceleratedStream, Before, FallbackReason};
use rsock_core::interrupt::{self, Section};
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Begins a call on the stream of an entry, after adopting the candidate. `None` if it cannot be
/// adopted.
#[cold]
pub(super) fn adopt_or_find(fd: c_int, entry: &AtomicU64, direction: Direction) -> Option<Handle> {
    if guard::is_in_core() {
        return None;
    }
    let mut has_looked = false;
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        match word.kind() {
            _ if word.is_datagram() => return None,
            EMPTY => return None,
            ADOPTED => {
                let handle = slot::begin_call(word.key()?, direction, fd);
                if is_unchanged(entry, word) {
                    // `None` where its last descriptor is being closed.
                    return handle;
                }
            }
            // Another thread adopts it. It cannot be a frame of this thread that a signal handler
            // has interrupted: handlers do not run inside sections.
            ADOPTING => rustix::thread::sched_yield(),
            // Adopting allocates. A handler's bytes go by TCP, and the stream stays there: the
            // handler may sleep in the kernel, where no ring wakes it.
            _ if interrupt::is_in_handler() => {
                if word.0 & IN_KERNEL != 0 || replace(entry, word, Word(word.0 | IN_KERNEL)) {
                    return None;
                }
            }
            _ if tcp_only::is_on() => {
                replace(entry, word, word.with_kind(EMPTY));
            }
            _ if !has_looked => {
                tcp_only::look_for_io_uring(fd);
                has_looked = true;
            }
            _ => {
                // SAFETY: not -1; the program's own, as in `Handle::fd`.
                let socket = unsafe { BorrowedFd::borrow_raw(fd) };
                if word.0 & CONNECTING != 0 && rustix::net::getpeername(socket).is_err() {
                    return None;
                }
                let section = Section::enter();
                let claim = word.with_kind(ADOPTING);
                claim::convert(
                    entry,
                    word.0,
                    claim.0,
                    || adopt(fd, socket, claim).ok_or(claim.with_kind(EMPTY).0),
                    // The descriptor was closed meanwhile.
                    |made| Word(made).key().into_iter().for_each(slot::retire),
                );
                drop(section);
            }
        }
    }
}

/// Replaces `entry` if it still is `old`; returns whether it was.
pub(super) fn replace(entry: &AtomicU64, old: Word, new: Word) -> bool {
    claim::replace(entry, old.0, new.0)
}

/// Adopts the candidate; returns the word of its slot.
fn adopt(fd: c_int, socket: BorrowedFd<'_>, claim: Word) -> Option<u64> {
    let adopted = guard::call_core(|| {
        // Of a socket that the hooks have not seen being made, nothing is known.
        let is_tcp = || {
            let protocol = rustix::net::sockopt::socket_protocol(socket)?;
            io::Result::Ok(protocol == Some(rustix::net::ipproto::TCP))
        };
        if claim.0 & TCP == 0 && !is_tcp()? {
            return Ok(None);
        }
        let side = if claim.0 & ACCEPTED != 0 {
            accelerate::Side::Accepted
        } else {
            accelerate::Side::Connected
        };
        let (sent, received) = claim.first_bytes();
        let before = Before { calls: claim.n_first_calls(), sent, received };
        let stream = AcceleratedStream::adopt_after(socket, Some(side), before);
        let Some(stream) = stream else { return Ok(None) };
        watched::hold_if_member(fd, &stream);
        Ok(slot::insert(Socket::Accelerated(stream)))
    });
    let Ok(Some(key)) = adopted else {
        log::line(format_args!("fd {fd}: not adopted"));
        return None;
    };
    let reason = match claim.reason() {
        FallbackReason::None if claim.0 & IN_KERNEL != 0 => FallbackReason::Option,
        reason => reason,
    };
    log::line(format_args!("fd {fd}: adopted as {key:?}, {reason:?}"));
    if reason != FallbackReason::None
        && let Some(handle) = slot::begin_call(key, Direction::Send, fd)
    {
        let _ = guard::call_core(|| {
            handle.pin(reason);
            Ok(())
        });
    }
    Some(Word::of_slot(key).0)
}
