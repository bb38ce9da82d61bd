//! The descriptor table of the process.

use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

/// Runs `f` with the soft limit of descriptors raised by a few, if the hard limit allows it. For
/// descriptors that rsock needs where the program has used up its limit.
pub(crate) fn with_spare_descriptors<R>(f: impl FnOnce() -> R) -> R {
    const SPARE: u64 = 8;
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit { current: limit.current.map(|n| n + SPARE), maximum: limit.maximum };
    let is_raised = setrlimit(Resource::Nofile, more).is_ok();
    let result = f();
    if is_raised {
        let _ = setrlimit(Resource::Nofile, limit);
    }
    result
}

/// Whether the descriptor table is more than half full, judged by the number of `fd`. Then rsock
/// leaves the rest to the program.
pub(crate) fn is_table_half_full(fd: BorrowedFd<'_>) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::try_from(fd.as_raw_fd()).is_ok_and(|n| n >= limit / 2)
}

/// The inode of the socket that `fd` names; `None` if it names none. Files of other kinds have
/// numbers of their own, which may be the same.
#[must_use]
pub fn socket_inode(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstat(fd).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Socket).then_some(stat.st_ino)
}

/// Closes by a raw system call: dropping an `OwnedFd` goes through libc's `close`.
pub(crate) fn close(fd: OwnedFd) {
    // SAFETY: the descriptor is owned, and given up here.
    unsafe { rustix::io::close(fd.into_raw_fd()) };
}
