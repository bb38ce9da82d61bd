//! What [`poll`](crate::accelerate::poll()) is called with.

use crate::accelerate::{NativeListener, StreamRef};
use crate::closing::Call;
use crate::datagram::kernel_udp::AcceleratedUdp;
use rustix::event::PollFlags;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// An epoll set that watches rings too.
pub trait PolledSet: std::fmt::Debug {
    /// Whether a ring has something that the set reports. Afterwards the kernel's set is readable
    /// for what the kernel has to report alone, until something else comes.
    fn is_ready(&self) -> bool;

    /// Has the kernel's set become readable with the next thing that comes on a ring. Returns for
    /// how long it is safe to sleep, without a limit if none; `Err` if something has come already.
    ///
    /// # Errors
    /// Not an error: try again.
    fn arm(&self) -> Result<Option<Duration>, Changed>;
}

/// Something has come already.
#[derive(Clone, Copy, Debug)]
pub struct Changed;

/// One entry of [`poll`](crate::accelerate::poll()): a descriptor of the program, and what lies
/// beside it.
#[derive(Debug)]
pub struct PollDescriptor<'a> {
    /// The descriptor as the program named it; negative ones are skipped, as by `poll(2)`.
    pub fd: i32,
    /// The stream whose descriptor it is.
    pub stream: Option<StreamRef<'a>>,
    /// The native listener beside it, if it listens.
    pub listener: Option<&'a NativeListener>,
    /// The datagram socket whose descriptor it is.
    pub udp: Option<&'a AcceleratedUdp>,
    /// The epoll set whose descriptor it is, if it watches rings.
    pub set: Option<&'a dyn PolledSet>,
    /// Keeps the socket of `stream` or `udp` if another thread closes `fd` meanwhile.
    pub call: Option<Call<'a>>,
    /// Whether it is a socket of which every change passes this library, or is the peer's.
    pub is_socket: bool,
    /// Events asked for.
    pub events: PollFlags,
    /// Events found.
    pub revents: PollFlags,
}

impl PollDescriptor<'_> {
    /// An entry that is skipped.
    pub const SKIPPED: Self = Self {
        fd: -1,
        stream: None,
        listener: None,
        udp: None,
        set: None,
        call: None,
        is_socket: false,
        events: PollFlags::empty(),
        revents: PollFlags::empty(),
    };

    /// An entry with nothing beside its descriptor.
    #[must_use]
    pub fn new(fd: i32, events: PollFlags) -> Self {
        Self { fd, events, ..Self::SKIPPED }
    }

    /// The descriptor for the kernel's `ppoll`: negative for an entry that is skipped, and a number
    /// that no descriptor has if the socket could not be kept.
    pub(super) fn number(&self) -> RawFd {
        match &self.call {
            Some(call) if self.fd >= 0 => call.fd().map_or(RawFd::MAX, |fd| fd.as_raw_fd()),
            _ => self.fd,
        }
    }

    /// The descriptor of an entry that is not skipped.
    pub(super) fn open_fd(&self) -> BorrowedFd<'_> {
        debug_assert!(self.fd >= 0, "a skipped entry has no descriptor");
        // SAFETY: the program keeps the descriptor open during its own call, or `call` does.
        unsafe { BorrowedFd::borrow_raw(self.number()) }
    }

    /// Whether a close of its descriptor has to wake a sleeper by `notice`, because it has no
    /// ring that could.
    pub(super) fn needs_notice(&self) -> bool {
        self.call.is_some() && self.stream.is_none_or(|stream| stream.path().is_none())
    }
}
