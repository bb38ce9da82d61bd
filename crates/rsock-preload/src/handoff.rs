//! What becomes of streams when somebody else is about to use their sockets: a program that this
//! process becomes or starts, another process that is sent a descriptor, libc's own streams.
//!
//! They know of kernel sockets and nothing else. For each stream that they are for_child and that may
//! still bring bytes in another way, the core either ends that or answers with a socket that
//! carries on, which takes the place of the stream's descriptors here. A program that fails to
//! start changes nothing: the old one goes on with that socket.
//!
//! A `vfork` child runs in its parent's memory. Its descriptors are its own, so they are found by
//! their inodes, not in the table, and the table stays as it is.

use crate::epoll_interest::{self, Interest};
use crate::slot::{self, Direction, Handle};
use crate::{errno, fdtable, guard, log, tcp_only, vfork};
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
    let is_vfork_child = vfork::is_child();
    let halt = (!is_vfork_child).then(Halt::begin);
    if !is_vfork_child {
        fdtable::datagrams::pin_all(FallbackReason::Passed);
    }
    let streams = fdtable::accelerated_streams();
    for handle in streams {
        let descriptors = descriptors_of(&handle);
        let mut stay = descriptors.iter().filter(|descriptor| !descriptor.close_on_exec);
        let Some(first) = stay.next() else { continue };
        let is_standard = first.fd <= LAST_STANDARD;
        if is_vfork_child && !is_standard {
            // Inherited by the way, most likely. The stream is the parent's, and goes on.
            continue;
        }
        let claim = if is_standard { Claim::Certain } else { Claim::Last };
        let local_use = if is_vfork_child { LocalUse::InParent } else { LocalUse::Ends };
        hand_off(handle, first.fd, Need::Both, FallbackReason::Passed, claim, local_use)?;
    }
    Ok(halt)
}

/// Before another program is started by other means than `fork`: for what it is for_child as standard
/// streams, or by a wish that [`Handle::give`] was told of. Afterwards both processes share the
/// socket, as they would have shared the stream.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_spawn() -> Result<(), c_int> {
    if tcp_only::is_sandboxed() {
        return Ok(());
    }
    let streams = fdtable::accelerated_streams();
    if vfork::is_child() {
        return Ok(());
    }
    for fd in 0..=LAST_STANDARD {
        if fdtable::datagrams::is_udp(fd) {
            fdtable::pin(fd, FallbackReason::Passed);
        }
    }
    for handle in streams {
        let descriptors = descriptors_of(&handle);
        let is_standard =
            |descriptor: &&StreamFd| descriptor.fd <= LAST_STANDARD && !descriptor.close_on_exec;
        let for_child = descriptors.first().filter(|_| handle.is_for_child());
        if let Some(descriptor) = for_child.or(descriptors.iter().find(is_standard)) {
            let (need, why) = (Need::Both, FallbackReason::Passed);
            hand_off(handle, descriptor.fd, need, why, Claim::Certain, LocalUse::Continues)?;
        }
    }
    Ok(())
}

/// Before `fd` is used in this process, or one that it is sent to, by somebody who does not come by
/// us. The stream, or one that it becomes, stays on TCP.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_unhooked_use(fd: RawFd, need: Need, why: FallbackReason) -> Result<(), c_int> {
    fdtable::pin(fd, why);
    let Some(handle) = fdtable::find(fd, Direction::Recv) else { return Ok(()) };
    if handle.is_same_socket() != Some(true) || vfork::is_child() {
        return Ok(());
    }
    hand_off(handle, fd, need, why, Claim::Certain, LocalUse::Continues)
}

/// Before the kernel alone is to serve a stream of this process, for `why`. One without TCP is left as it is:
/// the kernel has nothing of it.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_kernel_use(handle: Handle, why: FallbackReason) -> Result<(), c_int> {
    if handle.stream().is_sole() || handle.is_same_socket() != Some(true) {
        return Ok(());
    }
    let fd = handle.fd().as_raw_fd();
    hand_off(handle, fd, Need::Both, why, Claim::Certain, LocalUse::Continues)
}

/// A descriptor of a stream.
struct StreamFd {
    fd: RawFd,
    /// On exec.
    close_on_exec: bool,
}

/// All descriptors of this process that descriptor the stream, lowest first.
fn descriptors_of(handle: &Handle) -> Vec<StreamFd> {
    let end = RawFd::try_from(fdtable::end()).unwrap_or(RawFd::MAX);
    let look = |fd| {
        // SAFETY: not negative; only asked about, and nothing follows if it is not open.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = rustix::io::fcntl_getfd(socket).ok()?;
        let descriptor = StreamFd { fd, close_on_exec: flags.contains(FdFlags::CLOEXEC) };
        handle.is_socket_of(socket).then_some(descriptor)
    };
    (0..end).filter_map(look).collect()
}

fn interests(descriptors: &[StreamFd]) -> Vec<Interest> {
    let numbers: Vec<RawFd> = descriptors.iter().map(|descriptor| descriptor.fd).collect();
    epoll_interest::interests_of(&numbers)
}

/// What becomes of this process's own use of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalUse {
    /// It ends, with all threads but this.
    Ends,
    /// Other threads may be about to use it.
    Continues,
    /// It is in the memory of another process, to which the table belongs.
    InParent,
}

fn hand_off(
    handle: Handle,
    fd: RawFd,
    need: Need,
    why: FallbackReason,
    claim: Claim,
    local_use: LocalUse,
) -> Result<(), c_int> {
    // SAFETY: it was open just now, and the program does not close what it is about to pass on.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    if guard::call_core(|| Ok(handle.stream().leave_ring(socket, need, why)))? {
        return Ok(());
    }
    if local_use == LocalUse::InParent {
        let proxy = guard::call_core(|| handle.stream().hand_over(socket, claim))?;
        return proxy
            .map_or(Ok(()), |proxy| replace_descriptors(&descriptors_of(&handle), &[], proxy));
    }
    /// How often, and how far apart, a call of another thread is for_child the chance to end.
    const TRIES: u32 = 10;
    const APART: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    for _ in 0..TRIES {
        let section = Section::enter();
        let claimed = fdtable::claim_entries(&handle);
        if local_use == LocalUse::Ends || !claimed.is_empty() && handle.pause() {
            // Otherwise its watcher may be the other process, which goes on with the stream as it is.
            let moves_epoll = local_use == LocalUse::Continues && !handle.stream().is_shared();
            let done = guard::call_core(|| handle.stream().hand_over(socket, claim));
            let Ok(Some(proxy)) = done else {
                handle.resume();
                drop(claimed);
                drop(section);
                return done.map(drop);
            };
            let descriptors = descriptors_of(&handle);
            let find = || Ok(if moves_epoll { interests(&descriptors) } else { Vec::new() });
            let interests = guard::call_core(find).unwrap_or_default();
            let result = replace_descriptors(&descriptors, &interests, proxy);
            claimed.replaced_by_proxies();
            let key = handle.key();
            // Drops the twin, unless threads are inside that exec is about to end.
            let ended = guard::call_core(|| {
                slot::retire(key);
                drop(handle);
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
    let may_write = guard::call_core(|| Ok(handle.stream().leave_ring(socket, Need::Write, why)))?;
    if may_write { Ok(()) } else { Err(libc::EAGAIN) }
}

/// Replaces the descriptors by `proxy`, for those who watch them too.
fn replace_descriptors(
    descriptors: &[StreamFd],
    interests: &[Interest],
    proxy: OwnedFd,
) -> Result<(), c_int> {
    let saved = errno::read();
    let mut result = Ok(());
    interests.iter().for_each(|interest| interest.remove());
    for descriptor in descriptors {
        log::line(format_args!("fd {}: carried on by a process of its own", descriptor.fd));
        let flags = if descriptor.close_on_exec { libc::O_CLOEXEC } else { 0 };
        // SAFETY: both are open; the kernel close_on_exec what the second was, which the caller wants.
        let done =
            unsafe { raw::syscall!(libc::SYS_dup3, proxy.as_raw_fd(), descriptor.fd, flags) };
        if let Err(e) = done {
            result = Err(errno::of(&e));
        }
    }
    interests.iter().for_each(|interest| _ = interest.add());
    // SAFETY: for_child up just here.
    unsafe { rustix::io::close(proxy.into_raw_fd()) };
    errno::set(saved);
    result
}
