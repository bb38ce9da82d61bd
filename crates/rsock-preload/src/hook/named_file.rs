//! A file that the program named by a number, for a call that sleeps between its uses of it.
//!
//! Other threads may close the number meanwhile, and the kernel may give it to another file. A
//! duplicate would be safe from that, but to close a duplicate releases every record lock
//! (`fcntl(F_SETLK)`) that the process has on the file, so this only notices such a change.

use libc::c_int;
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Result;

/// A file, and the number by which the program named it.
#[derive(Clone, Copy)]
pub(super) struct NamedFile<'a> {
    fd: BorrowedFd<'a>,
    place: (u64, u64),
    kind: FileType,
}

impl<'a> NamedFile<'a> {
    /// The file that the number names now; `number` is not negative.
    ///
    /// # Errors
    /// `EBADF`: it names none.
    pub(super) fn new(number: c_int) -> Result<Self> {
        // SAFETY: not -1; only asked about if it is not open.
        let fd: BorrowedFd<'a> = unsafe { BorrowedFd::borrow_raw(number) };
        let stat = fstat(fd)?;
        Ok(Self { fd, place: place(&stat), kind: FileType::from_raw_mode(stat.st_mode) })
    }

    /// The number, which may name another file by now.
    pub(super) fn fd(&self) -> BorrowedFd<'a> {
        self.fd
    }

    pub(super) fn kind(&self) -> FileType {
        self.kind
    }

    /// Whether the number still names this file.
    pub(super) fn is_there(&self) -> bool {
        fstat(self.fd).is_ok_and(|stat| place(&stat) == self.place)
    }
}

/// The device and the inode.
fn place(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
