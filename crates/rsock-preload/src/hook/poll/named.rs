//! The socket that an entry of `poll` or `select` names.

use crate::event_set::{self, PolledEventSet};
use crate::fdtable;
use crate::fdtable::datagrams;
use crate::native_peer::listeners;
use crate::native_peer::shared_listener::SharedListener;
use crate::slot::{Direction, Handle};
use libc::{c_int, pollfd};
use rsock_core::accelerate::PollDescriptor;
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
        fdtable::begin_call(fd, if writes { Direction::Send } else { Direction::Recv })
            .map(Self::Stream)
    }

    /// Whether waiting takes more than the kernel's `poll`.
    pub(in crate::hook) fn is_needed(&self) -> bool {
        match self {
            Self::Stream(handle) => !handle.stream().is_plain(),
            Self::EventSet(polled) => event_set::needs_library(polled.set),
            Self::NativeListener(_) | Self::Datagrams(_) => true,
        }
    }

    /// The entry to wait for.
    pub(in crate::hook) fn entry(
        named: Option<&Self>,
        fd: c_int,
        events: PollFlags,
    ) -> PollDescriptor<'_> {
        let nothing = PollDescriptor {
            fd,
            stream: None,
            listener: None,
            udp: None,
            set: None,
            call: None,
            is_socket: fdtable::is_known(fd),
            events,
            revents: PollFlags::empty(),
        };
        match named {
            Some(Self::Stream(handle)) => PollDescriptor {
                stream: Some(handle.stream()),
                call: Some(handle.call()),
                ..nothing
            },
            Some(Self::NativeListener(listener)) => {
                PollDescriptor { listener: Some(listener.native()), ..nothing }
            }
            Some(Self::Datagrams(handle)) => {
                PollDescriptor { udp: handle.udp(), call: Some(handle.call()), ..nothing }
            }
            Some(Self::EventSet(set)) => PollDescriptor { set: Some(set), ..nothing },
            None => nothing,
        }
    }
}

/// The events that are asked for.
pub(in crate::hook) fn event_flags(p: &pollfd) -> PollFlags {
    PollFlags::from_bits_retain(p.events.cast_unsigned())
}

/// The entry to wait for, of which `named` is the socket.
pub(super) fn entry<'a>(p: &pollfd, named: Option<&'a Named>) -> PollDescriptor<'a> {
    Named::entry(named, p.fd, event_flags(p))
}
