//! A reference to a stream of either kind, for callers that treat both alike.

#![forbid(unsafe_code)]

use crate::accelerate::counters::Waited;
use crate::accelerate::path::Path;
use crate::accelerate::poll_state::State;
use crate::accelerate::{AcceleratedStream, Claim, FallbackReason, NativeStream, Need};
use crate::closing::{Closings, Descriptor};
use crate::metrics::Direction;
use rustix::event::PollFlags;
use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io::{self, IoSlice, IoSliceMut};

/// A stream of either kind.
#[derive(Clone, Copy, Debug)]
pub enum StreamRef<'a> {
    /// A TCP socket, with a ring beside it or not.
    Accelerated(&'a AcceleratedStream),
    /// A stream without TCP.
    Native(&'a NativeStream),
}

/// Runs the same expression on whichever stream it is.
macro_rules! on {
    ($this:expr, $stream:ident => $do:expr) => {
        match $this {
            Self::Accelerated($stream) => $do,
            Self::Native($stream) => $do,
        }
    };
}

impl<'a> From<&'a AcceleratedStream> for StreamRef<'a> {
    fn from(stream: &'a AcceleratedStream) -> Self {
        Self::Accelerated(stream)
    }
}

impl<'a> From<&'a NativeStream> for StreamRef<'a> {
    fn from(stream: &'a NativeStream) -> Self {
        Self::Native(stream)
    }
}

impl<'a> StreamRef<'a> {
    /// The native stream, if it is one.
    #[inline]
    #[must_use]
    pub fn native(self) -> Option<&'a NativeStream> {
        match self {
            Self::Accelerated(_) => None,
            Self::Native(stream) => Some(stream),
        }
    }

    /// Whether there is no TCP connection.
    #[inline]
    #[must_use]
    pub fn is_native(self) -> bool {
        matches!(self, Self::Native(_))
    }

    /// Whether it has moved to a device that connects hosts. No relay can carry it on.
    #[must_use]
    pub fn is_between_hosts(self) -> bool {
        self.path().is_some_and(Path::is_remote)
    }

    /// As [`AcceleratedStream::is_plain`]. Never true of a native stream.
    #[inline]
    #[must_use]
    pub fn is_plain(self) -> bool {
        match self {
            Self::Accelerated(stream) => stream.is_plain(),
            Self::Native(_) => false,
        }
    }

    /// Whether a call that waits has to [stop](Self::stop) for a handoff.
    #[inline]
    pub(super) fn is_asked_to_stop(self) -> bool {
        let Self::Accelerated(stream) = self else { return false };
        stream.call_stops.is_asked() && !stream.call_stops.is_replaced()
    }

    /// Stops until the handoff is over.
    #[cold]
    pub(super) fn stop(self) {
        if let Self::Accelerated(stream) = self {
            let _ = stream.call_stops.stop();
        }
    }

    /// As [`AcceleratedStream::stop_calls`]. A native stream is not handed off.
    #[must_use]
    pub fn stop_calls(self, others: impl Fn() -> u64) -> bool {
        match self {
            Self::Accelerated(stream) => stream.stop_calls(others),
            Self::Native(_) => others() == 0,
        }
    }

    /// As [`AcceleratedStream::resume_calls`].
    pub fn resume_calls(self) {
        if let Self::Accelerated(stream) = self {
            stream.resume_calls();
        }
    }

    /// As [`AcceleratedStream::replace_for_calls`].
    pub fn replace_for_calls(self, proxy: BorrowedFd<'_>, others: impl Fn() -> u64) {
        if let Self::Accelerated(stream) = self {
            stream.replace_for_calls(proxy, others);
        }
    }

    /// As [`AcceleratedStream::bytes_on_ring`]; zero for a native stream, which is not handed off.
    #[must_use]
    pub fn bytes_on_ring(self) -> usize {
        match self {
            Self::Accelerated(stream) => stream.bytes_on_ring(),
            Self::Native(_) => 0,
        }
    }

    /// As [`AcceleratedStream::pin`]. A native stream has no TCP to go to, and is left as it is.
    pub fn pin(self, fd: BorrowedFd<'_>, reason: FallbackReason) {
        match self {
            Self::Accelerated(stream) => stream.pin(fd, reason),
            Self::Native(_) => {}
        }
    }

    /// As [`AcceleratedStream::is_same_socket`].
    #[must_use]
    pub fn is_same_socket(self, fd: BorrowedFd<'_>) -> Option<bool> {
        match self {
            Self::Accelerated(stream) => stream.is_same_socket(fd),
            Self::Native(stream) => Some(stream.is_same_socket(fd)),
        }
    }

    /// The inode of the socket. `None` where it is not known and makes no difference, as for
    /// [`Self::is_same_socket`].
    #[must_use]
    pub fn inode(self) -> Option<u64> {
        match self {
            Self::Accelerated(stream) => stream.inode(),
            Self::Native(stream) => Some(stream.inode()),
        }
    }

    /// What calls on this socket need that came by a descriptor which may be closed under them.
    fn closings(self) -> &'a Closings {
        on!(self, stream => stream.closings())
    }

    /// To be called before `fd`, which names this socket, is closed while other calls on it may be
    /// in progress, as many as `others` says. They go on with the socket, whatever becomes of the
    /// number. `None` if the number is another file's already.
    pub fn keep_for_calls(self, fd: Option<BorrowedFd<'_>>, others: impl Fn() -> u64) {
        if others() == 0 {
            return;
        }
        let wake = || {
            if let Some(path) = self.path() {
                path.wake_waiters();
            }
        };
        self.closings().keep(fd, wake, others);
        // A call that was too slow to answer makes its system calls under a lock, and looks the
        // descriptor up there: none is between the two from here on.
        on!(self, stream => stream.await_locked_calls());
    }

    /// As [`AcceleratedStream::send_by`].
    ///
    /// # Errors
    /// As [`AcceleratedStream::send_by`].
    #[inline]
    pub fn send_by(
        self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        on!(self, stream => stream.send_by(descriptor, bufs, flags))
    }

    /// As [`AcceleratedStream::send_on`]. A native stream reports its errors again and again.
    ///
    /// # Errors
    /// As [`AcceleratedStream::send_on`].
    pub fn send_on(
        self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        match self {
            Self::Accelerated(stream) => stream.send_on(descriptor, bufs, flags),
            Self::Native(stream) => stream.send_by(descriptor, bufs, flags),
        }
    }

    /// As [`AcceleratedStream::recv_by`].
    ///
    /// # Errors
    /// As [`AcceleratedStream::recv_by`].
    #[inline]
    pub fn recv_by(
        self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        on!(self, stream => stream.recv_by(descriptor, bufs, flags))
    }

    /// As [`AcceleratedStream::recv_on`]. A native stream reports its errors again and again.
    ///
    /// # Errors
    /// As [`AcceleratedStream::recv_on`].
    pub fn recv_on(
        self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        match self {
            Self::Accelerated(stream) => stream.recv_on(descriptor, bufs, flags),
            Self::Native(stream) => stream.recv_by(descriptor, bufs, flags),
        }
    }

    /// As [`AcceleratedStream::peek_len`].
    ///
    /// # Errors
    /// As [`AcceleratedStream::peek_len`].
    pub fn peek_len(
        self,
        descriptor: Descriptor<'_>,
        len: usize,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        on!(self, stream => stream.peek_len(descriptor, len, flags))
    }

    /// As [`AcceleratedStream::recv_more`].
    #[must_use]
    pub fn recv_more(self, descriptor: Descriptor<'_>, bufs: &mut [IoSliceMut<'_>]) -> usize {
        on!(self, stream => stream.recv_more(descriptor, bufs))
    }

    /// As [`AcceleratedStream::bytes_readable`].
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`.
    pub fn bytes_readable(self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        on!(self, stream => stream.bytes_readable(fd))
    }

    /// As [`AcceleratedStream::bytes_unsent`]. Bytes on the ring count as sent.
    ///
    /// # Errors
    /// As `ioctl(SIOCOUTQ)`.
    pub fn bytes_unsent(self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        match self {
            Self::Accelerated(stream) => stream.bytes_unsent(fd),
            Self::Native(_) => Ok(0),
        }
    }

    /// As [`AcceleratedStream::is_at_mark`]. A native stream has no urgent bytes.
    #[must_use]
    pub fn is_at_mark(self, fd: BorrowedFd<'_>) -> bool {
        match self {
            Self::Accelerated(stream) => stream.is_at_mark(fd),
            Self::Native(_) => false,
        }
    }

    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(self, fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
        on!(self, stream => stream.shutdown(fd, how))
    }

    /// The program is about to close its last descriptor of this stream.
    pub fn close(self, fd: BorrowedFd<'_>) {
        on!(self, stream => stream.close(fd));
    }

    /// The process is about to end, and with it what it has not brought to the peer yet.
    pub fn finish(self) {
        on!(self, stream => stream.finish());
    }

    /// The descriptor to add to an epoll set beside the socket, if there is one: see
    /// [`AcceleratedStream::epoll_proxy`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is no descriptor for it.
    pub fn epoll_proxy(self, fd: BorrowedFd<'_>) -> io::Result<Option<RawFd>> {
        match self {
            Self::Accelerated(stream) => stream.epoll_proxy(fd),
            Self::Native(stream) => stream.epoll_proxy(),
        }
    }

    /// As [`AcceleratedStream::leave_ring`]. A native stream cannot leave.
    #[must_use]
    pub fn leave_ring(self, fd: BorrowedFd<'_>, need: Need, reason: FallbackReason) -> bool {
        match self {
            Self::Accelerated(stream) => stream.leave_ring(fd, need, reason),
            Self::Native(_) => false,
        }
    }

    /// As [`AcceleratedStream::hand_off`]. A native stream ends, and the answer is a socket whose
    /// peer has reset it.
    ///
    /// # Errors
    /// As [`AcceleratedStream::hand_off`].
    pub fn hand_off(self, fd: BorrowedFd<'_>, claim: Claim) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Accelerated(stream) => stream.hand_off(fd, claim),
            Self::Native(stream) => stream.hand_off(fd).map(Some),
        }
    }

    /// Whether another process holds this stream too, as far as is known.
    #[must_use]
    pub fn is_shared(self) -> bool {
        on!(self, stream => stream.is_shared())
    }

    /// As [`AcceleratedStream::before_fork`]. A native stream stays with the parent.
    pub fn before_fork(self, fd: BorrowedFd<'_>) {
        match self {
            Self::Accelerated(stream) => stream.before_fork(fd),
            Self::Native(_) => {}
        }
    }

    /// One more process holds this stream: this one, a forked child.
    pub fn note_inherited(self) {
        on!(self, stream => stream.note_inherited());
    }

    /// As [`AcceleratedStream::note_unnoted_child`]. A native stream stays with the parent.
    pub fn note_unnoted_child(self) {
        match self {
            Self::Accelerated(stream) => stream.note_unnoted_child(),
            Self::Native(_) => {}
        }
    }

    /// This process holds this stream no more: it has closed its last descriptor.
    pub fn note_released(self) {
        on!(self, stream => stream.note_released());
    }

    pub(super) fn path(self) -> Option<&'a Path> {
        on!(self, stream => stream.path())
    }

    pub(super) fn poll_state(self, fd: BorrowedFd<'_>, events: PollFlags, state: &mut State<'a>) {
        match self {
            Self::Accelerated(stream) => stream.poll_state(fd, events, state),
            Self::Native(stream) => stream.poll_state(events, state),
        }
    }

    /// The descriptor to watch in a sleep beside the socket, if there is one.
    pub(super) fn auxiliary_fd(self) -> Option<RawFd> {
        on!(self, stream => stream.auxiliary_fd())
    }

    /// [`Self::auxiliary_fd`] has become readable.
    pub(super) fn on_auxiliary_ready(self, fd: BorrowedFd<'_>) {
        match self {
            Self::Accelerated(stream) => stream.on_auxiliary_ready(fd),
            Self::Native(stream) => stream.on_auxiliary_ready(),
        }
    }

    pub(super) fn count_wait(self, direction: Direction, waited: Waited) {
        on!(self, stream => stream.count_wait(direction, waited));
    }
}
