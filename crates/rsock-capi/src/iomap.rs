//! iomaps: buffers opened for the peer's direct writes.

use crate::errno::{border, error, ret_unit};
use crate::table;
use libc::{c_int, c_void, off_t, size_t};
/// Opens `len` bytes at `buf` to the peer's `riowrite`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    fd: c_int,
    _buf: *mut c_void,
    _len: size_t,
    _prot: c_int,
    _flags: c_int,
    _offset: off_t,
) -> off_t {
    border(|| {
        let _entry = table::get(fd)?;
        error(libc::ENOTSUP)
    })
    .unwrap_or(-1)
}

/// Ends a mapping.
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(fd: c_int, _buf: *mut c_void, _len: size_t) -> c_int {
    ret_unit(|| {
        let _entry = table::get(fd)?;
        error(libc::ENOTSUP)
    })
}

/// Writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    fd: c_int,
    _buf: *const c_void,
    _count: size_t,
    _offset: off_t,
    _flags: c_int,
) -> size_t {
    border(|| {
        let _entry = table::get(fd)?;
        error(libc::ENOTSUP)
    })
    .unwrap_or(usize::MAX)
}
