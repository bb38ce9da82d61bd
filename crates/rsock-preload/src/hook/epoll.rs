//! `epoll_create` and `epoll_ctl`: a stream that enters a set of this process's own is watched by
//! the library ([`event_set`]). One that enters another set goes back to TCP, so that the kernel
//! serves the set. While bytes may still come on the ring, a doorbell is in the set as its proxy.
//!
//! A UDP socket keeps its queue, and the proxy stays in the set as long as the queue, if the set
//! asks for no more than levels or edges.

use crate::epoll_interest::{PROXIED, SUPPORTED};
use crate::event_set::{self, Control, EventSet};
use crate::native_peer::listeners;
use crate::room::with_room;
use crate::slot::Direction;
use crate::{arg, errno, fdtable, guard, handoff, next, vfork};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::FallbackReason;
use rustix::fd::{AsFd, AsRawFd, RawFd};

/// As `epoll_create(2)`.
///
/// # Safety
/// As `epoll_create(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    note_created(with_room(|| unsafe { next::epoll_create(size) }))
}

/// As `epoll_create1(2)`.
///
/// # Safety
/// As `epoll_create1(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    note_created(with_room(|| unsafe { next::epoll_create1(flags) }))
}

/// Notes that `set` has just been made, if it has.
fn note_created(set: c_int) -> c_int {
    if set >= 0 && !guard::is_in_core() && !vfork::is_child() {
        fdtable::note_made(set);
        event_set::note_created(set);
    }
    set
}

/// What a call asks of a set. `None` if the kernel refuses it.
///
/// # Safety
/// As `epoll_ctl(2)`.
unsafe fn control_of(op: c_int, from: *const epoll_event) -> Option<Control> {
    if op == libc::EPOLL_CTL_DEL {
        return Some(Control::Delete);
    }
    // SAFETY: memory of the program, or an address where there is none; integers.
    let event = unsafe { arg::load(from) }.ok()?;
    match op {
        libc::EPOLL_CTL_ADD => Some(Control::Add(event)),
        libc::EPOLL_CTL_MOD => Some(Control::Modify(event)),
        _ => None,
    }
}

/// As `epoll_ctl(2)`.
///
/// # Safety
/// As `epoll_ctl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if fdtable::datagrams::is_udp(fd) && !guard::is_in_core() {
        // SAFETY: arguments passed on unchanged.
        return fdtable::datagrams::while_changing_sets(fd, || unsafe {
            change(set, op, fd, event)
        });
    }
    if let Some(set_of_process) = event_set::find(set) {
        // SAFETY: arguments passed on unchanged.
        let by_kernel = || unsafe { next::epoll_ctl(set, op, fd, event) };
        // SAFETY: a caller of `epoll_ctl` promises a readable event.
        let done =
            unsafe { event_set::control_by_kernel(set_of_process, op, fd, event, by_kernel) };
        if let Some(result) = done {
            return result;
        }
        // SAFETY: as the caller promises.
        let Some(what) = (unsafe { control_of(op, event) }) else {
            // SAFETY: arguments passed on unchanged.
            return unsafe { next::epoll_ctl(set, op, fd, event) };
        };
        if let Some(done) = event_set::control(set_of_process, set, fd, what) {
            return errno::ret_int(done.map(|()| 0));
        }
    }
    if op == libc::EPOLL_CTL_ADD {
        if let Some(member) = event_set::find(fd) {
            // SAFETY: arguments passed on unchanged.
            return unsafe { add_set(set, fd, event, member) };
        }
        fdtable::pin(fd, FallbackReason::Epoll);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { change(set, op, fd, event) }
}

/// Adds a set that the kernel alone is to watch, so its streams go back to TCP.
///
/// # Safety
/// As `epoll_ctl(2)`.
unsafe fn add_set(
    set: c_int,
    fd: c_int,
    event: *mut epoll_event,
    member: &'static EventSet,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let add = || unsafe { change(set, libc::EPOLL_CTL_ADD, fd, event) };
    let before = errno::read();
    let mut result = add();
    // Without descriptors of this library between them, more sets may be in each other.
    if result != 0
        && errno::read() == libc::ELOOP
        && !event_set::find(set).is_some_and(|set| event_set::is_in(set, member))
    {
        if handoff::before_deep_nesting().is_err() {
            return errno::fail_int(libc::ELOOP);
        }
        result = add();
    }
    if result != 0 {
        return result;
    }
    if handoff::before_unhooked_wait(member, FallbackReason::Epoll).is_err() {
        // SAFETY: removes what this call has added.
        unsafe { next::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        return errno::fail_int(libc::ENOMEM);
    }
    errno::set(before);
    0
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
    // A deletion does not read its event, which may be any pointer.
    let event = if op == libc::EPOLL_CTL_DEL { std::ptr::null() } else { event.cast_const() };
    // SAFETY: null, or read by the call before this one.
    let asked = unsafe { event.as_ref() };
    if asked.is_some_and(|asked| asked.events & !SUPPORTED != 0) && fdtable::datagrams::is_udp(fd) {
        fdtable::pin(fd, FallbackReason::Epoll);
    }
    if asked.is_some_and(|asked| asked.events & libc::EPOLLET.cast_unsigned() != 0) {
        fdtable::datagrams::note_edges(fd);
    }
    let followed = follow(set, op, fd, asked);
    if followed.is_err() && op == libc::EPOLL_CTL_ADD {
        // SAFETY: removes what this call has added.
        unsafe { next::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        return errno::fail_int(libc::ENOMEM);
    }
    errno::set(before);
    0
}

/// Adds, changes or removes the proxy of `fd`, if there is one, as the descriptor itself.
///
/// # Errors
/// The proxy cannot be added: the set would not report all bytes.
fn follow(set: c_int, op: c_int, fd: c_int, asked: Option<&epoll_event>) -> Result<(), c_int> {
    let Some(proxy) = epoll_proxy(fd)? else {
        event_set::note_proxy(set, fd, None);
        return Ok(());
    };
    let mut event = asked.map(|e| epoll_event { events: e.events & PROXIED, u64: e.u64 });
    let event = event.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    if !fdtable::datagrams::is_udp(fd) {
        event_set::note_proxy(set, fd, asked.map(|asked| asked.u64));
    }
    // SAFETY: `event` is null or points to a live value.
    if unsafe { next::epoll_ctl(set, op, proxy, event) } == 0 {
        return Ok(());
    }
    match errno::read() {
        e @ (libc::ENOMEM | libc::ENOSPC) => Err(e),
        libc::EEXIST if fdtable::datagrams::is_udp(fd) => {
            // The socket is in the set under two numbers, and the proxy can have the data of one.
            fdtable::pin(fd, FallbackReason::Epoll);
            Ok(())
        }
        // The proxy is in the set already, or not yet, or a read in another thread has found that
        // it is no longer needed: no event is lost.
        _ => Ok(()),
    }
}

/// The descriptor that reports what the kernel's socket does not, if there is one.
///
/// # Errors
/// One is needed, and no descriptor is free.
fn epoll_proxy(fd: c_int) -> Result<Option<RawFd>, c_int> {
    if fdtable::is_listening(fd) {
        return Ok(listeners::of(fd).map(|listener| listener.native().as_fd().as_raw_fd()));
    }
    if let Some(handle) = fdtable::datagrams::find(fd, Direction::Recv)
        && let Some(udp) = handle.udp()
    {
        return guard::call_core(|| udp.epoll_proxy());
    }
    let Some(handle) = fdtable::begin_call(fd, Direction::Recv) else { return Ok(None) };
    guard::call_core(|| handle.stream().epoll_proxy(handle.fd()))
}
