//! epoll: in this step a stream that enters a set goes back to TCP, so that the set is the kernel's.
//! While bytes may still come on the ring, a doorbell stands in for it in the set.
//!
//! A UDP socket keeps its queue there, and the doorbell stays as long, where the set wants nothing but levels or edges.

use crate::slot::Side;
use crate::{doors, errno, fdtable, guard, next};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::FallbackReason;
use rustix::fd::{AsFd, AsRawFd, RawFd};

/// What a stand-in shows of what was asked for: it is always writable, which says nothing.
pub(crate) const SHOWN: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLET | libc::EPOLLONESHOT).cast_unsigned();

/// What a set may be told of a socket whose queue a stand-in shows. One shot for two descriptors would be two, and who
/// is woken alone by one of them is not by the other.
pub(crate) const SHARED: u32 = (libc::EPOLLIN
    | libc::EPOLLRDNORM
    | libc::EPOLLRDBAND
    | libc::EPOLLPRI
    | libc::EPOLLOUT
    | libc::EPOLLWRNORM
    | libc::EPOLLWRBAND
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLRDHUP
    | libc::EPOLLET)
    .cast_unsigned();

/// As `epoll_ctl(2)`.
///
/// # Safety
/// As `epoll_ctl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if fdtable::datagrams::is_one(fd) && !guard::is_inside() {
        // SAFETY: arguments passed on unchanged.
        return fdtable::datagrams::while_changing_sets(fd, || unsafe {
            change(set, op, fd, event)
        });
    }
    if op == libc::EPOLL_CTL_ADD {
        fdtable::pin(fd, FallbackReason::Epoll);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { change(set, op, fd, event) }
}

/// # Safety
/// As `epoll_ctl(2)`.
unsafe fn change(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::epoll_ctl(set, op, fd, event) };
    if result != 0 {
        return result;
    }
    let before = errno::read();
    // A deletion does not look at its event, which may be anything.
    let event = if op == libc::EPOLL_CTL_DEL { std::ptr::null() } else { event.cast_const() };
    // SAFETY: null, or read by the call before this one.
    let asked = unsafe { event.as_ref() };
    if asked.is_some_and(|asked| asked.events & !SHARED != 0) && fdtable::datagrams::is_one(fd) {
        fdtable::pin(fd, FallbackReason::Epoll);
    }
    if asked.is_some_and(|asked| asked.events & libc::EPOLLET.cast_unsigned() != 0) {
        fdtable::datagrams::note_edges(fd);
    }
    let followed = follow(set, op, fd, asked);
    if followed.is_err() && op == libc::EPOLL_CTL_ADD {
        // SAFETY: takes back what this call has added.
        unsafe { next::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        return errno::fail_int(libc::ENOMEM);
    }
    errno::set(before);
    0
}

/// The stand-in of `fd`, if it has one, follows it into the set and out of it.
///
/// # Errors
/// There is none where there should be one: the set would not show all bytes.
fn follow(set: c_int, op: c_int, fd: c_int, asked: Option<&epoll_event>) -> Result<(), c_int> {
    let Some(stand_in) = stand_in(fd)? else { return Ok(()) };
    let mut event = asked.map(|e| epoll_event { events: e.events & SHOWN, u64: e.u64 });
    let event = event.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: `event` is null or points to a live value.
    if unsafe { next::epoll_ctl(set, op, stand_in, event) } == 0 {
        return Ok(());
    }
    match errno::read() {
        e @ (libc::ENOMEM | libc::ENOSPC) => Err(e),
        libc::EEXIST if fdtable::datagrams::is_one(fd) => {
            // The socket is in the set under two numbers, and the stand-in can show one.
            fdtable::pin(fd, FallbackReason::Epoll);
            Ok(())
        }
        // It is in the set already, or not yet, or a read in another thread has found that it is no
        // longer needed: nothing is lost.
        _ => Ok(()),
    }
}

/// The descriptor that shows what the kernel's socket does not, if there is such a thing.
///
/// # Errors
/// There should be one, and no descriptor is free.
fn stand_in(fd: c_int) -> Result<Option<RawFd>, c_int> {
    if fdtable::is_listening(fd) {
        return Ok(doors::of(fd).map(|post| post.door().as_fd().as_raw_fd()));
    }
    if let Some(handle) = fdtable::datagrams::find(fd, Side::Recv)
        && let Some(udp) = handle.udp()
    {
        return guard::enter(|| udp.epoll_proxy());
    }
    let Some(handle) = fdtable::enter(fd, Side::Recv) else { return Ok(None) };
    guard::enter(|| handle.twin().stand_in(handle.fd()))
}
