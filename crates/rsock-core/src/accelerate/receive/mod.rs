//! The receiving direction.

mod call_loop;
mod parts;
mod read;
mod shortcut;
mod wait;

pub(super) use call_loop::{Receives, receive};
pub(super) use parts::{count_bytes, receive_nothing};
pub(super) use wait::{RingWait, Woken, sleep_for_more, sleep_with_bell};

use crate::accelerate::ask::Subject;
use crate::accelerate::kernel_only_waiter::KernelOnlyWaiter;
use crate::accelerate::kernel_spin::recv_before_sleep;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_BROKEN, FLAG_RESET, FLAG_RX_PLAIN, Receiving};
use crate::accelerate::tcp_socket::{has_ended, kernel_recv};
use crate::accelerate::wait_settings::WaitSettings;
use crate::accelerate::{AcceleratedStream, is_search_call};
use crate::closing::{Call, Descriptor};
use crate::interrupt::{Section, Watch};
use crate::iov::with_tail;
use crate::metrics::Direction;
use rsock_proto::switch::FlagConditions;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};
use std::time::Duration;

/// Why a try to receive ended without a byte, and what to wait for.
pub(super) enum Blocked<'a> {
    /// Nothing on TCP, and the ring is not in use: it cannot end the wait.
    Tcp(#[expect(dead_code, reason = "held while the thread sleeps")] KernelOnlyWaiter<'a>),
    /// Nothing on TCP, but a message may come on the ring; the mark was taken before.
    Both(u32),
    /// Nothing on the ring; the mark was taken before.
    Ring(u32),
    /// Fewer bytes to peek at than asked for. No descriptor shows that more have come: look again
    /// soon.
    Short,
    /// The peer has closed and left bytes unread on the ring. The first call that has received
    /// nothing reports this.
    Reset,
    /// A call that has received something ends here, as on TCP: see
    /// [`must_stop`](crate::accelerate::tcp_socket::must_stop).
    Stop,
    /// It failed.
    Error(io::Error),
}

impl AcceleratedStream {
    /// As `recvmsg(2)` without control data; `MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT` and
    /// `MSG_TRUNC` as on TCP.
    ///
    /// # Errors
    /// As `recvmsg(2)`: `EAGAIN`, `EINTR`, `ECONNRESET`...
    pub fn recv(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let descriptor = Descriptor::new(fd, self.closings.count());
        if flags.is_empty()
            && !self.is_served_by_kernel(FLAG_RX_PLAIN)
            && let [buf] = bufs
            && let Some(n) = self.recv_at_once(descriptor, buf, true)
        {
            return Ok(n);
        }
        self.recv_by(descriptor, bufs, flags)
    }

    /// As [`Self::recv`], by a descriptor that other threads may close meanwhile: see
    /// [`StreamRef::keep_for_calls`](crate::accelerate::StreamRef::keep_for_calls).
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
        let is_plain = self.is_served_by_kernel(FLAG_RX_PLAIN);
        let kernel_only = RecvFlags::OOB | RecvFlags::ERRQUEUE;
        if !is_plain
            && !flags.intersects(kernel_only | RecvFlags::WAITALL)
            && self.has_arrivals()
            && let Some(Ok(n)) = self.recv_by_shortcut(descriptor, bufs, flags)
        {
            return Ok(n);
        }
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if is_plain || flags.intersects(kernel_only) {
            let n = kernel_recv(descriptor.named(), bufs, flags)
                .map_err(|errno| self.note_error(errno.into()))?;
            // Another thread may have broken the connection off meanwhile: then zero bytes do not
            // mean the end of the stream.
            if n == 0 && total != 0 && self.has(FLAG_BROKEN) {
                return Err(Errno::CONNRESET.into());
            }
            return Ok(n);
        }
        if total == 0 {
            // The kernel shows an urgent byte that a peek skips.
            if self.is_at_mark(descriptor.named()) {
                return Ok(0);
            }
            let is_nonblocking = || self.may_not_wait(descriptor.named(), Direction::Recv);
            return receive_nothing(flags, is_nonblocking, |bufs, look| {
                self.recv_by(descriptor, bufs, look)
            });
        }
        let call = Call::begin(&self.closings, descriptor);
        if let Some(done) = self.early_recv(&call, bufs, flags) {
            return done;
        }
        receive(self, &call, bufs, total, flags, 0)
    }

    /// The first calls of a connection, before it searches for its peer: the kernel alone, as
    /// without rsock, and at the same price. The thread counts as a kernel-only waiter meanwhile,
    /// so the peer is not invited.
    fn early_recv(
        &self,
        call: &Call<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Option<io::Result<usize>> {
        let is_searching = || self.search_began.get().is_some() || self.path.get().is_some();
        if is_searching() {
            return None;
        }
        let _waiter = {
            let _section = Section::enter();
            let mut rx = self.dirs.rx.0.lock();
            if is_search_call(rx.calls + 1) || is_searching() {
                return None;
            }
            rx.calls += 1;
            KernelOnlyWaiter::new(&self.dirs.shared.0.kernel_only_waiters, &*rx)
        };
        let received = Self::recv_soon(call, bufs, flags).map_or_else(
            || call.last(|fd| kernel_recv(fd, bufs, flags)).and_then(|n| Ok(n?)),
            |soon| Ok(soon?),
        );
        let n = match received {
            Ok(n) => n,
            Err(e) => return Some(Err(e)),
        };
        if !flags.contains(RecvFlags::PEEK) {
            let _section = Section::enter();
            let _ = self.dirs.rx.0.lock().switch.took_tcp(n as u64);
        }
        Some(Ok(n))
    }

    /// Receives what comes to the kernel within a moment. `None` if the call has to wait.
    fn recv_soon(
        call: &Call<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Option<Result<usize, Errno>> {
        if flags.intersects(RecvFlags::DONTWAIT | RecvFlags::WAITALL) {
            return None;
        }
        let fd = || call.fd().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::BADF));
        recv_before_sleep(fd, |fd| kernel_recv(fd, bufs, flags | RecvFlags::DONTWAIT))
    }

    /// As [`Receives::try_recv`], by what the switch answers.
    fn try_recv_by_switch(
        &self,
        call: &Call<'_>,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        taken: usize,
    ) -> Result<usize, Blocked<'_>> {
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        let path = self.path();
        if path.is_none() {
            let mut calls = rx.calls;
            self.count_call(fd, &mut calls);
            rx.calls = calls;
        }
        let conditions = FlagConditions::NONE
            .with_if(FlagConditions::HAS_RECEIVED, taken != 0)
            .with_if(FlagConditions::SOCKET_CHECK_DUE, self.has(FLAG_RESET));
        let mut subject = Subject::new(fd, path).with(conditions);
        let got = self.receive_once(&mut subject, rx, bufs, flags)?;
        if flags.contains(RecvFlags::PEEK) || path.is_none() || got == 0 {
            return Ok(got);
        }
        Ok(self.recv_behind_moves(call, rx, bufs, flags, got))
    }

    /// Receives the bytes behind a move between TCP and the ring, which belong to the same read as
    /// the `got` bytes that have been received. Returns the number of all of them.
    #[inline(never)]
    fn recv_behind_moves(
        &self,
        call: &Call<'_>,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        mut got: usize,
    ) -> usize {
        let Ok(fd) = call.fd() else { return got };
        let mut subject = Subject::new(fd, self.path()).with(FlagConditions::HAS_RECEIVED);
        while got < bufs.iter().map(|b| b.len()).sum() && self.reads_on(&mut subject, rx) {
            subject = subject.with(FlagConditions::CHANNEL_CHANGED);
            let more = with_tail(bufs, got, usize::MAX, |tail| {
                self.receive_once(&mut subject, rx, tail, flags)
            });
            match more {
                Ok(more) if more != 0 => got += more,
                _ => break,
            }
        }
        got
    }

    /// Whether a call with these conditions that has read the ring ends there: the sender has not
    /// left it.
    #[inline]
    fn ends_on_ring(&self, rx: &Receiving, path: &Path, call: FlagConditions) -> bool {
        let now = call.with(self.dirs.conditions());
        rx.switch.read_ends_on_ring(now, path.messages())
    }

    /// Whether a read that has received something goes on behind a move between TCP and the ring.
    fn reads_on(&self, subject: &mut Subject<'_>, rx: &mut Receiving) -> bool {
        if subject.path.is_some_and(|path| self.ends_on_ring(rx, path, subject.call)) {
            return false;
        }
        let mut seen = self.begin(rx, subject);
        let asked = self.ask(rx, &mut seen, subject, |switch, seen| switch.read_continues(seen));
        asked.unwrap_or(false)
    }
}

impl Receives for AcceleratedStream {
    fn try_recv(
        &self,
        call: &Call<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        taken: usize,
    ) -> Result<usize, Blocked<'_>> {
        if let Some(done) = self.recv_by_shortcut(call.descriptor(), bufs, flags) {
            return done;
        }
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        self.try_recv_by_switch(call, &mut rx, bufs, flags, taken)
    }

    fn has_ended(&self, fd: BorrowedFd<'_>) -> bool {
        has_ended(fd)
    }

    fn count_readable(&self, fd: BorrowedFd<'_>) -> usize {
        self.bytes_readable(fd).unwrap_or(0)
    }

    fn before_wait(&self, fd: BorrowedFd<'_>) {
        self.answer_leave(fd);
    }

    #[inline]
    fn spin_at_first(&self, blocked: &Blocked<'_>) -> bool {
        matches!(blocked, Blocked::Ring(mark) if self.first_spin(Direction::Recv, *mark))
    }

    fn is_nonblocking(&self, fd: BorrowedFd<'_>) -> bool {
        self.may_not_wait(fd, Direction::Recv)
    }

    #[inline]
    fn wait_settings(&self, blocked: &Blocked<'_>) -> Option<&WaitSettings> {
        matches!(blocked, Blocked::Ring(_)).then_some(&self.recv_settings)
    }

    fn sleep_for_data(
        &self,
        fd: BorrowedFd<'_>,
        blocked: Blocked<'_>,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        match (&blocked, self.path()) {
            (Blocked::Ring(mark), Some(path)) => self.wait_for_ring(fd, path, *mark, left, watch),
            (Blocked::Both(mark), Some(path)) => {
                let slept = sleep_with_bell(fd, libc::POLLIN, path, *mark, left, watch);
                if matches!(slept, Ok(true)) {
                    self.pin_if_device_removed(path);
                }
                slept.map(drop)
            }
            (Blocked::Short, _) => sleep_for_more(left, watch),
            _ => self.sleep_on_socket(fd, libc::POLLIN, left, watch),
        }
    }

    /// After a reset the ring may still be open for a moment: a send must not write there any more.
    fn note_error(&self, error: io::Error) -> io::Error {
        if error.raw_os_error() == Some(libc::ECONNRESET) {
            self.dirs.raise(FLAG_RESET);
        }
        error
    }
}

impl From<io::Error> for Blocked<'_> {
    fn from(e: io::Error) -> Self {
        Self::Error(e)
    }
}
