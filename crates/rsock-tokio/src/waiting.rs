//! How tasks wait: the one loop of trying and waiting that streams and datagram sockets share.
//!
//! Above `waiter`, below `stream` and `datagram`, which say what there is to wait for
//! ([`Waitable`]).
//!
//! Every wait follows one order: take a mark, try, park (enter the wakers), then check each source
//! of events; whatever has happened since the try means trying again. Tasks that read or write by
//! `poll` methods have one place each in the wakers; any number of futures wait beside them, each
//! in a place of its own, which it leaves when it is dropped.

use crate::source::Mark;
use crate::waiter::Waiter;
use crate::wakers::WakerKey;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, Ready};
use tokio::task::coop;

/// What tasks can wait for.
pub(crate) trait Waitable {
    /// The waiter for all that the kernel's socket does not show; `None` if it shows everything.
    fn waiter(&self) -> Option<&Arc<Waiter>>;

    /// Checks each source of events; the caller has parked. Ready when it is time for another try.
    fn poll_sources(
        &self,
        waiter: &Arc<Waiter>,
        direction: Direction,
        mark: Mark,
    ) -> Poll<io::Result<()>>;

    /// Without a waiter: waits for the kernel's socket, in the place of `key`.
    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        key: WakerKey,
    ) -> Poll<io::Result<()>>;

    /// Takes the task of `key` out of the wakers.
    fn unregister(&self, key: WakerKey) {
        if let Some(waiter) = self.waiter() {
            waiter.unpark(key);
        }
    }

    /// Whether polling the source may shorten a wait for `direction`.
    fn spins_for(&self, _direction: Direction) -> bool {
        true
    }

    /// Which of `interest` hold now.
    ///
    /// # Errors
    /// `WouldBlock` if none does.
    fn current_readiness(&self, interest: Interest) -> io::Result<Ready>;

    /// Tries `io` until it returns something other than `WouldBlock`; waits in the place of `key`.
    fn poll_io<R>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        key: WakerKey,
        mut io: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        // The task's cooperative budget: a stream that always has input must not keep other tasks
        // from running.
        let coop = ready!(coop::poll_proceed(cx));
        let waiter = self.waiter();
        if let Some(waiter) = waiter {
            waiter.unpark(key);
        }
        for _ in 0..ROUNDS {
            let mark = waiter.map(|waiter| waiter.source.mark());
            match io() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    coop.made_progress();
                    return Poll::Ready(done);
                }
            }
            let event = match (waiter, mark) {
                (Some(waiter), Some(mark)) => self.poll_event(cx, waiter, direction, key, mark),
                // By the try the runtime knows already that the socket is not ready.
                _ => self.poll_socket(cx, direction, key),
            };
            if let Err(e) = ready!(event) {
                return Poll::Ready(Err(e));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// After a try that would have blocked: ready when it is time for another.
    fn poll_event(
        &self,
        cx: &mut Context<'_>,
        waiter: &Arc<Waiter>,
        direction: Direction,
        key: WakerKey,
        mark: Mark,
    ) -> Poll<io::Result<()>> {
        if self.spins_for(direction) && waiter.spin(mark) {
            return Poll::Ready(Ok(()));
        }
        waiter.park(key, cx.waker());
        let event = self.poll_sources(waiter, direction, mark);
        if event.is_ready() {
            // This consumed an event that the other tasks may wait for, too.
            waiter.unpark(key);
            waiter.wakers.wake_all();
        }
        event
    }

    /// As [`readiness`], in the place of the task that reads or writes by `poll` methods.
    fn poll_ready(&self, cx: &mut Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        let check = || self.current_readiness(direction.interest());
        self.poll_io(cx, direction, direction.task(), check).map_ok(drop)
    }
}

/// A future that tries `io` until it returns something other than `WouldBlock`.
pub(crate) async fn retry<R>(
    target: &impl Waitable,
    direction: Direction,
    mut io: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let place = FuturePlace::new(target);
    poll_fn(|cx| target.poll_io(cx, direction, place.key, &mut io)).await
}

/// A future that waits until some of `interest` hold, and transfers nothing.
pub(crate) async fn readiness(target: &impl Waitable, interest: Interest) -> io::Result<Ready> {
    let (input, output) = (FuturePlace::new(target), FuturePlace::new(target));
    let check = || target.current_readiness(interest);
    poll_fn(|cx| {
        if is_about_input(interest) {
            let polled = target.poll_io(cx, Direction::Read, input.key, check);
            if polled.is_ready() || !interest.is_writable() {
                return polled;
            }
        }
        target.poll_io(cx, Direction::Write, output.key, check)
    })
    .await
}

/// Whether a wait for `interest` ends by what ends a wait for input: an error shows as input.
pub(crate) fn is_about_input(interest: Interest) -> bool {
    interest.is_readable() || interest.is_priority() || interest.is_error()
}

/// A future's place in the wakers, which it leaves when dropped.
struct FuturePlace<'a, W: Waitable> {
    target: &'a W,
    key: WakerKey,
}

impl<'a, W: Waitable> FuturePlace<'a, W> {
    fn new(target: &'a W) -> Self {
        Self { target, key: WakerKey::new_future() }
    }
}

impl<W: Waitable> Drop for FuturePlace<'_, W> {
    fn drop(&mut self) {
        self.target.unregister(self.key);
    }
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Input, or the end of the stream.
    Read,
    /// Room for output.
    Write,
}

impl Direction {
    pub(crate) fn interest(self) -> Interest {
        match self {
            Self::Read => Interest::READABLE,
            Self::Write => Interest::WRITABLE,
        }
    }

    /// Its bit in [`Wakers::request`](crate::wakers::Wakers::request).
    pub(crate) fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
        }
    }

    /// The place of the task that waits for it by `poll` methods.
    pub(crate) fn task(self) -> WakerKey {
        match self {
            Self::Read => WakerKey::Reader,
            Self::Write => WakerKey::Writer,
        }
    }
}

/// Repeats `f` while a signal handler interrupts it.
pub(crate) fn retry_interrupted<R>(mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match f() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Rounds of trying and waiting in one poll, before other tasks get their turn.
const ROUNDS: u32 = 8;
