//! The three descriptor sets of a `select`, and the wait for their events.
//!
//! Sets are bare words, as the kernel reads them: programs pass larger ones than `fd_set`, and
//! counts that are larger than their sets (`getdtablesize()`), of which the kernel looks only at as
//! many as its own table has. So does this file.

use crate::fdtable::datagrams;
use crate::hook::poll::named::event_flags;
use crate::hook::poll::wait::{self, OffTcp};
use crate::hook::poll::{many, may_leave_kernel, needs_own_poll, watches_rings};
use crate::{arg, errno, event_set, fdtable, guard, rows};
use libc::{c_int, c_ulong, fd_set, pollfd, sigset_t};
use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;
use smallvec::SmallVec;
use std::time::{Duration, Instant};

const BITS: usize = c_ulong::BITS as usize;

/// The events that one of the three sets asks for, and those that set its bits.
struct Kind {
    asks: PollFlags,
    holds: PollFlags,
}

/// The same as in the kernel's `select`.
const KINDS: [Kind; 3] = [
    Kind {
        asks: PollFlags::IN,
        holds: PollFlags::IN
            .union(PollFlags::RDNORM)
            .union(PollFlags::RDBAND)
            .union(PollFlags::HUP)
            .union(PollFlags::ERR),
    },
    Kind {
        asks: PollFlags::OUT,
        holds: PollFlags::OUT
            .union(PollFlags::WRNORM)
            .union(PollFlags::WRBAND)
            .union(PollFlags::ERR),
    },
    Kind { asks: PollFlags::PRI, holds: PollFlags::PRI },
];

impl Kind {
    /// Whether the entry asks for this, and it holds.
    fn holds_of(&self, p: &pollfd) -> bool {
        event_flags(p).contains(self.asks) && revents(p).intersects(self.holds)
    }
}

/// The three sets of a call that concerns this library.
pub(super) struct Wanted {
    /// The number of bits to look at.
    n: usize,
    sets: [*mut c_ulong; 3],
}

impl Wanted {
    /// `None` if no set has a socket of this library: the kernel's `select` suffices.
    ///
    /// # Safety
    /// Each set is null or has `n` bits, or as many as the process has had descriptors.
    pub(super) unsafe fn of_streams(n: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        let n = usize::try_from(n).ok()?;
        if guard::is_in_core() {
            return None;
        }
        let wanted = Self { n, sets: sets.map(|set| set.cast()) };
        let end = n.min(rows::end());
        let names_stream = (0..end).any(|fd| {
            let Ok(number) = c_int::try_from(fd) else { return false };
            let is_concerned = concerns_hook(number);
            if !is_concerned && !fdtable::is_connection(number) {
                return false;
            }
            // SAFETY: below both `n` and a number that the process has had, rounded up as the
            // kernel rounds it.
            let asks = unsafe { wanted.asks(fd) };
            !asks.is_empty() && (is_concerned || may_leave_kernel(number, asks))
        });
        if !names_stream {
            return None;
        }
        // A plain `fd_set` always has its full size.
        if n > libc::FD_SETSIZE {
            let size = kernel_table_size();
            // SAFETY: the caller's promise.
            let size = size.unwrap_or_else(|| unsafe { wanted.open_end() });
            return Some(Self { n: n.min(size), ..wanted });
        }
        Some(wanted)
    }

    /// One past the last word that has an open descriptor. Replaces the size of the kernel's table,
    /// which is not smaller, where that is unknown. The memory behind the program's own sets may be
    /// anything, or not exist.
    ///
    /// # Safety
    /// As `of_streams`.
    unsafe fn open_end(&self) -> usize {
        let mut end = libc::FD_SETSIZE;
        for words in self.sets.into_iter().filter(|words| !words.is_null()) {
            for at in libc::FD_SETSIZE / BITS..self.n.div_ceil(BITS) {
                // SAFETY: memory that does not exist is noticed; an integer.
                let Ok(word) = (unsafe { arg::load(words.wrapping_add(at).cast::<c_ulong>()) })
                else {
                    break;
                };
                let is_open = |bit: &usize| {
                    c_int::try_from(at * BITS + bit).is_ok_and(|fd| {
                        // SAFETY: not negative; only asked about.
                        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                        rustix::io::fcntl_getfd(fd).is_ok()
                    })
                };
                if (0..BITS).filter(|bit| word >> bit & 1 != 0).any(|bit| is_open(&bit)) {
                    end = end.max((at + 1) * BITS);
                }
            }
        }
        end
    }

    /// As [`datagrams::begin_kernel_poll`], of the descriptors in the sets.
    ///
    /// # Safety
    /// As `of_streams`.
    pub(super) unsafe fn begin_kernel_poll(&self) -> bool {
        let asked = (0..self.n).filter_map(|fd| {
            // SAFETY: below `n`.
            let is_asked = !unsafe { self.asks(fd) }.is_empty();
            c_int::try_from(fd).ok().filter(|_| is_asked)
        });
        datagrams::begin_kernel_poll(asked)
    }

    /// What is asked of this call, if one of its descriptors is an epoll set: it may come to watch
    /// streams on rings while the kernel serves the call.
    ///
    /// # Safety
    /// As `of_streams`.
    pub(super) unsafe fn of_event_sets(&self) -> Option<AskedBefore<'_>> {
        let names_set = |fd: usize| {
            c_int::try_from(fd).is_ok_and(|fd| event_set::find(fd).is_some())
                // SAFETY: below `n`.
                && !unsafe { self.asks(fd) }.is_empty()
        };
        if !(0..self.n.min(rows::end())).any(names_set) {
            return None;
        }
        let n_words = self.n.div_ceil(BITS);
        let bits = self.sets.map(|words| {
            let at = |word| words.wrapping_add(word);
            let n_words = if words.is_null() { 0 } else { n_words };
            // SAFETY: the kernel, too, reads whole words up to `n` bits.
            (0..n_words).map(|word| unsafe { at(word).read_unaligned() }).collect()
        });
        Some(AskedBefore { wanted: self, bits })
    }

    /// # Safety
    /// As `of_streams`, and `fd` is below `n`.
    unsafe fn has(&self, set: usize, fd: usize) -> bool {
        let words = self.sets[set];
        if words.is_null() {
            return false;
        }
        // SAFETY: inside the set, by the caller's promise.
        let at = unsafe { words.add(fd / BITS) };
        // SAFETY: as above.
        let word = unsafe { at.read_unaligned() };
        word >> (fd % BITS) & 1 != 0
    }

    /// # Safety
    /// As `has`.
    unsafe fn asks(&self, fd: usize) -> PollFlags {
        let mut asks = PollFlags::empty();
        for (set, kind) in KINDS.iter().enumerate() {
            // SAFETY: the caller's promise.
            if unsafe { self.has(set, fd) } {
                asks |= kind.asks;
            }
        }
        asks
    }

    /// Waits. `None`: the kernel's `select` suffices after all.
    ///
    /// # Safety
    /// As `of_streams`.
    pub(super) unsafe fn wait(
        &self,
        limit: Option<Duration>,
        mask: Option<&sigset_t>,
    ) -> Option<c_int> {
        // SAFETY: the caller's promise.
        let mut fds = unsafe { self.entries() };
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut left = limit;
        let is_many = many::is_due(fds.len());
        let mut off_tcp = OffTcp::One;
        loop {
            let found = is_many.then(|| many::poll(&mut fds, left, mask)).flatten();
            let found = match found {
                Some(found) => found,
                None => wait::wait(&mut fds, left, mask, off_tcp)?,
            };
            let n = match found {
                Ok(n) => n,
                Err(e) => return Some(errno::fail_int(e)),
            };
            if fds.iter().any(|p| revents(p).contains(PollFlags::NVAL)) {
                return Some(errno::fail_int(libc::EBADF));
            }
            if n == 0 || fds.iter().any(holds_any) {
                // SAFETY: the sets are those that the entries were read from.
                return Some(errno::ret_int(Ok(unsafe { self.report(&fds) })));
            }
            // A hang-up of a stream of which only writing was asked: `poll` reports it unasked,
            // `select` does not.
            for p in fds.iter_mut().filter(|p| p.revents != 0) {
                p.fd = -1;
            }
            off_tcp = OffTcp::Any;
            left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        }
    }

    /// The descriptors in the sets, and what is asked of them.
    ///
    /// # Safety
    /// As `of_streams`.
    unsafe fn entries(&self) -> SmallVec<[pollfd; wait::FEW]> {
        let mut fds = SmallVec::new();
        for fd in 0..self.n {
            // SAFETY: below `n`.
            let asks = unsafe { self.asks(fd) };
            if let Some(fd) = c_int::try_from(fd).ok().filter(|_| !asks.is_empty()) {
                fds.push(pollfd { fd, events: asks.bits().cast_signed(), revents: 0 });
            }
        }
        fds
    }

    /// Sets the bits of the events that hold, clears all others, and counts those set.
    ///
    /// # Safety
    /// As `of_streams`.
    unsafe fn report(&self, fds: &[pollfd]) -> usize {
        for words in self.sets.iter().filter(|words| !words.is_null()) {
            for word in 0..self.n.div_ceil(BITS) {
                // SAFETY: the kernel, too, writes whole words up to `n` bits.
                let at = unsafe { words.add(word) };
                // SAFETY: as above.
                unsafe { at.write_unaligned(0) };
            }
        }
        let mut bits = 0;
        for p in fds {
            let Ok(fd) = usize::try_from(p.fd) else { continue };
            for (set, _) in KINDS.iter().enumerate().filter(|(_, kind)| kind.holds_of(p)) {
                // SAFETY: asked for, so its set is there and reaches `fd`.
                let at = unsafe { self.sets[set].add(fd / BITS) };
                // SAFETY: as above.
                let word = unsafe { at.read_unaligned() };
                // SAFETY: as above.
                unsafe { at.write_unaligned(word | 1 << (fd % BITS)) };
                bits += 1;
            }
        }
        bits
    }
}

/// The bits of the sets, before the kernel has changed them.
pub(super) struct AskedBefore<'a> {
    wanted: &'a Wanted,
    bits: [Vec<c_ulong>; 3],
}

impl AskedBefore<'_> {
    /// Whether the kernel has found an epoll set that has come to watch streams on rings: it may be
    /// the set's doorbell alone. Then the bits are again what the program has asked for.
    ///
    /// # Safety
    /// As `of_streams`.
    pub(super) unsafe fn begin_again(self) -> bool {
        let is_found = |fd: usize| {
            c_int::try_from(fd).is_ok_and(watches_rings)
                // SAFETY: below `n`.
                && !unsafe { self.wanted.asks(fd) }.is_empty()
        };
        if !(0..self.wanted.n.min(rows::end())).any(is_found) {
            return false;
        }
        for (words, before) in self.wanted.sets.iter().zip(&self.bits) {
            for (word, &bits) in before.iter().enumerate() {
                // SAFETY: a word that was read here before.
                unsafe { words.wrapping_add(word).write_unaligned(bits) };
            }
        }
        true
    }
}

/// Whether the kernel's `select` may not suffice for `fd`, or not as long as it takes.
fn concerns_hook(fd: c_int) -> bool {
    needs_own_poll(fd) || event_set::find(fd).is_some()
}

fn revents(p: &pollfd) -> PollFlags {
    PollFlags::from_bits_retain(p.revents.cast_unsigned())
}

/// Whether an event of the entry holds that was asked for.
fn holds_any(p: &pollfd) -> bool {
    KINDS.iter().any(|kind| kind.holds_of(p))
}

/// The number of descriptors that the kernel's table of this process has room for now.
fn kernel_table_size() -> Option<usize> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let status = rustix::fs::open(c"/proc/self/status", flags, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0u8; 2048];
    let n = rustix::io::read(&status, &mut text).ok()?;
    let line = text[..n].split(|&b| b == b'\n').find_map(|l| l.strip_prefix(b"FDSize:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_has_room_for_open_descriptors() {
        let size = kernel_table_size().expect("a proc file system");
        assert!(size >= 64 && size.is_multiple_of(64), "{size}");
    }
}
