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
/// later: of a few entries by [`ASK_KERNEL`], of the ends of many connections by [`TIMES`] as long
/// as the kernel took.
#[derive(Clone, Copy)]
pub(super) struct KernelLook {
    /// Which entries, and what is asked of them.
    entries: u64,
    is_few: bool,
    /// When it began, in nanoseconds.
    at: u64,
    kernel_calls: u32,
    /// For how many nanoseconds it stands.
    stands_for: u64,
}

/// Looks at a few entries that a thread remembers: it may poll several descriptors in turn, one at
/// a time.
const N_FEW_LOOKS: usize = 8;

thread_local! {
    /// The last looks of this thread that found nothing: at a few entries, each in a place that its
    /// entries choose, and at many.
    static LAST_LOOKS: [Cell<Option<KernelLook>>; N_FEW_LOOKS + 1] =
        const { [const { Cell::new(None) }; N_FEW_LOOKS + 1] };
}

impl KernelLook {
    pub(super) fn now(asked: impl ExactSizeIterator<Item = (RawFd, PollFlags)>) -> Self {
        let is_few = asked.len() <= FEW;
        let entries = asked.fold(0u64, |sum, (fd, events)| {
            let asked = u64::from(events.bits()) << 32 | u64::from(fd.cast_unsigned());
            (sum ^ asked).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
        });
        let kernel_calls = KERNEL_CALLS.with(Cell::get);
        Self { entries, is_few, at: sys::nanos(), kernel_calls, stands_for: 0 }
    }

    pub(super) fn skipped(self) -> Skipped {
        let last = LAST_LOOKS.with(|looks| looks[self.place()].get());
        let Some(last) = last else { return Skipped::Nothing };
        let key = |look: Self| (look.entries, look.is_few, look.kernel_calls);
        let stands = self.at.wrapping_sub(last.at) < last.stands_for;
        match key(self) == key(last) && stands {
            true if self.is_few => Skipped::Sockets,
            true => Skipped::Ends,
            false => Skipped::Nothing,
        }
    }

    /// Remembers the look, which ends now, if the kernel had nothing.
    pub(super) fn note(self, fds: &[libc::pollfd]) {
        self.note_after(sys::nanos().wrapping_sub(self.at), fds);
    }

    /// As [`Self::note`], of a look that took so many nanoseconds.
    fn note_after(mut self, took: u64, fds: &[libc::pollfd]) {
        self.stands_for = match self.is_few {
            true => ASK_KERNEL,
            false => took.saturating_mul(TIMES).clamp(LEAST_OF_MANY, MOST_OF_MANY),
        };
        let had_nothing = fds.iter().all(|fd| fd.revents == 0);
        LAST_LOOKS.with(|looks| {
            if self.is_few && !had_nothing {
                // What the kernel has may be among the entries of the other looks.
                looks[..N_FEW_LOOKS].iter().for_each(|look| look.set(None));
            }
            looks[self.place()].set(had_nothing.then_some(self));
        });
    }

    fn place(self) -> usize {
        match self.is_few {
            true => usize::try_from(self.entries % N_FEW_LOOKS as u64).unwrap_or(0),
            false => N_FEW_LOOKS,
        }
    }
}

/// While rings have events, the kernel is asked about a few entries once in this time, nanoseconds.
const ASK_KERNEL: u64 = 50_000;
/// Of many entries the kernel is asked about ends for a small part of the time: not before so many
/// times as long has passed as the last look took. PERF: it took a tenth of a millisecond for each
/// thousand of them.
const TIMES: u64 = 16;
/// The least and the most of that time, nanoseconds.
const LEAST_OF_MANY: u64 = 1_000_000;
const MOST_OF_MANY: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: libc::pollfd = libc::pollfd { fd: 0, events: 0, revents: 0 };

    #[test]
    fn a_look_is_spared_for_a_moment_after_one_at_the_same_entries_that_found_nothing() {
        let look = look(true);
        look.note_after(10, &[QUIET, QUIET]);
        let soon = KernelLook { at: look.at + ASK_KERNEL - 1, ..look };
        assert!(soon.skipped() == Skipped::Sockets);
        let others = [
            KernelLook { at: look.at + ASK_KERNEL, ..look },
            KernelLook { kernel_calls: 8, ..soon },
            KernelLook { entries: 2, ..soon },
        ];
        assert!(others.into_iter().all(|other| other.skipped() == Skipped::Nothing));
        look.note_after(10, &[QUIET, libc::pollfd { revents: libc::POLLHUP, ..QUIET }]);
        assert!(soon.skipped() == Skipped::Nothing, "what the kernel tells of goes on");
    }

    #[test]
    fn looks_at_descriptors_in_turn_are_spared_each() {
        let looks = [4, 5, 6].map(|fd| KernelLook::now([(fd, PollFlags::IN)].into_iter()));
        for look in looks {
            look.note_after(10, &[QUIET]);
        }
        for look in looks {
            assert!(look.skipped() == Skipped::Sockets);
        }
        looks[1].note_after(10, &[libc::pollfd { revents: libc::POLLIN, ..QUIET }]);
        for look in looks {
            assert!(look.skipped() == Skipped::Nothing, "it may be among the same descriptors");
        }
    }

    #[test]
    fn of_many_entries_the_ends_alone_are_spared_for_a_multiple_of_what_a_look_takes() {
        let look = look(false);
        look.note_after(LEAST_OF_MANY, &[QUIET]);
        let later = |passed| KernelLook { at: look.at + passed, ..look };
        assert!(later(TIMES * LEAST_OF_MANY - 1).skipped() == Skipped::Ends);
        assert!(later(TIMES * LEAST_OF_MANY).skipped() == Skipped::Nothing);
        look.note_after(u64::MAX, &[QUIET]);
        assert!(later(MOST_OF_MANY).skipped() == Skipped::Nothing);
    }

    fn look(is_few: bool) -> KernelLook {
        KernelLook { entries: 1, is_few, at: 1_000, kernel_calls: 7, stands_for: 0 }
    }

    #[test]
    fn system_calls_for_the_program_are_counted() {
        let before = KernelLook::now(std::iter::empty());
        note_kernel_call();
        assert!(KernelLook::now(std::iter::empty()).kernel_calls != before.kernel_calls);
    }
}
