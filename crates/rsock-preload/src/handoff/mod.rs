//! Handoff of streams before code without hooks uses their sockets: a program that this process
//! becomes or starts, another process that receives a descriptor, libc's own `FILE` streams.
//!
//! Such code uses kernel sockets and nothing else. For each stream that it gets and whose bytes may
//! still come on a ring, the core either ends the ring or returns a proxy: a socket behind which a
//! process of its own carries the stream on. The proxy takes the place of the stream's descriptors
//! in this process. If the other program fails to start, the current one goes on with the proxy.
//!
//! A `vfork` child runs in its parent's memory. Its descriptors are its own, so they are found by
//! their inodes, not in the table, and the table stays as it is.

mod inherited;

use crate::epoll_interest::{self, Interest};
use crate::event_set::{EventSet, StayingMember};
use crate::fdtable::LAST_STANDARD;
use crate::slot::{self, Direction, Handle};
use crate::{errno, event_set, fdtable, guard, log, quiet_set, tcp_only, vfork};
use inherited::{OpenStream, StreamFd, descriptors_of, open_streams};
use libc::c_int;
use rsock_core::accelerate::{Claim, FallbackReason, Halt, Need};
use rsock_core::interrupt::Section;
use rsock_verbs::raw;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::thread::{Timespec, nanosleep};

/// Keeps streams from changing between TCP and a ring during an `exec`; dropped after an `exec`
/// that failed. `None` where the process goes on beside the new program.
pub(crate) type Ready = Option<Halt>;

/// Hands off streams before an `exec`.
///
/// # Errors
/// The errno with which the `exec` must fail, because bytes would be lost.
pub(crate) fn before_exec() -> Result<Ready, c_int> {
    if tcp_only::is_sandboxed() {
        return Ok(None);
    }
    if let Some(child) = vfork::child() {
        hand_off_meant(&|stream| stream.is_meant_by(child), LocalUse::InParent)?;
        return Ok(None);
    }
    let halt = Halt::begin();
    fdtable::datagrams::pin_all(FallbackReason::Passed);
    for stream in open_streams() {
        let Some(fd) = stream.inherited() else { continue };
        let claim = if stream.is_standard() { Claim::Certain } else { Claim::Last };
        let (need, why) = (Need::Both, FallbackReason::Passed);
        hand_off(stream.handle, fd, need, why, claim, LocalUse::Ends)?;
    }
    event_set::settle_for_exec();
    Ok(Some(halt))
}

/// Hands off streams before another program is started by other means than `fork`. Afterwards both
/// processes share the socket, as they would have shared the stream.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_spawn() -> Result<(), c_int> {
    if tcp_only::is_sandboxed() || vfork::is_child() {
        return Ok(());
    }
    for fd in 0..=LAST_STANDARD {
        if fdtable::datagrams::is_udp(fd) {
            fdtable::pin(fd, FallbackReason::Passed);
        }
    }
    let leaving = inherited::ask_to_leave();
    hand_off_meant(&OpenStream::is_in_file_action, LocalUse::Continues)?;
    inherited::await_leave(&leaving);
    event_set::settle_for_spawn();
    Ok(())
}

/// This process is about to make a `vfork` child: has the kernel carry what that inherits. The
/// child cannot do it: a stream that leaves the ring closes descriptors of this process.
pub(crate) fn before_vfork() {
    inherited::await_leave(&inherited::ask_to_leave());
}

/// Hands off the streams that a program certainly uses which starts beside this one: its standard
/// streams, and those that are meant for it.
fn hand_off_meant(
    is_meant: &dyn Fn(&OpenStream) -> bool,
    local_use: LocalUse,
) -> Result<(), c_int> {
    for stream in open_streams() {
        if !is_meant(&stream) && !stream.is_standard() {
            continue;
        }
        let Some(fd) = stream.lowest() else { continue };
        let (need, why) = (Need::Both, FallbackReason::Passed);
        hand_off(stream.handle, fd, need, why, Claim::Certain, local_use)?;
    }
    Ok(())
}

/// Hands off the stream of `fd` before code without hooks uses the descriptor, in this process or
/// in one that receives it. Pins the stream, or the stream that a candidate becomes.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_unhooked_use(fd: RawFd, need: Need, why: FallbackReason) -> Result<(), c_int> {
    let Some(handle) = pinned_stream(fd, why) else { return Ok(()) };
    hand_off(handle, fd, need, why, Claim::Certain, LocalUse::Continues)
}

/// Pins the stream of `fd`, or the stream that a candidate becomes. Returns it if this process can
/// hand it off.
fn pinned_stream(fd: RawFd, why: FallbackReason) -> Option<Handle> {
    fdtable::pin(fd, why);
    let handle = fdtable::find(fd, Direction::Recv)?;
    (handle.is_same_socket() == Some(true) && !vfork::is_child()).then_some(handle)
}

/// Hands off the stream of `fd` before the program uses a feature of the kernel's socket that it
/// can do without, as kTLS is. Unlike [`before_unhooked_use`] this breaks no connection between
/// hosts.
///
/// # Errors
/// As [`before_exec`]; `EAGAIN` where bytes of a connection between hosts may still come on its
/// device, and `ENOPROTOOPT` of a stream without TCP.
pub(crate) fn before_kernel_feature(fd: RawFd, why: FallbackReason) -> Result<(), c_int> {
    let Some(handle) = pinned_stream(fd, why) else { return Ok(()) };
    if handle.stream().is_native() {
        return Err(libc::ENOPROTOOPT);
    }
    if !handle.stream().is_between_hosts() {
        return hand_off(handle, fd, Need::Both, why, Claim::Certain, LocalUse::Continues);
    }
    // SAFETY: it is open, and the program does not close what it is about to use.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let has_left = guard::call_core(|| Ok(handle.stream().leave_ring(socket, Need::Both, why)))?;
    if has_left { Ok(()) } else { Err(libc::EAGAIN) }
}

/// Has the kernel alone serve a set of this process from now on, for `why`: all streams in it, and
/// in the sets in it, are handed off, and the set is as it would be without this library.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_unhooked_wait(
    set: &'static EventSet,
    why: FallbackReason,
) -> Result<(), c_int> {
    if guard::is_in_core() || vfork::is_child() {
        return Ok(());
    }
    let mut result = Ok(());
    for member in event_set::keep_on_tcp(set) {
        let done = match member {
            StayingMember::Stream(fd) => before_unhooked_use(fd, Need::Both, why),
            StayingMember::Set(of_member) => before_unhooked_wait(of_member, why),
        };
        result = result.and(done);
    }
    event_set::settle(set);
    result
}

/// As [`before_unhooked_use`], or as [`before_unhooked_wait`] if `fd` names an epoll set.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_unhooked_use_of_any(fd: RawFd, why: FallbackReason) -> Result<(), c_int> {
    match event_set::find(fd) {
        Some(set) => before_unhooked_wait(set, why),
        None => before_unhooked_use(fd, Need::Both, why),
    }
}

/// As [`before_unhooked_wait`], for all sets that have others in them.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_deep_nesting() -> Result<(), c_int> {
    event_set::nesting_sets()
        .into_iter()
        .try_for_each(|set| before_unhooked_wait(set, FallbackReason::Epoll))
}

/// Hands off a stream of this process that the kernel alone is to serve from now on, for `why`. A
/// stream without TCP is left as it is: the kernel has none of its bytes.
///
/// # Errors
/// As [`before_exec`].
pub(crate) fn before_kernel_use(handle: Handle, why: FallbackReason) -> Result<(), c_int> {
    if handle.stream().is_native() || handle.is_same_socket() != Some(true) {
        return Ok(());
    }
    let fd = handle.fd().as_raw_fd();
    hand_off(handle, fd, Need::Both, why, Claim::Certain, LocalUse::Continues)
}

/// To be called while the numbers still name the stream.
fn leave_quiet_sets(handle: &Handle, descriptors: &[StreamFd]) {
    for descriptor in descriptors {
        quiet_set::leave(handle, descriptor.fd);
    }
}

fn interests(descriptors: &[StreamFd]) -> Vec<Interest> {
    let numbers: Vec<RawFd> = descriptors.iter().map(|descriptor| descriptor.fd).collect();
    epoll_interest::interests_of(&numbers)
}

/// This process's own use of a stream that is handed off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalUse {
    /// It ends, with all threads but this one.
    Ends,
    /// It continues: other threads may be about to call.
    Continues,
    /// The table and the memory belong to the parent of a `vfork` child.
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
        let proxy = guard::call_core(|| handle.stream().hand_off(socket, claim))?;
        return proxy.map_or(Ok(()), |proxy| {
            let descriptors = descriptors_of(&handle);
            leave_quiet_sets(&handle, &descriptors);
            let result = replace_descriptors(&descriptors, &[], &proxy);
            close_proxy(proxy);
            result
        });
    }
    /// How often, and how far apart, in-flight calls of other threads are given the chance to stop.
    const TRIES: u32 = 10;
    const APART: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    for _ in 0..TRIES {
        let section = Section::enter();
        let claimed = fdtable::claim_entries(&handle);
        if local_use == LocalUse::Ends || !claimed.is_empty() && handle.pause() {
            // A shared stream may be watched by the other process, which goes on with it as it is.
            let moves_epoll = local_use == LocalUse::Continues && !handle.stream().is_shared();
            let done = guard::call_core(|| handle.stream().hand_off(socket, claim));
            let Ok(Some(proxy)) = done else {
                handle.resume();
                drop(claimed);
                drop(section);
                return done.map(drop);
            };
            let descriptors = descriptors_of(&handle);
            leave_quiet_sets(&handle, &descriptors);
            let find = || Ok(if moves_epoll { interests(&descriptors) } else { Vec::new() });
            let interests = guard::call_core(find).unwrap_or_default();
            let result = replace_descriptors(&descriptors, &interests, &proxy);
            for descriptor in &descriptors {
                event_set::note_replaced(&handle, descriptor.fd);
            }
            claimed.replaced_by_proxies();
            if local_use == LocalUse::Continues {
                handle.replace_for_calls(proxy.as_fd());
            }
            close_proxy(proxy);
            let key = handle.key();
            // Drops the stream, unless other threads are in calls, which the exec is about to end.
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
    // Calls did not stop: one that the program has left by `longjmp`, or a busy machine. If one of
    // them receives, it gets what will come on the ring, but what lies there already would be
    // missing to the program that gets the descriptor; and nothing may be written to the socket
    // while the peer expects it on the ring.
    log::line(format_args!("fd {fd}: not handed off, since it is in use"));
    if handle.stream().bytes_on_ring() != 0 {
        return Err(libc::EAGAIN);
    }
    let may_write = guard::call_core(|| Ok(handle.stream().leave_ring(socket, Need::Write, why)))?;
    if may_write { Ok(()) } else { Err(libc::EAGAIN) }
}

/// Replaces the descriptors by `proxy`, also in the epoll sets that watch them.
fn replace_descriptors(
    descriptors: &[StreamFd],
    interests: &[Interest],
    proxy: &OwnedFd,
) -> Result<(), c_int> {
    let _errno = errno::Kept::now();
    let mut result = Ok(());
    interests.iter().for_each(|interest| interest.remove());
    for descriptor in descriptors {
        log::line(format_args!("fd {}: replaced by a proxy", descriptor.fd));
        let flags = if descriptor.close_on_exec { libc::O_CLOEXEC } else { 0 };
        // SAFETY: both are open; the kernel closes what the second was, as intended.
        let done =
            unsafe { raw::syscall!(libc::SYS_dup3, proxy.as_raw_fd(), descriptor.fd, flags) };
        if let Err(e) = done {
            result = Err(errno::of(&e));
        }
    }
    interests.iter().for_each(|interest| _ = interest.add());
    result
}

/// Closes the proxy itself, which other descriptors name by now.
fn close_proxy(proxy: OwnedFd) {
    let _errno = errno::Kept::now();
    // SAFETY: just given up by `into_raw_fd`.
    unsafe { rustix::io::close(proxy.into_raw_fd()) };
}
