//! The loop of a sending call, on a stream of either kind: try, wait, try again.

#![forbid(unsafe_code)]

use crate::accelerate::call_stops::EndsCalls;
use crate::accelerate::send::{Blocked, PIECES};
use crate::accelerate::tcp_socket::{has_error, is_nonblocking, kernel_send};
use crate::accelerate::time_limit::TimeLimit;
use crate::closing::Call;
use crate::interrupt::{Restart, Watch};
use crate::iov::Rest;
use crate::metrics::Direction;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt::Timeout;
use std::io::{self, IoSlice};
use std::time::Duration;

/// A stream as [`send`] uses it.
pub(in crate::accelerate) trait Sends: EndsCalls {
    /// Sends what there is room for, without waiting.
    fn try_send(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked>;

    /// What a call does that found no room and must not wait. It has sent `sent` bytes before.
    fn when_full(&self, fd: BorrowedFd<'_>, blocked: &Blocked, sent: usize) -> WhenFull;

    /// For a call that found no room, must not wait and has sent nothing: whether it is to
    /// [spill](Self::try_spill).
    fn is_to_spill(&self, _blocked: &Blocked) -> bool {
        false
    }

    /// As [`Self::try_send`], but leaves a full ring for TCP.
    fn try_spill(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked> {
        self.try_send(call, rest, flags)
    }

    /// Spins for a moment, if the stream does and if the last call that found no room waited: to
    /// ask the kernel whether this one waits takes longer than a peer that reads at once. Returns
    /// whether there may be room.
    fn spin_at_first(&self, _blocked: &Blocked) -> bool {
        false
    }

    /// Whether calls by `fd` return `EAGAIN` instead of waiting.
    fn is_nonblocking(&self, fd: BorrowedFd<'_>) -> bool {
        is_nonblocking(fd)
    }

    /// Waits until there may be room, for `left` at most.
    fn wait_for_room(
        &self,
        fd: BorrowedFd<'_>,
        blocked: &Blocked,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()>;
}

/// What a call does that found no room and must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::accelerate) enum WhenFull {
    /// It returns `EAGAIN`, or what it has sent.
    Return,
    /// It tries again: there is room by now.
    TryAgain,
    /// It waits all the same.
    Wait,
}

/// How a call waits: whether it may, for how long, and when a signal handler ends it. The kernel
/// looks at the socket when a call begins: what is set while it waits is for later ones.
pub(super) struct Waits {
    watch: Watch,
    limit: TimeLimit,
    /// The answer of the kernel, once it was asked.
    may_wait: Option<bool>,
    /// Whether the call has sent something.
    is_begun: bool,
}

impl Waits {
    /// Of a call that begins now.
    pub(super) fn new() -> Self {
        let limit = TimeLimit::new(Timeout::Send);
        Self { watch: Watch::begin(), limit, may_wait: None, is_begun: false }
    }

    /// Whether a call with `flags` may wait. Asks whether it `is_nonblocking` once.
    pub(super) fn may_wait(
        &mut self,
        flags: SendFlags,
        is_nonblocking: impl FnOnce() -> bool,
    ) -> bool {
        let ask = || !flags.contains(SendFlags::DONTWAIT) && !is_nonblocking();
        *self.may_wait.get_or_insert_with(ask)
    }

    /// The first bytes have been sent.
    fn note_first_bytes(&mut self) {
        self.is_begun = true;
        if !self.watch.must_end() {
            // A handler that ran before them made the call start again.
            self.watch.restart();
        }
    }

    /// Calls `sleep` once, with the time that is left.
    ///
    /// # Errors
    /// `EAGAIN` if the time is over, `EINTR` if a handler ends the call, those of `sleep`.
    pub(super) fn wait(
        &mut self,
        fd: BorrowedFd<'_>,
        sleep: impl FnOnce(Option<Duration>, Watch) -> io::Result<()>,
    ) -> io::Result<()> {
        let left = self.limit.left(fd)?;
        let slept = sleep(left, self.watch);
        if slept.is_err() || self.watch.has_fired() {
            // If the call goes on, it does as if it began now.
            self.may_wait = None;
            self.limit.restart();
        }
        self.watch.after_sleep(slept, Restart::of(!self.is_begun && left.is_none()))
    }
}

/// Sends `rest` on `stream` as `sendmsg(2)` does. There must be a byte to send.
///
/// # Errors
/// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...; `EBADF` if the descriptor was
/// closed and the call could not keep the socket.
#[inline]
pub(in crate::accelerate) fn send<S: Sends>(
    stream: &S,
    call: &Call<'_>,
    mut rest: Rest<'_>,
    flags: SendFlags,
) -> io::Result<usize> {
    let mut waits = Waits { is_begun: rest.is_begun, ..Waits::new() };
    let mut sent = 0;
    // Once between two sends, so that a peer cannot keep a call from its time limit.
    let mut may_spin = !flags.contains(SendFlags::DONTWAIT);
    let (mut may_spill, mut spills) = (!rest.is_begun, false);
    let error = loop {
        let tried = match std::mem::take(&mut spills) {
            true => stream.try_spill(call, &rest, flags),
            false => stream.try_send(call, &rest, flags),
        };
        let blocked = match tried {
            Ok(n) => {
                sent += n;
                rest.advance(n);
                if rest.len == 0 {
                    return Ok(sent);
                }
                if !waits.is_begun {
                    waits.note_first_bytes();
                }
                (may_spin, may_spill) = (true, false);
                continue;
            }
            Err(Blocked::Error(e)) => break e,
            Err(Blocked::Stop) => return Ok(sent),
            // Reported by the next call, as on TCP, if this one has sent something.
            Err(Blocked::Reset) if rest.is_begun => return Ok(sent),
            Err(Blocked::Reset) => break stream.report_reset(call.fd()?, Direction::Send),
            Err(blocked) => blocked,
        };
        let fd = match call.fd() {
            Ok(fd) => fd,
            Err(e) => break e,
        };
        if std::mem::take(&mut may_spin) && stream.spin_at_first(&blocked) {
            continue;
        }
        if !waits.may_wait(flags, || stream.is_nonblocking(fd)) {
            if std::mem::take(&mut may_spill) && stream.is_to_spill(&blocked) {
                spills = true;
                continue;
            }
            match stream.when_full(fd, &blocked, sent) {
                WhenFull::Return => break Errno::AGAIN.into(),
                WhenFull::TryAgain => continue,
                WhenFull::Wait => {}
            }
        }
        if let Some(stops) = stream.call_stops().filter(|stops| stops.is_asked()) {
            if stops.stop() {
                return send_on_proxy(call, rest, sent, flags);
            }
            continue;
        }
        let sleep = |left, watch| stream.wait_for_room(fd, &blocked, left, watch);
        if let Err(e) = waits.wait(fd, sleep) {
            break e;
        }
    };
    if sent != 0 { Ok(sent) } else { Err(error) }
}

/// Continues a sending call that has sent `sent` bytes, on the proxy.
pub(super) fn send_on_proxy(
    call: &Call<'_>,
    mut rest: Rest<'_>,
    mut sent: usize,
    flags: SendFlags,
) -> io::Result<usize> {
    while rest.len != 0 {
        if rest.is_begun && call.last(has_error).unwrap_or(true) {
            break;
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let done = call.last(|fd| kernel_send(fd, &pieces[..n], flags));
        match done.and_then(|done| Ok(done?)) {
            Ok(n) => {
                sent += n;
                rest.advance(n);
            }
            Err(_) if sent != 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(sent)
}
