//! The socket that an entry of `poll` or `select` names.

use crate::event_set::{self, PolledEventSet};
use crate::fdtable::datagrams;
use crate::fdtable::{self, Begun};
use crate::native_peer::listeners;
use crate::native_peer::shared_listener::SharedListener;
use crate::slot::{Direction, Handle};
use crate::threads;
use libc::{c_int, pollfd};
use rsock_core::accelerate::{FallbackReason, PollDescriptor};
use rustix::event::PollFlags;
use std::sync::Arc;

/// A socket of this library that a descriptor refers to while it is waited for.
pub(in crate::hook) enum Named {
    Stream(Handle),
    /// Beside a listening socket.
    NativeListener(Arc<SharedListener>),
    /// A UDP socket.
    Datagrams(Handle),
    /// An epoll set, which may watch streams on rings, or may begin to.
    EventSet(PolledEventSet),
}

impl Named {
    /// The socket of `fd`, if any. A stream's direction is the one that `events` ask for.
    ///
    /// PERF: inlined, so that the handle is stored once, where it stays.
    #[inline(always)]
    pub(in crate::hook) fn find(fd: c_int, events: PollFlags) -> Option<Self> {
        if fdtable::is_listening(fd) {
            return listeners::of(fd).map(Self::NativeListener);
        }
        if let Some(set) = event_set::find(fd) {
            return Some(Self::EventSet(PolledEventSet { set, fd }));
        }
        if datagrams::is_udp(fd) {
            let handle = datagrams::find(fd, Direction::Recv);
            return handle
                .filter(|h| h.udp().is_some_and(|udp| !udp.is_plain()))
                .map(Self::Datagrams);
        }
        let writes = events.intersects(PollFlags::OUT | PollFlags::WRNORM)
            && !events.intersects(PollFlags::IN | PollFlags::RDNORM);
        let direction = if writes { Direction::Send } else { Direction::Recv };
        match fdtable::begin_adopted(fd, direction) {
            Begun::Stream(handle) => Some(Self::Stream(handle)),
            Begun::Kernel => None,
            Begun::Other => begin_first(fd, direction).map(Self::Stream),
        }
    }

    /// Whether waiting takes more than the kernel's `poll`.
    pub(in crate::hook) fn is_needed(&self) -> bool {
        match self {
            Self::Stream(handle) => !handle.stream().is_plain(),
            Self::EventSet(polled) => event_set::needs_library(polled.set),
            Self::NativeListener(_) | Self::Datagrams(_) => true,
        }
    }
}

/// Begins a call on the stream of `fd`, which has none yet. A connection whose `connect` has not
/// ended stays on TCP if its input is waited for: the kernel makes this wait, and another thread
/// could have the connection adopted meanwhile.
#[inline(never)]
fn begin_first(fd: c_int, direction: Direction) -> Option<Handle> {
    let begun = fdtable::begin_other(fd, direction);
    let is_missed = begun.is_none()
        && direction == Direction::Recv
        && fdtable::is_connecting(fd)
        && !threads::is_alone();
    if !is_missed {
        return begun;
    }
    fdtable::pin(fd, FallbackReason::Option);
    // Another thread may have had it adopted before.
    fdtable::begin_other(fd, direction)
}

/// The events that are asked for.
pub(in crate::hook) fn event_flags(p: &pollfd) -> PollFlags {
    PollFlags::from_bits_retain(p.events.cast_unsigned())
}

/// Fills in an entry that is skipped, to wait for `p`, of which `named` is the socket.
pub(super) fn fill_in<'a>(entry: &mut PollDescriptor<'a>, p: &pollfd, named: Option<&'a Named>) {
    entry.fd = p.fd;
    entry.events = event_flags(p);
    entry.is_socket = fdtable::is_known(p.fd);
    match named {
        Some(Named::Stream(handle)) => {
            entry.stream = Some(handle.stream());
            entry.call = Some(handle.call());
        }
        Some(Named::NativeListener(listener)) => entry.listener = Some(listener.native()),
        Some(Named::Datagrams(handle)) => {
            entry.udp = handle.udp();
            entry.call = Some(handle.call());
        }
        Some(Named::EventSet(set)) => entry.set = Some(set),
        None => {}
    }
}
