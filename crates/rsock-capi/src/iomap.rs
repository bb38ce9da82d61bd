//! iomaps: memory that the peer may write directly, and direct writes.

use crate::errno::{call_rust, error, ret_unit};
use crate::{arg, table};
use libc::{c_int, c_void, off_t, size_t};
use rsock_core::rsocket::{CallerMemory, RemoteAccess};
use rustix::net::SendFlags;

/// Exposes `len` bytes at `buf` to the peer's [`riowrite`] under `offset`, or under the address if
/// `offset` is -1. With `PROT_NONE` the memory is registered only. Returns the offset, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    call_rust(|| {
        let entry = table::get(fd)?;
        if prot & !libc::PROT_WRITE != 0 || buf.is_null() || len == 0 {
            return error(libc::EINVAL);
        }
        // Any offset may name the memory except -1, which asks for a name.
        let wanted = (offset != -1).then_some(offset.cast_unsigned());
        let access = match prot & libc::PROT_WRITE {
            0 => RemoteAccess::None,
            _ => RemoteAccess::Write,
        };
        // SAFETY: a caller of `riomap` keeps the memory valid, and lets the peer write it, until
        // `riounmap` or `rclose`.
        let memory = unsafe { CallerMemory::new(buf.cast(), len) };
        let named = entry.socket.stream()?.iomap(&memory, wanted, access)?;
        Ok(named.cast_signed())
    })
    .unwrap_or(-1)
}

/// Withdraws memory that was given to [`riomap`] with this address and length.
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: size_t) -> c_int {
    ret_unit(|| table::get(fd)?.socket.stream()?.iounmap(buf.cast_const().cast(), len))
}

/// Writes into the memory that the peer has exposed under `offset`, without a call of the peer; the
/// only flag with an effect is `MSG_DONTWAIT`. Returns the bytes written, fewer where the exposed
/// memory ends, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    call_rust(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller promises `count` readable bytes, as of `write(2)`.
        let bytes = unsafe { arg::bytes(buf, count) }?;
        let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
        entry.socket.stream()?.write_remote(bytes, offset.cast_unsigned(), flags)
    })
    .unwrap_or(size_t::MAX)
}
