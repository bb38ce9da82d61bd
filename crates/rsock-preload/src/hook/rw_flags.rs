//! The flags of `preadv2` and `pwritev2` (`RWF_...`) on streams.

use crate::{errno, fdtable};
use libc::c_int;
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{self, IoSlice};

/// What these ask for concerns files alone.
const OF_FILES: c_int =
    libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOAPPEND;

/// Flags of Linux 4.16, which every kernel knows that runs this library.
const OLD: c_int =
    libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOWAIT;

/// As `MSG_NOSIGNAL` (Linux 6.18).
const RWF_NOSIGNAL: c_int = 0x100;

/// The message flags that mean what `rwf` asks for on `fd`, or the error of the call. `None` leaves
/// the call to the kernel.
pub(super) fn message_flags(fd: c_int, rwf: c_int) -> Option<Result<c_int, c_int>> {
    if rwf & !OLD != 0 {
        if !fdtable::is_stream(fd) {
            return None;
        }
        if let Err(e) = ask_kernel(rwf) {
            return Some(Err(errno::of(&e)));
        }
    }
    if rwf & !(OF_FILES | libc::RWF_NOWAIT | RWF_NOSIGNAL) != 0 {
        // A stream on the ring cannot do what only the kernel knows of.
        return Some(Err(libc::EOPNOTSUPP));
    }
    let wanted = |flag, meaning| if rwf & flag == 0 { 0 } else { meaning };
    Some(
        Ok(wanted(libc::RWF_NOWAIT, libc::MSG_DONTWAIT) | wanted(RWF_NOSIGNAL, libc::MSG_NOSIGNAL)),
    )
}

/// Whether this kernel accepts `rwf` on a socket. It looks at flags only where it moves a byte, so
/// another socket is used.
#[cold]
fn ask_kernel(rwf: c_int) -> io::Result<()> {
    let (at, _peer) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let flags = ReadWriteFlags::from_bits_retain(rwf.cast_unsigned());
    // At the place of the file, as a socket has no other.
    pwritev2(at, &[IoSlice::new(b".")], u64::MAX, flags)?;
    Ok(())
}
