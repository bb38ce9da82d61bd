//! Sending and receiving on a native stream.

#![forbid(unsafe_code)]

use crate::accelerate::call_stops::{CallStops, EndsCalls};
use crate::accelerate::counters::Waited;
use crate::accelerate::native_peer::NativeStream;
use crate::accelerate::path::{ConnectionState, Path};
use crate::accelerate::peer_check::SOCKET_CHECK_INTERVAL;
use crate::accelerate::receive::{
    self, Receives, RingWait, Woken, count_bytes, receive, receive_nothing, sleep_for_more,
};
use crate::accelerate::send::{self, PIECES, Sends, WhenFull, park_for_room, send};
use crate::accelerate::state::{FLAG_BROKEN, FLAG_EPOLL_PROXY, FLAG_RX_SHUT};
use crate::accelerate::tcp_socket::{is_nonblocking, kernel_recv, kernel_send};
use crate::accelerate::time_limit::at_most;
use crate::closing::{Call, Descriptor};
use crate::engine::{Interest, RecvError, SendError};
use crate::interrupt::{Section, Watch};
use crate::iov::Rest;
use crate::metrics::Direction;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;

/// How long a sender sleeps at most before it checks whether its peer has gone.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Flags that only the kernel's TCP can honour. Others mean nothing to a stream, as to TCP.
const KERNEL_FLAGS: SendFlags = SendFlags::OOB.union(SendFlags::from_bits_retain(
    libc::MSG_ZEROCOPY.cast_unsigned() | libc::MSG_FASTOPEN.cast_unsigned(),
));

impl NativeStream {
    /// As `sendmsg(2)` without control data, by a descriptor that other threads may close meanwhile
    /// (see [`StreamRef::keep_for_calls`](crate::accelerate::StreamRef::keep_for_calls)), blocking
    /// or not. Never raises SIGPIPE itself: the caller does, on `EPIPE` without `MSG_NOSIGNAL`.
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...; `EBADF` if it was closed and
    /// the call could not keep the socket; `EOPNOTSUPP` for flags that only the kernel's TCP can
    /// honour.
    pub fn send_by(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let rest = Rest::new(bufs);
        if rest.len == 0 {
            return Ok(kernel_send(descriptor.named(), bufs, flags)?);
        }
        if flags.intersects(KERNEL_FLAGS) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let call = Call::begin(self.closings(), descriptor);
        send(&self.usable()?, &call, rest, flags)
    }

    /// As `recvmsg(2)` without control data, by a descriptor that other threads may close meanwhile
    /// (see [`StreamRef::keep_for_calls`](crate::accelerate::StreamRef::keep_for_calls));
    /// `MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT` and `MSG_TRUNC` as on TCP.
    ///
    /// # Errors
    /// As `recvmsg(2)`: `EAGAIN`, `EINTR`, `ECONNRESET`...; `EBADF` if it was closed and the call
    /// could not keep the socket.
    pub fn recv_by(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let kernel_only = RecvFlags::OOB | RecvFlags::ERRQUEUE;
        if flags.intersects(kernel_only) || total == 0 && self.path().is_none() {
            return Ok(kernel_recv(descriptor.named(), bufs, flags)?);
        }
        if total == 0 {
            let is_nonblocking = || is_nonblocking(descriptor.named());
            return receive_nothing(flags, is_nonblocking, |bufs, look| {
                self.recv_by(descriptor, bufs, look)
            });
        }
        let call = Call::begin(self.closings(), descriptor);
        receive(&self.usable()?, &call, bufs, total, flags, 0)
    }

    /// As [`AcceleratedStream::peek_len`](crate::accelerate::AcceleratedStream::peek_len).
    ///
    /// # Errors
    /// As [`Self::recv_by`].
    pub fn peek_len(
        &self,
        descriptor: Descriptor<'_>,
        len: usize,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let call = Call::begin(self.closings(), descriptor);
        count_bytes(flags, |bufs, flags| receive(&self.usable()?, &call, bufs, len, flags, 0))
    }

    /// Continues a call that has received bytes: receives, without waiting, the bytes that the same
    /// call would still receive. Zero bytes where TCP would have ended the call.
    #[must_use]
    pub fn recv_more(&self, descriptor: Descriptor<'_>, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let Ok(usable) = self.usable() else { return 0 };
        // Asked first, as an error would be lost.
        if !self.bytes_readable(descriptor.named()).is_ok_and(|n| n != 0) {
            return 0;
        }
        let call = Call::begin(self.closings(), descriptor);
        usable.try_recv(&call, bufs, RecvFlags::DONTWAIT, 1).unwrap_or(0)
    }

    /// The stream and its path.
    ///
    /// # Errors
    /// `ECONNRESET` in a child of a fork, which cannot use its parent's stream.
    fn usable(&self) -> io::Result<Usable<'_>> {
        Ok(Usable { stream: self, path: self.path().ok_or(Errno::CONNRESET)? })
    }
}

/// A native stream whose path this process can use.
#[derive(Clone, Copy)]
struct Usable<'a> {
    stream: &'a NativeStream,
    path: &'a Path,
}

impl EndsCalls for Usable<'_> {
    fn call_stops(&self) -> Option<&CallStops> {
        None
    }

    fn report_reset(&self, _fd: BorrowedFd<'_>, _by: Direction) -> io::Error {
        Errno::CONNRESET.into()
    }
}

impl Sends for Usable<'_> {
    fn try_send(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        _flags: SendFlags,
    ) -> Result<usize, send::Blocked> {
        let Self { stream, path } = *self;
        let _section = Section::enter();
        let _tx = stream.state.tx.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        if stream.has(FLAG_BROKEN) {
            // As TCP after a reset that a read has reported.
            return Err(Errno::PIPE.into());
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let mark = path.mark();
        match path.try_send(&pieces[..n]) {
            Ok(n) => {
                stream.stat.add_bytes(Direction::Send, path.kind(), n as u64);
                Ok(n)
            }
            Err(SendError::WouldBlock) if path.is_disconnected() => {
                Err(stream.break_off(fd, path, Direction::Send).into())
            }
            Err(SendError::WouldBlock) => Err(send::Blocked::Ring(mark)),
            Err(SendError::Closed) => Err(Errno::PIPE.into()),
            Err(SendError::Fault) => Err(Errno::FAULT.into()),
            Err(SendError::Failed(_)) => Err(stream.break_off(fd, path, Direction::Send).into()),
        }
    }

    fn when_full(&self, fd: BorrowedFd<'_>, _blocked: &send::Blocked, _sent: usize) -> WhenFull {
        let Self { stream, path } = *self;
        if stream.has(FLAG_EPOLL_PROXY) && stream.show_full(fd, path) {
            WhenFull::TryAgain
        } else {
            WhenFull::Return
        }
    }

    /// Waits a bounded time only: the next try looks whether the peer has gone.
    fn wait_for_room(
        &self,
        _fd: BorrowedFd<'_>,
        blocked: &send::Blocked,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let send::Blocked::Ring(mark) = *blocked else { return Ok(()) };
        if self.path.spin(Interest::Write, mark) {
            self.stream.count_wait(Direction::Send, Waited::Spinning);
            return Ok(());
        }
        self.stream.count_wait(Direction::Send, Waited::Sleeping);
        park_for_room(self.path, mark, at_most(PEER_CHECK_INTERVAL, left), watch)
    }
}

impl Receives for Usable<'_> {
    fn try_recv(
        &self,
        call: &Call<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        _taken: usize,
    ) -> Result<usize, receive::Blocked<'_>> {
        let Self { stream, path } = *self;
        let peek = flags.contains(RecvFlags::PEEK);
        let _section = Section::enter();
        let mut idle_reads = stream.state.idle_reads.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        if stream.has(FLAG_BROKEN) {
            return Err(io::Error::from(Errno::CONNRESET).into());
        }
        let mark = path.mark();
        match path.try_recv(bufs, peek) {
            Ok(n) => {
                *idle_reads = 0;
                if n != 0 && !peek {
                    stream.stat.add_bytes(Direction::Recv, path.kind(), n as u64);
                }
                Ok(n)
            }
            Err(RecvError::WouldBlock) => {
                *idle_reads = idle_reads.wrapping_add(1);
                let look = idle_reads.is_multiple_of(SOCKET_CHECK_INTERVAL)
                    || path.is_disconnected()
                    || stream.has(FLAG_RX_SHUT)
                    || stream.has(FLAG_EPOLL_PROXY);
                if look && let Some(end) = self.end(fd) {
                    return end;
                }
                stream.proxy.quiet(path, &stream.state.flags.0, stream.has(FLAG_BROKEN));
                Err(receive::Blocked::Ring(mark))
            }
            Err(RecvError::Fault) => Err(io::Error::from(Errno::FAULT).into()),
            Err(RecvError::Failed(_)) => Err(stream.break_off(fd, path, Direction::Recv).into()),
        }
    }

    fn has_ended(&self, _fd: BorrowedFd<'_>) -> bool {
        let Self { stream, path } = *self;
        stream.has(FLAG_RX_SHUT)
            || stream.has(FLAG_BROKEN)
            || path.has_eof()
            || path.connection_state() != ConnectionState::Open
    }

    fn count_readable(&self, fd: BorrowedFd<'_>) -> usize {
        self.stream.bytes_readable(fd).unwrap_or(0)
    }

    fn before_wait(&self, _fd: BorrowedFd<'_>) {}

    fn sleep_for_data(
        &self,
        fd: BorrowedFd<'_>,
        blocked: receive::Blocked<'_>,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let Self { stream, path } = *self;
        let receive::Blocked::Ring(mark) = blocked else { return sleep_for_more(left, watch) };
        let (flags, stat) = (&stream.state.flags.0, Some(&stream.stat));
        if (RingWait { path, flags, stat }).sleep(fd, mark, left, watch)? == Woken::ByDescriptor {
            path.connection_state();
            *stream.state.idle_reads.0.lock() = SOCKET_CHECK_INTERVAL - 1;
        }
        Ok(())
    }

    fn note_error(&self, error: io::Error) -> io::Error {
        error
    }
}

impl Usable<'_> {
    /// Nothing is on the ring: what a read answers, or `None` if something may still come.
    fn end(&self, fd: BorrowedFd<'_>) -> Option<Result<usize, receive::Blocked<'_>>> {
        let Self { stream, path } = *self;
        if stream.has(FLAG_RX_SHUT) {
            return Some(Ok(0));
        }
        // In this order: bytes that arrived before the disconnection are found after it.
        if path.connection_state() == ConnectionState::Open {
            return None;
        }
        if path.bytes_readable() != 0 {
            return Some(Err(receive::Blocked::Short));
        }
        if path.has_eof() && !path.has_failed() {
            return Some(Ok(0));
        }
        // A peer that ends in good order says so on the ring: without that, something may be lost.
        Some(Err(stream.break_off(fd, path, Direction::Recv).into()))
    }
}
