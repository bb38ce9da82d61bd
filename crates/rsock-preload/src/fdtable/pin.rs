//! Pins sockets, notes those that are meant for other programs, and follows the keepalive settings
//! of streams without TCP.

use super::adopt::replace;
use super::word::{ADOPTED, ADOPTING, Word};
use super::{entry_or_map, find, find_in_core, find_udp, is_candidate};
use crate::slot::{Direction, Handle};
use crate::{guard, log, vfork};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_core::interrupt::Section;
use std::sync::atomic::Ordering;

/// Pins `fd`: keeps the stream, or the stream that a candidate becomes, on TCP.
pub(crate) fn pin(fd: c_int, reason: FallbackReason) {
    let Some(entry) = entry_or_map(fd) else { return };
    let section = Section::enter();
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        match word.kind() {
            ADOPTED if word.is_datagram() => {
                pin_udp(fd, reason);
                break;
            }
            ADOPTED => {
                if let Some(handle) = find_in_core(fd, Direction::Send) {
                    log::line(format_args!("fd {fd}: pinned, {reason:?}"));
                    let _ = guard::call_core(|| {
                        handle.pin(reason);
                        Ok(())
                    });
                }
                break;
            }
            ADOPTING => rustix::thread::sched_yield(),
            _ => {
                if word.reason() != FallbackReason::None
                    || replace(entry, word, word.with_reason(reason))
                {
                    break;
                }
            }
        }
    }
    drop(section);
}

/// A `vfork` child means the stream of `fd` for the program which it becomes: it has cleared the
/// flag that closes it, or has duplicated it. In other processes this does nothing.
pub(crate) fn note_meant(fd: c_int) {
    let Some(child) = vfork::child() else { return };
    let handle = find(fd, Direction::Send);
    match handle.as_ref().map(Handle::is_same_socket) {
        // The child has given the number to another file.
        Some(Some(false)) => {}
        Some(Some(true)) => handle.iter().for_each(|handle| handle.note_meant(child)),
        // It has not begun to leave TCP.
        Some(None) => pin(fd, FallbackReason::Passed),
        None if is_candidate(fd) => pin(fd, FallbackReason::Passed),
        None => {}
    }
}

/// Pins an adopted UDP socket: the kernel alone carries its datagrams.
pub(super) fn pin_udp(fd: c_int, reason: FallbackReason) {
    if let Some(handle) = find_udp(fd, Direction::Send)
        && let Some(udp) = handle.udp()
        && udp.pin_reason() == FallbackReason::None
    {
        log::line(format_args!("fd {fd}: datagrams, pinned, {reason:?}"));
        let _ = guard::call_core(|| {
            udp.pin(reason);
            Ok(())
        });
    }
}

/// The program has set a keepalive option of `fd`: the core keeps a stream without TCP alive by the
/// same rules.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn follow_keepalive(fd: c_int) {
    let Some(handle) = find(fd, Direction::Send) else { return };
    if let Some(stream) = handle.stream().native() {
        let _ = guard::call_core(|| {
            stream.follow_keepalive(handle.fd());
            Ok(())
        });
    }
}
