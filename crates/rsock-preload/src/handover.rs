//! What becomes of streams when this process becomes another program, or starts one.
//!
//! The new program inherits kernel sockets and knows of nothing else. For each stream that it is
//! given and that may still bring bytes in another way, the core either ends that or answers with a
//! socket that carries on, which takes the place of the stream's descriptors here, before the
//! program starts. A program that fails to start changes nothing: the old one goes on with that
//! socket.
//!
//! A `vfork` child runs in its parent's memory. Its descriptors are its own, so they are found by
//! their inodes, not in the table, and the table stays as it is.

use crate::slot::Handle;
use crate::{errno, fdtable, guard, log, process};
use libc::c_int;
use rsock_core::twin::Claim;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::FdFlags;

/// The last of standard input, output and error.
const LAST_STANDARD: RawFd = 2;

/// Before `exec`.
///
/// # Errors
/// The errno with which it must fail, because bytes would be lost.
pub(crate) fn before_exec() -> Result<(), c_int> {
    let streams = fdtable::unsettled();
    if streams.is_empty() {
        return Ok(());
    }
    let is_borrowed = process::is_borrowed();
    for stream in &streams {
        let names = names(stream);
        let mut stay = names.iter().filter(|name| !name.closes);
        let Some(first) = stay.next() else { continue };
        let is_standard = first.fd <= LAST_STANDARD;
        if is_borrowed && !is_standard {
            // Inherited by the way, most likely. The stream is the parent's, and goes on.
            continue;
        }
        let claim = if is_standard { Claim::Certain } else { Claim::Last };
        hand_over(stream, &names, claim, is_borrowed)?;
    }
    Ok(())
}

/// Before another program is started by other means than `fork`: for what it is given as standard
/// streams, or by a wish that [`Handle::give`] was told of. Afterwards both processes share the
/// socket, as they would have shared the stream.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_spawn() -> Result<(), c_int> {
    let streams = fdtable::unsettled();
    if streams.is_empty() || process::is_borrowed() {
        return Ok(());
    }
    for stream in &streams {
        let names = names(stream);
        let is_standard = |name: &Name| name.fd <= LAST_STANDARD && !name.closes;
        if stream.is_given() || names.iter().any(is_standard) {
            hand_over(stream, &names, Claim::Certain, false)?;
        }
    }
    Ok(())
}

/// A descriptor of a stream.
struct Name {
    fd: RawFd,
    /// On exec.
    closes: bool,
}

/// All descriptors of this process that name the stream, lowest first.
fn names(stream: &Handle) -> Vec<Name> {
    let end = RawFd::try_from(fdtable::end()).unwrap_or(RawFd::MAX);
    let look = |fd| {
        // SAFETY: not negative; only asked about, and nothing follows if it is not open.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = rustix::io::fcntl_getfd(socket).ok()?;
        let name = Name { fd, closes: flags.contains(FdFlags::CLOEXEC) };
        stream.is_named_by(socket).then_some(name)
    };
    (0..end).filter_map(look).collect()
}

fn hand_over(
    stream: &Handle,
    names: &[Name],
    claim: Claim,
    is_borrowed: bool,
) -> Result<(), c_int> {
    let Some(first) = names.first() else { return Ok(()) };
    // SAFETY: it was open just now, and the program does not close what it is about to pass on.
    let socket = unsafe { BorrowedFd::borrow_raw(first.fd) };
    let substitute = guard::enter(|| stream.twin().hand_over(socket, claim))?;
    let Some(substitute) = substitute else { return Ok(()) };
    log::line(format_args!("fd {}: carried on by a process of its own", first.fd));
    for name in names {
        put_in_place(&substitute, name)?;
        if !is_borrowed {
            fdtable::note_substituted(name.fd);
        }
    }
    // SAFETY: given up just here.
    unsafe { rustix::io::close(substitute.into_raw_fd()) };
    Ok(())
}

fn put_in_place(substitute: &OwnedFd, name: &Name) -> Result<(), c_int> {
    let flags = if name.closes { libc::O_CLOEXEC } else { 0 };
    let saved = errno::read();
    // SAFETY: both are open; the kernel closes what the second was, which the caller wants.
    let r = unsafe { libc::syscall(libc::SYS_dup3, substitute.as_raw_fd(), name.fd, flags) };
    if r < 0 {
        return Err(errno::read());
    }
    errno::set(saved);
    Ok(())
}
