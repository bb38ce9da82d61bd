//! The loop of a receiving call, on a stream of either kind: try, wait, try again.

#![forbid(unsafe_code)]

use crate::accelerate::call_stops::EndsCalls;
use crate::accelerate::receive::Blocked;
use crate::accelerate::tcp_socket::{is_nonblocking, kernel_recv};
use crate::accelerate::time_limit::TimeLimit;
use crate::accelerate::wait_settings::{Questions, WaitSettings};
use crate::closing::Call;
use crate::interrupt::{Restart, Watch};
use crate::iov::with_tail;
use crate::metrics::Direction;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::Timeout;
use std::io::{self, IoSliceMut};
use std::time::Duration;

/// A stream as [`receive`] uses it.
pub(in crate::accelerate) trait Receives: EndsCalls {
    /// Receives what is there, without waiting. The same call has taken `taken` bytes before.
    fn try_recv(
        &self,
        call: &Call<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        taken: usize,
    ) -> Result<usize, Blocked<'_>>;

    /// Whether nothing can follow the bytes that are there: the peer has ended its direction, or
    /// the connection is broken.
    fn has_ended(&self, fd: BorrowedFd<'_>) -> bool;

    /// The number of bytes that can be read now.
    fn count_readable(&self, fd: BorrowedFd<'_>) -> usize;

    /// Does what is due before the call waits, or answers that it would.
    fn before_wait(&self, fd: BorrowedFd<'_>);

    /// Spins for a moment, if the stream does and if the last such call waited: to ask the kernel
    /// whether this one waits takes longer than a peer that answers at once. Returns whether
    /// something has come.
    fn spin_at_first(&self, _blocked: &Blocked<'_>) -> bool {
        false
    }

    /// Whether calls by `fd` return `EAGAIN` instead of waiting.
    fn is_nonblocking(&self, fd: BorrowedFd<'_>) -> bool {
        is_nonblocking(fd)
    }

    /// What is known of how calls wait, before a sleep after `blocked` that ends by itself.
    fn wait_settings(&self, _blocked: &Blocked<'_>) -> Option<&WaitSettings> {
        None
    }

    /// Sleeps until there may be something to receive, for `left` at most.
    fn sleep_for_data(
        &self,
        fd: BorrowedFd<'_>,
        blocked: Blocked<'_>,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()>;

    /// Returns an error that the call is about to report.
    fn note_error(&self, error: io::Error) -> io::Error;
}

/// Receives from `stream` as `recvmsg(2)` does, with `bufs` that have room for `total` bytes, not
/// zero. The same call has received `before` bytes by earlier pieces. A peek with `MSG_TRUNC` only
/// counts bytes, up to `total`, and `bufs` may have less room.
///
/// # Errors
/// As `recvmsg(2)`: `EAGAIN`, `EINTR`, `ECONNRESET`...; `EBADF` if the descriptor was closed and
/// the call could not keep the socket. `EAGAIN` also where a call that has received something ends
/// before an error.
#[inline]
pub(in crate::accelerate) fn receive<S: Receives>(
    stream: &S,
    call: &Call<'_>,
    bufs: &mut [IoSliceMut<'_>],
    total: usize,
    flags: RecvFlags,
    before: usize,
) -> io::Result<usize> {
    let mut watch = Watch::begin();
    let mut questions = Questions::new(TimeLimit::new(Timeout::Recv));
    let mut got = 0;
    let peek = flags.contains(RecvFlags::PEEK);
    let only_counts = flags.contains(RecvFlags::PEEK | RecvFlags::TRUNC);
    let wait_all = flags.contains(RecvFlags::WAITALL);
    // Once between two receives, so that a peer cannot keep a call from its time limit.
    let mut may_spin = !flags.contains(RecvFlags::DONTWAIT);
    let error = loop {
        // Checked before the bytes: what was written before the end is among them.
        let is_last = peek && wait_all && stream.has_ended(call.fd()?);
        let skip = if peek { 0 } else { got };
        let tried = if skip == 0 {
            stream.try_recv(call, bufs, flags, before)
        } else {
            let taken = before + skip;
            with_tail(bufs, skip, usize::MAX, |tail| stream.try_recv(call, tail, flags, taken))
        };
        let blocked = match tried {
            Ok(0) => return Ok(got),
            Ok(n) => {
                if before + got == 0 && !watch.must_end() {
                    // A handler that ran before the first byte made the call start again.
                    watch.restart();
                }
                got = match peek {
                    true if only_counts => n.max(stream.count_readable(call.fd()?)).min(total),
                    true => n,
                    false => got + n,
                };
                may_spin = true;
                if got == total || !wait_all || is_last {
                    return Ok(got);
                }
                if !peek {
                    continue;
                }
                Blocked::Short
            }
            Err(Blocked::Error(e)) => break stream.note_error(e),
            Err(Blocked::Stop) => break Errno::AGAIN.into(),
            // Reported by the next call, as on TCP, if this one has received something.
            Err(Blocked::Reset) if before + got != 0 => break Errno::AGAIN.into(),
            Err(Blocked::Reset) => break stream.report_reset(call.fd()?, Direction::Recv),
            Err(blocked) => blocked,
        };
        let fd = match call.fd() {
            Ok(fd) => fd,
            Err(e) => break e,
        };
        stream.before_wait(fd);
        if std::mem::take(&mut may_spin) && stream.spin_at_first(&blocked) {
            continue;
        }
        if flags.contains(RecvFlags::DONTWAIT) {
            break Errno::AGAIN.into();
        }
        let settings = stream.wait_settings(&blocked);
        let sleep = match questions.begin_sleep(fd, settings, || stream.is_nonblocking(fd)) {
            Ok(sleep) => sleep,
            Err(e) => break e,
        };
        if let Some(stops) = stream.call_stops().filter(|stops| stops.is_asked()) {
            drop(blocked);
            if stops.stop() {
                return recv_on_proxy(call, bufs, got, flags);
            }
            continue;
        }
        let slept = stream.sleep_for_data(fd, blocked, sleep.longest, watch);
        if slept.is_err() || watch.has_fired() {
            questions.note_restart();
        }
        let waited =
            watch.after_sleep(slept, Restart::of(before + got == 0 && sleep.left.is_none()));
        if let Err(e) = waited {
            break e;
        }
    };
    if got != 0 { Ok(got) } else { Err(error) }
}

/// Continues a receiving call that has received `got` bytes, on the proxy.
fn recv_on_proxy(
    call: &Call<'_>,
    bufs: &mut [IoSliceMut<'_>],
    got: usize,
    flags: RecvFlags,
) -> io::Result<usize> {
    let skip = if flags.contains(RecvFlags::PEEK) { 0 } else { got };
    let received =
        with_tail(bufs, skip, usize::MAX, |tail| call.last(|fd| kernel_recv(fd, tail, flags)));
    match received.and_then(|received| Ok(received?)) {
        Ok(n) => Ok(skip + n),
        Err(_) if got != 0 => Ok(got),
        Err(e) => Err(e),
    }
}
