//! Which descriptors are members of epoll sets ([`crate::event_set`]): below the descriptor table,
//! which keeps the streams of such descriptors on TCP until their sets know of rings.

use crate::chunked::Chunked;
use libc::c_int;
use rsock_core::accelerate::{AcceleratedStream, WatchId};
use std::sync::atomic::{AtomicU64, Ordering};

const PER_CHUNK: usize = 512;
const CHUNKS: usize = 2048;

/// The watch of each descriptor number that is a member of a set, as a [`WatchId`].
static WATCHES: Chunked<AtomicU64, PER_CHUNK, CHUNKS> = Chunked::new();

/// Beside the watch of a descriptor: it has been a member of more than one set.
const IN_SEVERAL: u64 = 1 << 63;

/// What is known of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// It is a member of no set.
    None,
    /// It has one watch.
    Of(WatchId),
    /// It has been a member of several sets.
    Several,
}

fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    WATCHES.get(usize::try_from(fd).ok()?)
}

/// The sets that `fd` is a member of, as far as is known.
pub(crate) fn membership(fd: c_int) -> Membership {
    match entry(fd).map_or(0, |at| at.load(Ordering::SeqCst)) {
        0 => Membership::None,
        several if several & IN_SEVERAL != 0 => Membership::Several,
        one => Membership::Of(WatchId(one)),
    }
}

/// The watch of `fd`, the first of several.
#[inline]
pub(crate) fn watch_of(fd: c_int) -> Option<WatchId> {
    let id = entry(fd)?.load(Ordering::SeqCst) & !IN_SEVERAL;
    (id != 0).then_some(WatchId(id))
}

/// Notes a watch of `fd`; false if the number is out of range.
pub(crate) fn note(fd: c_int, watch: WatchId) -> bool {
    let at = usize::try_from(fd).ok().and_then(|fd| WATCHES.get_or_map(fd));
    let Some(at) = at else { return false };
    let more = |known| Some(if known == 0 { watch.0 } else { known | IN_SEVERAL });
    at.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

/// Ends a watch of `fd`. A descriptor that was in several sets counts as such until it is closed.
pub(crate) fn forget(fd: c_int, watch: WatchId) {
    if let Some(at) = entry(fd) {
        let _ = at.compare_exchange(watch.0, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// `fd` is no longer a member of any set.
pub(crate) fn forget_all(fd: c_int) {
    if let Some(at) = entry(fd) {
        at.store(0, Ordering::SeqCst);
    }
}

/// Keeps the new stream of `fd` on TCP if a set of the kernel's watches it.
pub(crate) fn hold_if_member(fd: c_int, stream: &AcceleratedStream) {
    if let Some(watch) = watch_of(fd) {
        let _ = stream.hold_on_tcp(watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_watch_makes_a_member_of_several_sets_until_all_are_forgotten() {
        // A number that no test has open.
        let fd = 900_000;
        assert!(membership(fd) == Membership::None && watch_of(fd).is_none());
        assert!(note(fd, WatchId(7)));
        assert!(membership(fd) == Membership::Of(WatchId(7)));
        forget(fd, WatchId(8));
        assert_eq!(watch_of(fd), Some(WatchId(7)));
        assert!(note(fd, WatchId(9)));
        forget(fd, WatchId(7));
        assert!(membership(fd) == Membership::Several);
        assert_eq!(watch_of(fd), Some(WatchId(7)));
        forget_all(fd);
        assert!(membership(fd) == Membership::None);
        assert!(!note(-1, WatchId(1)));
    }
}
