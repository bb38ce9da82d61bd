//! Calls of the program that change an adopted UDP socket, passed on to the core.

use super::{is_udp, with};
use crate::fdtable::pin::pin_udp;
use crate::fdtable::{self, known_fds};
use crate::slot::Handle;
use crate::{cancel, log};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rsock_core::interrupt::Section;

/// Pins every adopted socket.
pub(crate) fn pin_all(reason: FallbackReason) {
    let section = Section::enter();
    for fd in known_fds(0, u32::MAX) {
        pin_udp(fd, reason);
    }
    drop(section);
}

/// The socket is about to end: its counters go to the log.
pub(in crate::fdtable) fn note_end(handle: &Handle) {
    let Some(udp) = handle.udp() else { return };
    log::line(format_args!("datagrams, ending: {:?}", udp.counters()));
}

/// Logs what has changed for the socket. The thread may be cancelled.
#[inline]
pub(crate) fn log_news(fd: c_int, udp: &AcceleratedUdp) {
    if let Some(news) = udp.first_use() {
        let log = || log::line(format_args!("fd {fd}: datagrams past the kernel, {news:?}"));
        cancel::hold(log);
    }
}

/// The program has connected or disconnected `fd`.
pub(crate) fn note_connected(fd: c_int) {
    with(fd, |udp, fd| udp.note_connected(fd));
}

/// The program may have changed the file status flags of `fd`.
pub(crate) fn note_flags(fd: c_int) {
    with(fd, |udp, fd| udp.note_flags(fd));
}

/// The program has shut `fd` down.
pub(crate) fn note_shutdown(fd: c_int) {
    if is_udp(fd) {
        fdtable::pin(fd, FallbackReason::Option);
        with(fd, |udp, _| udp.note_shutdown());
    }
}

/// An epoll set watches `fd` edge-triggered.
pub(crate) fn note_edges(fd: c_int) {
    with(fd, |udp, _| udp.note_edge_triggered());
}

/// This thread is about to wait for an epoll set.
#[inline]
pub(crate) fn before_epoll_wait() {
    if AcceleratedUdp::any_has_unreported() {
        report_remaining();
    }
}

#[cold]
fn report_remaining() {
    for fd in known_fds(0, u32::MAX).filter(|&fd| is_udp(fd)) {
        with(fd, |udp, _| udp.report_unreported());
    }
}

/// Other sockets may be bound to the same port from now on.
pub(crate) fn note_reuse(fd: c_int) {
    with(fd, |udp, _| udp.note_reuse());
}

/// A UDP socket of this process has been bound, perhaps to a port that another one has.
pub(crate) fn note_bound(fd: c_int) {
    if !is_udp(fd) {
        return;
    }
    for other in known_fds(0, u32::MAX).filter(|&other| other != fd) {
        with(other, |udp, other| udp.check_port_sharing(other));
    }
}
