//! Descriptors that this process holds for rsock itself, among those of the program.
//!
//! They sit near the top of the descriptor limit, because programs count on being given the lowest
//! number that is free; they close at exec; and they are registered here, because programs also
//! close descriptors they know nothing of (`close_range`, loops up to the limit). The preload
//! library asks [`is_own`] and leaves those alone.
//!
//! Nothing here enters a libc symbol that the preload library exports.

use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Never above this, however large the limit is: the kernel's table grows with the number.
const HIGHEST: u64 = 8192;
/// How many numbers below the limit the library uses, or a quarter of all if that is less.
const ROOM: u64 = 256;
/// Numbers that can be registered, one bit each.
const NUMBERS: usize = 2 * 8192;

#[unsafe(link_section = "rsock_startup")]
static OWN: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// Moves `fd` up and registers it. If there is no room above it stays where it is.
#[must_use]
pub fn raise(fd: OwnedFd) -> OwnedFd {
    if let Some(high) = duplicate(fd.as_fd()) {
        close(fd);
        return high;
    }
    register(fd.as_raw_fd());
    fd
}

/// Another number for the same file, in the library's range, and registered.
fn duplicate(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST).min(HIGHEST);
    let from = RawFd::try_from(limit - ROOM.min(limit / 4)).unwrap_or(0);
    let high = rustix::io::fcntl_dupfd_cloexec(fd, from).ok()?;
    register(high.as_raw_fd());
    Some(high)
}

pub(crate) fn register(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// As [`raise`], for a descriptor that C code keeps at `place` and will close itself: call
/// [`forget`] before it does. Of several threads that do so at once, one does it.
///
/// # Safety
/// `place` is valid for reads and writes, and its descriptor is open. Every user reads the number
/// there each time, and only after its own call of this.
pub unsafe fn raise_at(place: *mut RawFd) {
    // SAFETY: valid and aligned, as the caller promises, and this function is the only writer.
    let number = unsafe { AtomicI32::from_ptr(place) };
    let low = number.load(Ordering::Acquire);
    if is_own(low) {
        return;
    }
    // SAFETY: open, as the caller promises; only the replacement of its number below closes it.
    let Some(high) = duplicate(unsafe { BorrowedFd::borrow_raw(low) }) else {
        register(low);
        return;
    };
    let high = high.into_raw_fd();
    let swapped = number.compare_exchange(low, high, Ordering::AcqRel, Ordering::Acquire);
    let surplus = if swapped.is_ok() { low } else { high };
    // SAFETY: taken out of `place` here, or never seen there.
    close(unsafe { OwnedFd::from_raw_fd(surplus) });
}

/// Closes a descriptor that [`raise`] returned.
pub fn close(fd: OwnedFd) {
    forget(fd.as_raw_fd());
    // SAFETY: the number comes from an owner that gave it up just here.
    unsafe { rustix::io::close(fd.into_raw_fd()) };
}

/// `fd` is no longer rsock's: it was closed in another way.
pub fn forget(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether `fd` is rsock's.
#[inline]
#[must_use]
pub fn is_own(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The lowest of rsock's descriptors in `first..=last`.
#[must_use]
pub fn first_in(first: u32, last: u32) -> Option<RawFd> {
    let end = u32::try_from(NUMBERS - 1).unwrap_or(u32::MAX);
    (first..=last.min(end)).filter_map(|n| RawFd::try_from(n).ok()).find(|&fd| is_own(fd))
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((OWN.get(number / 64)?, 1 << (number % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_raised_descriptor_is_high_and_known_until_it_is_closed() {
        let low = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(!is_own(low.as_raw_fd()));
        let high = raise(low);
        let number = high.as_raw_fd();
        assert!(number >= 64 && is_own(number), "{number}");
        assert_eq!(first_in(number.cast_unsigned(), u32::MAX), Some(number));
        assert!(rustix::io::fcntl_getfd(&high).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        close(high);
        assert!(!is_own(number));
    }

    #[test]
    fn numbers_out_of_range_are_not_registered() {
        assert!(!is_own(-1) && !is_own(i32::MAX));
        assert_eq!(first_in(u32::MAX, u32::MAX), None);
    }
}
