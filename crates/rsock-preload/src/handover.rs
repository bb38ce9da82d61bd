//! What becomes of streams when somebody else is about to use their sockets: a program that this
//! process becomes or starts, another process that is sent a descriptor, libc's own streams.
//!
//! They know of kernel sockets and nothing else. For each stream that they are given and that may
//! still bring bytes in another way, the core either ends that or answers with a socket that
//! carries on, which takes the place of the stream's descriptors here. A program that fails to
//! start changes nothing: the old one goes on with that socket.
//!
//! A `vfork` child runs in its parent's memory. Its descriptors are its own, so they are found by
//! their inodes, not in the table, and the table stays as it is.

use crate::epoll_sets::{self, Watch};
use crate::slot::{self, Handle, Side};
use crate::{errno, fdtable, guard, log, process, tcp_only};
use libc::c_int;
use rsock_core::accelerate::{Claim, FallbackReason, Halt, Need};
use rsock_core::interrupt::Section;
use rsock_verbs::raw;
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::FdFlags;
use rustix::thread::{Timespec, nanosleep};

/// The last of standard input, output and error.
const LAST_STANDARD: RawFd = 2;

/// What an `exec` needs that streams do not change meanwhile; to be dropped after one that failed. `None` where the
/// process goes on beside the new program.
pub(crate) type Ready = Option<Halt>;

/// Before `exec`.
///
/// # Errors
/// The errno with which it must fail, because bytes would be lost.
pub(crate) fn before_exec() -> Result<Ready, c_int> {
    if tcp_only::is_sandboxed() {
        return Ok(None);
    }
    let is_borrowed = process::is_borrowed();
    let halt = (!is_borrowed).then(Halt::begin);
    if !is_borrowed {
        fdtable::datagrams::pin_all(FallbackReason::Passed);
    }
    let streams = fdtable::unsettled();
    for stream in streams {
        let names = names(&stream);
        let mut stay = names.iter().filter(|name| !name.closes);
        let Some(first) = stay.next() else { continue };
        let is_standard = first.fd <= LAST_STANDARD;
        if is_borrowed && !is_standard {
            // Inherited by the way, most likely. The stream is the parent's, and goes on.
            continue;
        }
        let claim = if is_standard { Claim::Certain } else { Claim::Last };
        let around = if is_borrowed { Around::Elsewhere } else { Around::Ending };
        hand_over(stream, first.fd, Need::Both, FallbackReason::Passed, claim, around)?;
    }
    Ok(halt)
}

/// Before another program is started by other means than `fork`: for what it is given as standard
/// streams, or by a wish that [`Handle::give`] was told of. Afterwards both processes share the
/// socket, as they would have shared the stream.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_spawn() -> Result<(), c_int> {
    if tcp_only::is_sandboxed() {
        return Ok(());
    }
    let streams = fdtable::unsettled();
    if process::is_borrowed() {
        return Ok(());
    }
    for fd in 0..=LAST_STANDARD {
        if fdtable::datagrams::is_one(fd) {
            fdtable::pin(fd, FallbackReason::Passed);
        }
    }
    for stream in streams {
        let names = names(&stream);
        let is_standard = |name: &&Name| name.fd <= LAST_STANDARD && !name.closes;
        let given = names.first().filter(|_| stream.is_given());
        if let Some(name) = given.or(names.iter().find(is_standard)) {
            let (need, why) = (Need::Both, FallbackReason::Passed);
            hand_over(stream, name.fd, need, why, Claim::Certain, Around::GoingOn)?;
        }
    }
    Ok(())
}

/// Before `fd` is used in this process, or one that it is sent to, by somebody who does not come by
/// us. The stream, or one that it becomes, stays on TCP.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_use(fd: RawFd, need: Need, why: FallbackReason) -> Result<(), c_int> {
    fdtable::pin(fd, why);
    let Some(stream) = fdtable::find(fd, Side::Recv) else { return Ok(()) };
    if stream.is_same_socket() != Some(true) || process::is_borrowed() {
        return Ok(());
    }
    hand_over(stream, fd, need, why, Claim::Certain, Around::GoingOn)
}

/// Before the kernel alone is to serve a stream of this process, for `why`. One without TCP is left as it is:
/// the kernel has nothing of it.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_kernel_use(stream: Handle, why: FallbackReason) -> Result<(), c_int> {
    if stream.twin().is_sole() || stream.is_same_socket() != Some(true) {
        return Ok(());
    }
    let fd = stream.fd().as_raw_fd();
    hand_over(stream, fd, Need::Both, why, Claim::Certain, Around::GoingOn)
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

fn watches(names: &[Name]) -> Vec<Watch> {
    let numbers: Vec<RawFd> = names.iter().map(|name| name.fd).collect();
    epoll_sets::watching(&numbers)
}

/// What becomes of this process's own use of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    /// It ends, with all threads but this.
    Ending,
    /// Other threads may be about to use it.
    GoingOn,
    /// It is in the memory of another process, to which the table belongs.
    Elsewhere,
}

fn hand_over(
    stream: Handle,
    fd: RawFd,
    need: Need,
    why: FallbackReason,
    claim: Claim,
    around: Around,
) -> Result<(), c_int> {
    // SAFETY: it was open just now, and the program does not close what it is about to pass on.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    if guard::enter(|| Ok(stream.twin().leave_ring(socket, need, why)))? {
        return Ok(());
    }
    if around == Around::Elsewhere {
        let substitute = guard::enter(|| stream.twin().hand_over(socket, claim))?;
        return substitute.map_or(Ok(()), |near| put_in_place(&names(&stream), &[], near));
    }
    /// How often, and how far apart, a call of another thread is given the chance to end.
    const TRIES: u32 = 10;
    const APART: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    for _ in 0..TRIES {
        let section = Section::enter();
        let claimed = fdtable::claim(&stream);
        if around == Around::Ending || !claimed.is_empty() && stream.pause() {
            // Otherwise its watcher may be the other process, which goes on with the stream as it is.
            let is_watched = around == Around::GoingOn && !stream.twin().is_shared();
            let done = guard::enter(|| stream.twin().hand_over(socket, claim));
            let Ok(Some(near)) = done else {
                stream.resume();
                drop(claimed);
                drop(section);
                return done.map(drop);
            };
            let names = names(&stream);
            let watching = || Ok(if is_watched { watches(&names) } else { Vec::new() });
            let watches = guard::enter(watching).unwrap_or_default();
            let result = put_in_place(&names, &watches, near);
            claimed.substituted();
            let key = stream.key();
            // Drops the twin, unless threads are inside that exec is about to end.
            let ended = guard::enter(|| {
                slot::retire(key);
                drop(stream);
                Ok(())
            });
            drop(section);
            return result.and(ended);
        }
        drop(claimed);
        drop(section);
        let _ = nanosleep(&APART);
    }
    // Another thread is receiving from the stream, and gets what the ring brings. But nothing must be
    // written to the socket as long as the peer expects it on the ring.
    log::line(format_args!("fd {fd}: not handed over, since it is in use"));
    let may_write = guard::enter(|| Ok(stream.twin().leave_ring(socket, Need::Write, why)))?;
    if may_write { Ok(()) } else { Err(libc::EAGAIN) }
}

/// Replaces the descriptors by `substitute`, for those who watch them too.
fn put_in_place(names: &[Name], watches: &[Watch], substitute: OwnedFd) -> Result<(), c_int> {
    let saved = errno::read();
    let mut result = Ok(());
    watches.iter().for_each(|watch| watch.end());
    for name in names {
        log::line(format_args!("fd {}: carried on by a process of its own", name.fd));
        let flags = if name.closes { libc::O_CLOEXEC } else { 0 };
        // SAFETY: both are open; the kernel closes what the second was, which the caller wants.
        let done = unsafe { raw::syscall!(libc::SYS_dup3, substitute.as_raw_fd(), name.fd, flags) };
        if let Err(e) = done {
            result = Err(errno::of(&e));
        }
    }
    watches.iter().for_each(|watch| _ = watch.begin());
    // SAFETY: given up just here.
    unsafe { rustix::io::close(substitute.into_raw_fd()) };
    errno::set(saved);
    result
}
