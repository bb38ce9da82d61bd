//! Looks at the kernel by `poll` and `select` where rings have events, and which of them are
//! spared.
//!
//! A look is not spared if the program has done something since the last one that the kernel tells
//! of: closed the other end of a connection, or written to a pipe. So the system calls that each
//! thread makes for the program are counted.

use crate::sys;
use rustix::event::PollFlags;
use rustix::fd::RawFd;
use std::cell::Cell;

/// So many entries are few: a call on them allocates nothing.
pub(super) const FEW: usize = 16;

rsock_verbs::per_thread! {
    /// System calls of the calling thread for the program; wraps.
    KERNEL_CALLS: Cell<u32>, "kernel_calls"
}

/// Notes that the calling thread makes a system call for the program.
#[inline]
pub fn note_kernel_call() {
    KERNEL_CALLS.with(|calls| calls.set(calls.get().wrapping_add(1)));
}

/// What the kernel is not asked for by a call that has events of rings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Skipped {
    Nothing,
    /// The ends of connections on rings.
    Ends,
    /// All sockets that the library knows: of other descriptors the program makes events by calls
    /// that the library does not see.
    Sockets,
}

/// A look at the kernel by a call that has events of rings.
///
/// It is spared if a call of this thread on the same entries has found nothing in the kernel a
/// moment ago, and the thread has made no system call for the program since. So a program that
/// always has events on rings learns of what other threads and processes do in the kernel so much
/// later: of a few entries by [`ASK_KERNEL`], of the ends of many connections by a tick of the
/// clock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelLook {
    /// Which entries, and what is asked of them.
    entries: u64,
    is_few: bool,
    /// In nanoseconds for a few entries, otherwise in ticks.
    at: u64,
    kernel_calls: u32,
}

thread_local! {
    /// The last look of this thread that found nothing.
    static LAST_LOOK: Cell<Option<KernelLook>> = const { Cell::new(None) };
}

impl KernelLook {
    pub(super) fn now(asked: impl ExactSizeIterator<Item = (RawFd, PollFlags)>) -> Self {
        let is_few = asked.len() <= FEW;
        let at = if is_few { sys::nanos() } else { u64::from(sys::tick()) };
        let entries = asked.fold(0u64, |sum, (fd, events)| {
            let asked = u64::from(events.bits()) << 32 | u64::from(fd.cast_unsigned());
            (sum ^ asked).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
        });
        Self { entries, is_few, at, kernel_calls: KERNEL_CALLS.with(Cell::get) }
    }

    pub(super) fn skipped(self) -> Skipped {
        let Some(last) = LAST_LOOK.get() else { return Skipped::Nothing };
        let is_same = Self { at: last.at, ..self } == last;
        match self.at.wrapping_sub(last.at) {
            passed if is_same && self.is_few && passed < ASK_KERNEL => Skipped::Sockets,
            0 if is_same && !self.is_few => Skipped::Ends,
            _ => Skipped::Nothing,
        }
    }

    /// Remembers the look, if the kernel had nothing.
    pub(super) fn note(self, fds: &[libc::pollfd]) {
        let had_nothing = fds.iter().all(|fd| fd.revents == 0);
        LAST_LOOK.set(had_nothing.then_some(self));
    }
}

/// While rings have events, the kernel is asked about a few entries once in this time, nanoseconds.
const ASK_KERNEL: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: libc::pollfd = libc::pollfd { fd: 0, events: 0, revents: 0 };

    #[test]
    fn a_look_is_spared_for_a_moment_after_one_at_the_same_entries_that_found_nothing() {
        let look = KernelLook { entries: 1, is_few: true, at: 1_000, kernel_calls: 7 };
        look.note(&[QUIET, QUIET]);
        let soon = KernelLook { at: look.at + ASK_KERNEL - 1, ..look };
        assert!(soon.skipped() == Skipped::Sockets);
        let others = [
            KernelLook { at: look.at + ASK_KERNEL, ..look },
            KernelLook { kernel_calls: 8, ..soon },
            KernelLook { entries: 2, ..soon },
        ];
        assert!(others.into_iter().all(|other| other.skipped() == Skipped::Nothing));
        look.note(&[QUIET, libc::pollfd { revents: libc::POLLHUP, ..QUIET }]);
        assert!(soon.skipped() == Skipped::Nothing, "what the kernel tells of goes on");
    }

    #[test]
    fn of_many_entries_the_ends_alone_are_spared_for_a_tick() {
        let look = KernelLook { entries: 1, is_few: false, at: 1_000, kernel_calls: 7 };
        look.note(&[QUIET]);
        assert!(look.skipped() == Skipped::Ends);
        assert!(KernelLook { at: 1_001, ..look }.skipped() == Skipped::Nothing);
    }

    #[test]
    fn system_calls_for_the_program_are_counted() {
        let before = KernelLook::now(std::iter::empty());
        note_kernel_call();
        assert!(KernelLook::now(std::iter::empty()).kernel_calls != before.kernel_calls);
    }
}
