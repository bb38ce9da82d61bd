//! Waits for rsockets and other descriptors together.

use crate::errno::{error, ret_int};
use crate::table::{self, Entry};
use libc::{c_int, c_ulong, fd_set, nfds_t, pollfd, timeval};
use rsock_core::rsocket::{PollEntry, Source, poll};
use rustix::event::PollFlags;
use std::io;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

/// One descriptor to wait for.
struct Want {
    fd: c_int,
    events: PollFlags,
    entry: Option<Arc<Entry>>,
}

impl Want {
    fn new(fd: c_int, events: PollFlags) -> Self {
        Self { fd, events, entry: table::find(fd) }
    }
}

/// Waits; returns the events found, in the order of `wants`, and for how many descriptors.
fn wait(wants: &[Want], timeout: Option<Duration>) -> io::Result<(Vec<PollFlags>, usize)> {
    let mut entries: Vec<_> = wants
        .iter()
        .map(|want| PollEntry {
            source: match &want.entry {
                Some(entry) => entry.socket.source(),
                None => Source::Fd(want.fd),
            },
            events: want.events,
            revents: PollFlags::empty(),
        })
        .collect();
    let n = poll(&mut entries, timeout, None)?;
    Ok((entries.iter().map(|e| e.revents).collect(), n))
}

/// As `poll(2)`, over rsockets and ordinary descriptors alike.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    ret_int(|| {
        let n = usize::try_from(n).or_else(|_| error(libc::EINVAL))?;
        let fds = match n {
            0 => &mut [],
            _ if fds.is_null() => return error(libc::EFAULT),
            _ if n > MAX_FDS => return error(libc::EINVAL),
            // SAFETY: not null, and the caller of `poll(2)` promises `n` entries that this call may
            // write.
            _ => unsafe { slice::from_raw_parts_mut(fds, n) },
        };
        let events = |fd: &pollfd| PollFlags::from_bits_retain(fd.events.cast_unsigned());
        let wants: Vec<_> = fds.iter().map(|fd| Want::new(fd.fd, events(fd))).collect();
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let (found, ready) = wait(&wants, timeout)?;
        for (fd, revents) in fds.iter_mut().zip(found) {
            fd.revents = revents.bits().cast_signed();
        }
        c_int::try_from(ready).or_else(|_| error(libc::EINVAL))
    })
}

/// More descriptors than the kernel gives a process by default.
const MAX_FDS: usize = 1 << 20;
const WORD: usize = c_ulong::BITS as usize;

/// The words of a descriptor set that cover the first `n` descriptors.
///
/// # Safety
/// `set` is null or points to a set of at least `n` descriptors that the caller of this function
/// may write.
unsafe fn words<'a>(set: *mut fd_set, n: usize) -> &'a mut [c_ulong] {
    if set.is_null() {
        return &mut [];
    }
    // SAFETY: a set is an array of words, and covers `n` descriptors by this function's contract.
    unsafe { slice::from_raw_parts_mut(set.cast(), n.div_ceil(WORD)) }
}

fn has(set: &[c_ulong], fd: usize) -> bool {
    set.get(fd / WORD).is_some_and(|word| word >> (fd % WORD) & 1 != 0)
}

/// The events that `select(2)` reports as readable, writable, and exceptional.
const SETS: [PollFlags; 3] = [
    PollFlags::IN.union(PollFlags::RDNORM).union(PollFlags::HUP).union(PollFlags::ERR),
    PollFlags::OUT.union(PollFlags::WRNORM).union(PollFlags::ERR),
    PollFlags::PRI,
];
/// The events that each of the three asks for.
const ASKED: [PollFlags; 3] = [PollFlags::IN, PollFlags::OUT, PollFlags::PRI];

/// As `select(2)`, over rsockets and ordinary descriptors alike. The timeout is not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    n: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    ret_int(|| {
        let n = usize::try_from(n).or_else(|_| error(libc::EINVAL))?;
        if n > MAX_FDS {
            return error(libc::EINVAL);
        }
        let timeout = if timeout.is_null() {
            None
        } else {
            // SAFETY: not null, and the caller of `select(2)` promises a readable time.
            Some(duration(unsafe { timeout.read() })?)
        };
        let mut sets = [readable, writable, exceptional].map(|set| {
            // SAFETY: the caller of `select(2)` promises sets that cover `n` descriptors.
            unsafe { words(set, n) }
        });
        let wants: Vec<_> = (0..n)
            .filter_map(|fd| {
                let asked = sets.iter().zip(ASKED).filter(|(set, _)| has(set, fd));
                let events = asked.fold(PollFlags::empty(), |sum, (_, flag)| sum | flag);
                let number = c_int::try_from(fd).ok()?;
                (!events.is_empty()).then(|| Want::new(number, events))
            })
            .collect();
        let (found, _) = wait(&wants, timeout)?;
        if found.iter().any(|f| f.contains(PollFlags::NVAL)) {
            return error(libc::EBADF);
        }
        let mut bits = 0;
        for ((set, asked), means) in sets.iter_mut().zip(ASKED).zip(SETS) {
            clear(set, n);
            for (want, found) in wants.iter().zip(&found) {
                if want.events.contains(asked) && found.intersects(means) {
                    let fd = usize::try_from(want.fd).unwrap_or(0);
                    set[fd / WORD] |= 1 << (fd % WORD);
                    bits += 1;
                }
            }
        }
        Ok(bits)
    })
}

/// Clears the first `n` descriptors of a set, and no others.
fn clear(set: &mut [c_ulong], n: usize) {
    for (i, word) in set.iter_mut().enumerate() {
        let covered = (n - i * WORD).min(WORD);
        *word &= if covered == WORD { 0 } else { c_ulong::MAX << covered };
    }
}

fn duration(time: timeval) -> io::Result<Duration> {
    let (Ok(seconds), Ok(micros)) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec))
    else {
        return error(libc::EINVAL);
    };
    // As in the kernel, more than a second's worth of microseconds is valid.
    Duration::from_secs(seconds)
        .checked_add(Duration::from_micros(micros))
        .map_or_else(|| error(libc::EINVAL), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clearing_a_set_leaves_the_bits_above() {
        let mut set = [c_ulong::MAX; 2];
        clear(&mut set, WORD + 3);
        assert_eq!(set, [0, c_ulong::MAX << 3]);
        assert!(has(&set, WORD + 3) && !has(&set, WORD + 2) && !has(&set, 5 * WORD));
    }

    #[test]
    fn times_are_checked() {
        let time = |tv_sec, tv_usec| duration(timeval { tv_sec, tv_usec });
        assert_eq!(time(1, 1_500_000).expect("time"), Duration::from_millis(2500));
        assert!(time(-1, 0).is_err() && time(0, -1).is_err());
        assert!(time(i64::MAX, i64::MAX).is_ok());
    }
}
