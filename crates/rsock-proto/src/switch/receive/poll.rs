//! The query of a call that waits for input: `poll`, `select`, an epoll set.

use super::{Receiver, Source};
use crate::switch::{Conditions, Fault, Rules, Seen, Step};

/// Which events of the two channels are input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Events of the kernel's socket.
    pub kernel: KernelInput,
    /// Events of the ring.
    pub ring: RingInput,
    /// The stream cannot go on: a receive returns an error at once.
    pub fault: Option<Fault>,
}

/// The events of the kernel's socket that are input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelInput {
    /// Bytes, or the end of the connection.
    Bytes,
    /// The end of the connection alone: bytes come from the ring.
    End,
}

/// The events of the ring that are input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingInput {
    /// Nothing can arrive on it. A thread that sleeps counts as a
    /// [`KERNEL_ONLY_WAITER`](Conditions::KERNEL_ONLY_WAITER) from before the lock is released
    /// until it has woken, unless the direction is settled.
    Unused,
    /// Arrivals wake the thread, which asks again: they are no input yet.
    WakeOnly,
    /// Its bytes follow those of TCP, and both count together: they are input once there are as
    /// many as the program waits for ([`Receiver::count_readable`]).
    AfterTcp,
    /// Its bytes, and its end, are input.
    Input,
}

impl From<Fault> for Input {
    fn from(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::of(KernelInput::Bytes, RingInput::Unused) }
    }
}

impl Input {
    const fn of(kernel: KernelInput, ring: RingInput) -> Self {
        Self { kernel, ring, fault: None }
    }
}

impl<R: Rules> Receiver<R> {
    /// Which events are input. It moves the direction first: while this call waits for input, the
    /// program may make no other call that would.
    #[must_use]
    pub fn poll_input(&mut self, seen: &mut Seen) -> Step<Input> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        Step::Done(match self.source {
            Source::Tcp => Input::of(KernelInput::Bytes, RingInput::Unused),
            Source::Invited => Input::of(KernelInput::Bytes, RingInput::WakeOnly),
            // Only a pinned stream may wait for more than one byte (`SO_RCVLOWAT`).
            Source::DrainingTcp if seen.is(Conditions::PINNED) => {
                Input::of(KernelInput::Bytes, RingInput::AfterTcp)
            }
            Source::DrainingTcp => Input::of(KernelInput::Bytes, RingInput::WakeOnly),
            Source::Ring => Input::of(KernelInput::End, RingInput::Input),
        })
    }
}
