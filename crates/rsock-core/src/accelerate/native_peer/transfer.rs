//! Sending and receiving on a native stream.

#![forbid(unsafe_code)]

use crate::accelerate::counters::Waited;
use crate::accelerate::native_peer::NativeStream;
use crate::accelerate::path::{ConnectionState, Path};
use crate::accelerate::peer_check::SOCKET_CHECK_INTERVAL;
use crate::accelerate::receive::{RingWait, Woken, recv_deadline, sleep_for_more};
use crate::accelerate::send::{PIECES, park_for_room, send_deadline};
use crate::accelerate::state::{FLAG_BROKEN, FLAG_EPOLL_PROXY, FLAG_RX_SHUT};
use crate::accelerate::tcp_socket::{is_nonblocking, kernel_recv, kernel_send};
use crate::closing::{Call, Descriptor};
use crate::engine::{Interest, RecvError, SendError};
use crate::interrupt::{Restart, Section, Watch};
use crate::iov::{Rest, with_tail};
use crate::metrics::Direction;
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

/// How long a sender sleeps at most before it checks whether its peer has gone.
const PATIENCE: Duration = Duration::from_millis(50);

/// Flags that only the kernel's TCP can honour. Others mean nothing to a stream, as to TCP.
const KERNEL_FLAGS: SendFlags = SendFlags::OOB.union(SendFlags::from_bits_retain(
    libc::MSG_ZEROCOPY.cast_unsigned() | libc::MSG_FASTOPEN.cast_unsigned(),
));

/// The outcome of one try to send.
enum Sent {
    Bytes(usize),
    /// The ring is full; the mark was taken before.
    Full(u32),
}

/// The outcome of one try to receive.
enum Received {
    /// Zero at the end of the stream.
    Bytes(usize),
    Nothing(WaitFor),
}

/// What a receive waits for.
enum WaitFor {
    /// An event on the ring; the mark was taken before.
    Ring(u32),
    /// More bytes than are there. No descriptor announces them: the caller checks again soon.
    More,
}

impl NativeStream {
    /// As `sendmsg(2)` without control data, by a descriptor that other threads may close meanwhile
    /// (see [`Self::keep_for_calls`]), blocking or not. Never raises SIGPIPE itself: the caller
    /// does, on `EPIPE` without `MSG_NOSIGNAL`.
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
        let mut rest = Rest::new(bufs);
        if rest.len == 0 {
            return Ok(kernel_send(descriptor.named(), bufs, flags)?);
        }
        if flags.intersects(KERNEL_FLAGS) {
            return Err(Errno::OPNOTSUPP.into());
        }
        // A child of a fork cannot use its parent's stream.
        let path = self.path().ok_or(Errno::CONNRESET)?;
        let call = Call::begin(self.closings(), descriptor);
        let mut watch = Watch::begin();
        let mut deadline = None;
        let mut sent = 0;
        let error = loop {
            let mark = match self.try_send(&call, path, &rest) {
                Ok(Sent::Bytes(n)) => {
                    sent += n;
                    rest.advance(n);
                    if rest.len == 0 {
                        return Ok(sent);
                    }
                    continue;
                }
                Ok(Sent::Full(mark)) => mark,
                Err(e) => break e,
            };
            let fd = match call.fd() {
                Ok(fd) => fd,
                Err(e) => break e,
            };
            if flags.contains(SendFlags::DONTWAIT) || is_nonblocking(fd) {
                if self.has(FLAG_EPOLL_PROXY) && self.show_full(fd, path) {
                    continue;
                }
                break Errno::AGAIN.into();
            }
            let limit = *deadline.get_or_insert_with(|| send_deadline(fd));
            if let Err(e) = self.wait_for_room(path, mark, limit, &mut watch, sent != 0) {
                break e;
            }
        };
        if sent != 0 { Ok(sent) } else { Err(error) }
    }

    /// Sends as many bytes as there is room for now.
    fn try_send(&self, call: &Call<'_>, path: &Path, rest: &Rest<'_>) -> io::Result<Sent> {
        let _section = Section::enter();
        let _tx = self.state.tx.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        if self.has(FLAG_BROKEN) {
            // As TCP after a reset that a read has reported.
            return Err(Errno::PIPE.into());
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let mark = path.mark();
        match path.try_send(&pieces[..n]) {
            Ok(n) => {
                self.stat.add_bytes(Direction::Send, path.kind(), n as u64);
                Ok(Sent::Bytes(n))
            }
            Err(SendError::WouldBlock) if path.is_disconnected() => {
                Err(self.break_off(fd, path, Direction::Send))
            }
            Err(SendError::WouldBlock) => Ok(Sent::Full(mark)),
            Err(SendError::Closed) => Err(Errno::PIPE.into()),
            Err(SendError::Fault) => Err(Errno::FAULT.into()),
            Err(SendError::Failed(_)) => Err(self.break_off(fd, path, Direction::Send)),
        }
    }

    /// Waits for room on the ring, a bounded time only: the caller's next try checks whether the
    /// peer has gone.
    fn wait_for_room(
        &self,
        path: &Path,
        mark: u32,
        deadline: Option<Instant>,
        watch: &mut Watch,
        partial: bool,
    ) -> io::Result<()> {
        let left = sys::time_left(deadline);
        if left == Some(Duration::ZERO) {
            return Err(Errno::AGAIN.into());
        }
        if path.spin(Interest::Write, mark) {
            self.count_wait(Direction::Send, Waited::Spinning);
            return Ok(());
        }
        self.count_wait(Direction::Send, Waited::Sleeping);
        park_for_room(path, mark, left.map_or(PATIENCE, |l| l.min(PATIENCE)), watch, partial)
    }

    /// As `recvmsg(2)` without control data, by a descriptor that other threads may close meanwhile
    /// (see [`Self::keep_for_calls`]); `MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT` and `MSG_TRUNC` as
    /// on TCP.
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
        let path = self.path();
        let kernel_only = RecvFlags::OOB | RecvFlags::ERRQUEUE;
        if flags.intersects(kernel_only) || total == 0 && path.is_none() {
            return Ok(kernel_recv(descriptor.named(), bufs, flags)?);
        }
        if total == 0 {
            // Waits for a byte or the end, as on TCP, and takes nothing.
            let mut byte = [0];
            let look = RecvFlags::PEEK | (flags & RecvFlags::DONTWAIT);
            return self.recv_by(descriptor, &mut [IoSliceMut::new(&mut byte)], look).map(|_| 0);
        }
        // A child of a fork cannot use its parent's stream.
        let path = path.ok_or(Errno::CONNRESET)?;
        let call = Call::begin(self.closings(), descriptor);
        let mut watch = Watch::begin();
        let mut deadline = None;
        let mut got = 0;
        let peek = flags.contains(RecvFlags::PEEK);
        let wait_all = flags.contains(RecvFlags::WAITALL);
        let error = loop {
            // In this order: bytes that arrived before the end are counted after it.
            let is_last = peek && wait_all && (self.has(FLAG_RX_SHUT) || self.has(FLAG_BROKEN));
            let skip = if peek { 0 } else { got };
            let tried = if skip == 0 {
                self.try_recv(&call, path, bufs, peek)
            } else {
                with_tail(bufs, skip, usize::MAX, |tail| self.try_recv(&call, path, tail, peek))
            };
            let wait_for = match tried {
                Ok(Received::Bytes(0)) => return Ok(got),
                Ok(Received::Bytes(n)) => {
                    if got == 0 && !watch.must_end() {
                        // A signal handler ran before the first byte, and the call restarts.
                        watch.restart();
                    }
                    got = if peek { n } else { got + n };
                    if got == total || !wait_all || is_last {
                        return Ok(got);
                    }
                    if !peek {
                        continue;
                    }
                    WaitFor::More
                }
                Ok(Received::Nothing(wait_for)) => wait_for,
                Err(e) => break e,
            };
            let fd = match call.fd() {
                Ok(fd) => fd,
                Err(e) => break e,
            };
            if flags.contains(RecvFlags::DONTWAIT) || is_nonblocking(fd) {
                break Errno::AGAIN.into();
            }
            let limit = *deadline.get_or_insert_with(|| recv_deadline(fd));
            if let Err(e) = self.wait_for_data(fd, path, &wait_for, limit, &mut watch, got != 0) {
                break e;
            }
        };
        if got != 0 { Ok(got) } else { Err(error) }
    }

    /// Continues a call that has received bytes: receives, without waiting, the bytes that the same
    /// call would still receive. Zero bytes where TCP would have ended the call.
    #[must_use]
    pub fn recv_more(&self, descriptor: Descriptor<'_>, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let Some(path) = self.path() else { return 0 };
        // Checked first, as an error would be lost.
        if !self.bytes_readable(descriptor.named()).is_ok_and(|n| n != 0) {
            return 0;
        }
        let call = Call::begin(self.closings(), descriptor);
        match self.try_recv(&call, path, bufs, false) {
            Ok(Received::Bytes(n)) => n,
            Ok(Received::Nothing(_)) | Err(_) => 0,
        }
    }

    /// Receives the bytes that are there.
    fn try_recv(
        &self,
        call: &Call<'_>,
        path: &Path,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> io::Result<Received> {
        let _section = Section::enter();
        let mut idle_reads = self.state.idle_reads.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        if self.has(FLAG_BROKEN) {
            return Err(Errno::CONNRESET.into());
        }
        let mark = path.mark();
        match path.try_recv(bufs, peek) {
            Ok(n) => {
                *idle_reads = 0;
                if n != 0 && !peek {
                    self.stat.add_bytes(Direction::Recv, path.kind(), n as u64);
                }
                Ok(Received::Bytes(n))
            }
            Err(RecvError::WouldBlock) => {
                *idle_reads = idle_reads.wrapping_add(1);
                let look = idle_reads.is_multiple_of(SOCKET_CHECK_INTERVAL)
                    || path.is_disconnected()
                    || self.has(FLAG_RX_SHUT)
                    || self.has(FLAG_EPOLL_PROXY);
                if look && let Some(end) = self.end(fd, path) {
                    return end;
                }
                self.proxy.quiet(path, &self.state.flags.0, self.has(FLAG_BROKEN));
                Ok(Received::Nothing(WaitFor::Ring(mark)))
            }
            Err(RecvError::Fault) => Err(Errno::FAULT.into()),
            Err(RecvError::Failed(_)) => Err(self.break_off(fd, path, Direction::Recv)),
        }
    }

    /// The result of a read of an empty ring; `None` if bytes may still arrive.
    fn end(&self, fd: BorrowedFd<'_>, path: &Path) -> Option<io::Result<Received>> {
        if self.has(FLAG_RX_SHUT) {
            return Some(Ok(Received::Bytes(0)));
        }
        // In this order: bytes that arrived before the disconnection are found after it.
        if path.connection_state() == ConnectionState::Open {
            return None;
        }
        if path.bytes_readable() != 0 {
            return Some(Ok(Received::Nothing(WaitFor::More)));
        }
        if path.has_eof() && !path.has_failed() {
            return Some(Ok(Received::Bytes(0)));
        }
        // A peer that ends its stream sends the end on the ring: without it, bytes may be lost.
        Some(Err(self.break_off(fd, path, Direction::Recv)))
    }

    fn wait_for_data(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        wait_for: &WaitFor,
        deadline: Option<Instant>,
        watch: &mut Watch,
        partial: bool,
    ) -> io::Result<()> {
        let left = sys::time_left(deadline);
        if left == Some(Duration::ZERO) {
            return Err(Errno::AGAIN.into());
        }
        let result = match wait_for {
            WaitFor::Ring(mark) => {
                let (flags, stat) = (&self.state.flags.0, Some(&self.stat));
                let woken = (RingWait { path, flags, stat }).sleep(fd, *mark, left, *watch);
                woken.map(|woken| {
                    if woken == Woken::ByDescriptor {
                        path.connection_state();
                        *self.state.idle_reads.0.lock() = SOCKET_CHECK_INTERVAL - 1;
                    }
                })
            }
            WaitFor::More => sleep_for_more(left, *watch),
        };
        watch.after_sleep(result, Restart::of(!partial && deadline.is_none()))
    }
}
