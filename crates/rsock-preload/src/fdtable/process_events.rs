//! Changes of the whole table, when the process forks, ends or restricts its system calls.

use super::adopt::adopt_or_find;
use super::word::{ADOPTING, CANDIDATE, CONNECTING, EMPTY, Word};
use super::{datagrams, entry, find, is_stream, known_fds, pin};
use crate::slot::{self, Direction};
use crate::{guard, log, vfork};
use rsock_core::accelerate::FallbackReason;
use rsock_core::interrupt::{self, Section};
use std::sync::atomic::Ordering;

/// The process is about to fork: every stream goes to TCP while two processes hold it.
pub(crate) fn prepare_fork() {
    for fd in known_fds(0, u32::MAX) {
        let Some(entry) = entry(fd) else { continue };
        let word = Word(entry.load(Ordering::Relaxed));
        if word.is_datagram() {
            // Datagrams that wait in the queue remain for either process to receive.
            pin(fd, FallbackReason::Fork);
            continue;
        }
        // A socket that is not connected may well be used by one of the two processes alone.
        if word.kind() == EMPTY {
            continue;
        }
        if word.kind() == CANDIDATE && word.0 & CONNECTING == 0 {
            // Adopted before the fork, so that both processes share one stream: two streams of one
            // socket would not know of each other's bytes.
            drop(adopt_or_find(fd, entry, Direction::Send));
        }
        let Some(handle) = find(fd, Direction::Send) else {
            pin(fd, FallbackReason::Fork);
            continue;
        };
        let section = Section::enter();
        log::line(format_args!("fd {fd}: about to be inherited"));
        let _ = guard::call_core(|| {
            handle.stream().before_fork(handle.fd());
            Ok(())
        });
        drop(section);
    }
}

/// A child is about to be made that will not call [`after_fork_in_child`].
pub(crate) fn note_unnoted_child() {
    for fd in known_fds(0, u32::MAX) {
        if let Some(handle) = find(fd, Direction::Send) {
            handle.stream().note_unnoted_child();
        }
    }
}

/// In a forked child: forgets what other threads of the parent were doing, since it never ends
/// here.
pub(crate) fn after_fork_in_child() {
    // A handler may have interrupted a call of this very thread.
    if !interrupt::is_in_handler() {
        slot::forget_calls();
    }
    for fd in known_fds(0, u32::MAX) {
        let Some(entry) = entry(fd) else { continue };
        let word = Word(entry.load(Ordering::Relaxed));
        if word.kind() == ADOPTING {
            entry.store(0, Ordering::Relaxed);
        }
        if let Some(handle) = find(fd, Direction::Send) {
            handle.stream().note_inherited();
        }
    }
}

/// The process is about to end.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn finish() {
    if vfork::is_child() {
        return;
    }
    for fd in known_fds(0, u32::MAX) {
        if is_stream(fd)
            && let Some(handle) = find(fd, Direction::Send)
        {
            let _ = guard::call_core(|| {
                handle.stream().finish();
                Ok(())
            });
        }
        if let Some(handle) = datagrams::find(fd, Direction::Send) {
            datagrams::note_end(&handle);
        }
    }
}

/// Leaves every descriptor to the kernel, but for streams that still have bytes on the ring. The
/// slots stay in use: their sockets serve no purpose any more, and dropping them would take system
/// calls.
pub(crate) fn forget() {
    for fd in known_fds(0, u32::MAX) {
        let is_needed = find(fd, Direction::Recv).is_some_and(|handle| !handle.stream().is_plain());
        if let Some(entry) = entry(fd).filter(|_| !is_needed) {
            entry.store(0, Ordering::Release);
        }
    }
}
