//! Calls in progress on a stream that is handed off: each stops between two tries, where it holds
//! no lock and no byte, and continues on the socket that has taken the stream's place.
//!
//! Without this a thread that waits for room, say, would keep the stream where it is, and the
//! program that gets the descriptor would miss what lies on the ring.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::send::PIECES;
use crate::accelerate::tcp_socket::{kernel_recv, kernel_send};
use crate::closing::{Call, wake_calls_until};
use crate::interrupt::{Section, Watch};
use crate::iov::{Rest, with_tail};
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Pause between two checks of a call that has stopped.
const PAUSE: Duration = Duration::from_micros(100);

/// What calls in progress have to do.
#[derive(Debug, Default)]
pub(in crate::accelerate) struct CallStops {
    /// [`GO_ON`], [`STOP`] or [`REPLACED`].
    state: AtomicU32,
    /// Calls that have stopped.
    n_stopped: AtomicU32,
}

const GO_ON: u32 = 0;
/// Calls stop until this changes.
const STOP: u32 = 1;
/// The stream belongs to a relay, and a proxy has taken its place in this process.
const REPLACED: u32 = 2;

impl CallStops {
    /// Whether a proxy has taken the stream's place in this process.
    #[inline]
    pub(in crate::accelerate) fn is_replaced(&self) -> bool {
        self.state.load(Ordering::Relaxed) == REPLACED
    }

    /// Whether a call has to stop, or is to continue on the proxy.
    #[inline]
    pub(in crate::accelerate) fn is_asked(&self) -> bool {
        self.state.load(Ordering::Acquire) != GO_ON
    }

    /// Stops while a handoff is under way. The caller holds no lock and waits nowhere. Returns
    /// whether a proxy has taken the stream's place.
    #[cold]
    pub(in crate::accelerate) fn stop(&self) -> bool {
        // A handler of the program that leaves this by `longjmp` would stay counted.
        let _section = Section::enter();
        self.n_stopped.fetch_add(1, Ordering::AcqRel);
        while self.state.load(Ordering::Acquire) == STOP {
            let _ = sys::sleep(&mut [], Some(PAUSE), None, Watch::begin());
        }
        self.n_stopped.fetch_sub(1, Ordering::AcqRel);
        self.is_replaced()
    }

    fn set(&self, state: u32) {
        self.state.store(state, Ordering::Release);
    }

    /// In a forked child: the thread that asked, and those that have stopped, are its parent's.
    fn forget(&self) {
        if self.state.load(Ordering::Relaxed) == STOP {
            self.set(GO_ON);
        }
        self.n_stopped.store(0, Ordering::Relaxed);
    }
}

impl AcceleratedStream {
    /// Has the calls in progress stop, as many as `others` says. Returns whether all of them have:
    /// then nothing uses the stream until [`Self::resume_calls`] or [`Self::replace_for_calls`].
    /// The caller lets no further call begin.
    #[must_use]
    pub fn stop_calls(&self, others: impl Fn() -> u64) -> bool {
        if others() == 0 {
            return true;
        }
        self.call_stops.set(STOP);
        let have_stopped = || {
            if let Some(path) = self.path() {
                path.wake_waiters();
            }
            others() <= u64::from(self.call_stops.n_stopped.load(Ordering::Acquire))
        };
        let have_stopped = wake_calls_until(have_stopped);
        if !have_stopped {
            self.resume_calls();
        }
        have_stopped
    }

    /// Lets the calls that have stopped go on as if nothing had been.
    pub fn resume_calls(&self) {
        if self.call_stops.is_asked() {
            self.call_stops.set(GO_ON);
        }
    }

    /// Has the calls that have stopped, as many as `others` says, continue on `proxy`, which has
    /// taken the place of the stream's descriptors.
    pub fn replace_for_calls(&self, proxy: BorrowedFd<'_>, others: impl Fn() -> u64) {
        let replaced = || self.call_stops.set(REPLACED);
        if others() == 0 {
            return replaced();
        }
        self.closings.keep(Some(proxy), replaced, others);
    }

    /// To be called in a forked child: its only thread is in no call.
    pub fn forget_calls(&self) {
        self.closings.forget_calls();
        self.call_stops.forget();
    }
}

/// Continues a receiving call that has received `got` bytes, on the proxy.
pub(in crate::accelerate) fn recv_on_proxy(
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

/// Continues a sending call that has sent `sent` bytes, on the proxy.
pub(in crate::accelerate) fn send_on_proxy(
    call: &Call<'_>,
    mut rest: Rest<'_>,
    mut sent: usize,
    flags: SendFlags,
) -> io::Result<usize> {
    while rest.len != 0 {
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
