//! The query of a call that waits for input: `poll`, `select`, an epoll set.

use super::{Receiver, Source};
use crate::switch::{Conditions, Fault, Rules, Seen, Step};

/// What tells of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Of the kernel's socket.
    pub kernel: KernelInput,
    /// Of the ring.
    pub ring: RingInput,
    /// The stream cannot go on: a receive says so, at once.
    pub fault: Option<Fault>,
}

/// What the kernel's socket is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelInput {
    /// For input.
    Bytes,
    /// For the end of the connection, which is input then: bytes come from the ring.
    End,
}

/// What the ring is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingInput {
    /// Nothing can come on it. A thread that sleeps counts as a
    /// [`KERNEL_ONLY_WAITER`](Conditions::KERNEL_ONLY_WAITER) from before the lock is released
    /// until it has woken, unless the direction is settled.
    Unused,
    /// News on it wake the thread, and are no input yet.
    News,
    /// What it has is input only together with what the kernel has before it: as many bytes as the
    /// program wants to be told of ([`Receiver::count_readable`]).
    Behind,
    /// What it has, bytes or the end, is input.
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
    /// What tells of input. It moves the direction first: while this call waits for input, the
    /// program may be in no other that would.
    #[must_use]
    pub fn poll_input(&mut self, seen: &mut Seen) -> Step<Input> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        Step::Done(match self.source {
            Source::Tcp => Input::of(KernelInput::Bytes, RingInput::Unused),
            Source::Invited => Input::of(KernelInput::Bytes, RingInput::News),
            // Only a pinned stream may want more than a byte.
            Source::Clamped if seen.is(Conditions::PINNED) => {
                Input::of(KernelInput::Bytes, RingInput::Behind)
            }
            Source::Clamped => Input::of(KernelInput::Bytes, RingInput::News),
            Source::Ring => Input::of(KernelInput::End, RingInput::Input),
        })
    }
}
