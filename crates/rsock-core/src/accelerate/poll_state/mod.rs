//! What `poll` has to do for one socket: the events that hold, and where to wait for others.

mod of_stream;

use crate::accelerate::kernel_only_waiter::KernelOnlyWaiter;
use crate::accelerate::path::Path;
use crate::datagram::kernel_udp::{self, AcceleratedUdp};
use crate::sys::{INPUT, OUTPUT};
use rustix::event::PollFlags;

/// The state of one entry's socket, as far as the kernel does not know it.
pub(super) struct State<'a> {
    /// Events that hold, of those asked for.
    pub(super) ready: PollFlags,
    /// Events that the kernel is to be asked for.
    pub(super) kernel: PollFlags,
    /// The end of the socket means input: nothing else can come from the ring.
    pub(super) end_is_input: bool,
    /// The ring to be armed, with the mark taken before looking.
    pub(super) ring: Option<(&'a Path, u32)>,
    /// In its place: the ring that brings nothing, but on which the peer may ask something.
    pub(super) asking: Option<(&'a Path, u32)>,
    /// A full ring is given this long before the writer moves to TCP.
    pub(super) impatient: bool,
    pub(super) kernel_only: Option<KernelOnlyWaiter<'a>>,
    /// The queue to be armed.
    pub(super) queue: Option<&'a AcceleratedUdp>,
    pub(super) udp_kernel_only: Option<kernel_udp::KernelWait<'a>>,
}

impl<'a> State<'a> {
    /// Nothing but the kernel's: it is to be asked for `kernel`.
    pub(super) fn of_kernel(kernel: PollFlags) -> Self {
        Self {
            ready: PollFlags::empty(),
            kernel,
            end_is_input: false,
            ring: None,
            asking: None,
            impatient: false,
            kernel_only: None,
            queue: None,
            udp_kernel_only: None,
        }
    }

    /// As [`Self::of_kernel`] for `events`, with input of which `has_input` tells and the kernel
    /// does not.
    pub(super) fn of_kernel_or(events: PollFlags, has_input: impl FnOnce() -> bool) -> Self {
        let mut state = Self::of_kernel(events);
        if events.intersects(INPUT) && has_input() {
            state.ready = events & INPUT;
        }
        state
    }

    /// The state of a UDP socket that may have something in its queue.
    pub(super) fn of_udp(udp: &'a AcceleratedUdp, events: PollFlags) -> Self {
        let mut state = Self::of_kernel(events);
        if events.intersects(INPUT) && !udp.is_plain() {
            if !udp.queue_may_receive() {
                state.udp_kernel_only = udp.begin_kernel_wait();
            }
            if state.udp_kernel_only.is_none() {
                state.queue = Some(udp);
                if udp.is_ready() {
                    state.ready = events & INPUT;
                }
            }
        }
        state
    }

    /// Whether what is known already is all that was asked for.
    pub(super) fn is_enough(&self) -> bool {
        self.queue.is_some() && !self.ready.is_empty() && self.kernel.difference(INPUT).is_empty()
    }

    /// Whether readiness may stand in the kernel alone, so that it is asked before the thread
    /// spins.
    pub(super) fn kernel_first(&self) -> bool {
        // A socket that the queue has served lately is looked at there first.
        if let Some(udp) = self.queue
            && udp.is_active()
        {
            return self.kernel.intersects(OUTPUT);
        }
        self.kernel.intersects(INPUT | OUTPUT) || self.ring.is_none() && self.ready.is_empty()
    }

    /// Whether the kernel can tell nothing but that the connection has ended, which was not asked
    /// for by name.
    pub(super) fn only_ends(&self, events: PollFlags) -> bool {
        !self.kernel_first()
            && !events.contains(PollFlags::RDHUP)
            && self.kernel.difference(PollFlags::RDHUP).is_empty()
    }
}
