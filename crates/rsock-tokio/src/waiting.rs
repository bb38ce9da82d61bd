//! How tasks wait: the one loop of trying and waiting that streams and datagram sockets share.
//!
//! Above `link`, below `shared` and `datagram`, which say what there is to wait for ([`Waits`]).
//!
//! A wait follows one order everywhere: take a mark, try, park (be found by whoever wakes), then look
//! at each source of events; whatever has happened since the try means trying again. Readers and
//! writers by `poll` methods have a place each in the wakers; any number of futures wait beside them,
//! each with a number of its own, and take themselves out when they are dropped.

use crate::link::Link;
use crate::ring::Mark;
use crate::wakers::Waiter;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{Interest, Ready};
use tokio::task::coop;

/// What tasks wait for.
pub(crate) trait Waits {
    /// What tells of all that a socket of the runtime's does not; nothing where there is no more.
    fn link(&self) -> Option<&Arc<Link>>;

    /// Looks at each source of events; the caller has parked. Ready when it is time for another try.
    fn poll_sources(&self, link: &Arc<Link>, side: Side, mark: Mark) -> Poll<io::Result<()>>;

    /// Where there is no link: waits for the socket as `who`.
    fn poll_socket(&self, cx: &mut Context<'_>, side: Side, who: Waiter) -> Poll<io::Result<()>>;

    /// `who` waits no more.
    fn leave(&self, who: Waiter) {
        if let Some(link) = self.link() {
            link.unpark(who);
        }
    }

    /// Whether looking for input may help who waits for `side`.
    fn is_spun_for(&self, _: Side) -> bool {
        true
    }

    /// What of `interest` holds now.
    ///
    /// # Errors
    /// `WouldBlock` if nothing does.
    fn look(&self, interest: Interest) -> io::Result<Ready>;

    /// Tries `io` until it answers something other than that it would block; waits as `who`.
    fn poll_io<R>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        who: Waiter,
        mut io: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        // The runtime's budget: what is always there must not keep other tasks from running.
        let coop = ready!(coop::poll_proceed(cx));
        let link = self.link();
        if let Some(link) = link {
            link.unpark(who);
        }
        for _ in 0..ROUNDS {
            let mark = link.map(|link| link.ring.mark());
            match io() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    coop.made_progress();
                    return Poll::Ready(done);
                }
            }
            let event = match (link, mark) {
                (Some(link), Some(mark)) => self.poll_event(cx, link, side, who, mark),
                // Trying has told the runtime already that the socket is not ready.
                _ => self.poll_socket(cx, side, who),
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
        link: &Arc<Link>,
        side: Side,
        who: Waiter,
        mark: Mark,
    ) -> Poll<io::Result<()>> {
        if self.is_spun_for(side) && link.spin(mark) {
            return Poll::Ready(Ok(()));
        }
        link.park(who, cx.waker());
        let event = self.poll_sources(link, side, mark);
        if event.is_ready() {
            // Others who wait may have been about to look for the very event that is used up here.
            link.unpark(who);
            link.wakers.wake_all();
        }
        event
    }

    /// As [`readiness`], in the place of the task that reads or writes.
    fn poll_ready(&self, cx: &mut Context<'_>, side: Side) -> Poll<io::Result<()>> {
        self.poll_io(cx, side, side.task(), || self.look(side.interest())).map_ok(drop)
    }
}

/// Waits as a future of its own, for `io` to answer something other than that it would block.
pub(crate) async fn retry<R>(
    what: &impl Waits,
    side: Side,
    mut io: impl FnMut() -> io::Result<R>,
) -> io::Result<R> {
    let waiter = Guard::new(what);
    poll_fn(|cx| what.poll_io(cx, side, waiter.who, &mut io)).await
}

/// Waits as a future of its own, without transferring anything; says what of `interest` holds.
pub(crate) async fn readiness(what: &impl Waits, interest: Interest) -> io::Result<Ready> {
    let (input, output) = (Guard::new(what), Guard::new(what));
    let look = || what.look(interest);
    poll_fn(|cx| {
        if interest.is_readable() {
            let polled = what.poll_io(cx, Side::Read, input.who, look);
            if polled.is_ready() || !interest.is_writable() {
                return polled;
            }
        }
        what.poll_io(cx, Side::Write, output.who, look)
    })
    .await
}

/// A waiter that leaves when dropped.
struct Guard<'a, W: Waits> {
    what: &'a W,
    who: Waiter,
}

impl<'a, W: Waits> Guard<'a, W> {
    fn new(what: &'a W) -> Self {
        Self { what, who: Waiter::other() }
    }
}

impl<W: Waits> Drop for Guard<'_, W> {
    fn drop(&mut self) {
        self.what.leave(self.who);
    }
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

impl Side {
    pub(crate) fn interest(self) -> Interest {
        match self {
            Self::Read => Interest::READABLE,
            Self::Write => Interest::WRITABLE,
        }
    }

    /// Its bit among those that the runtime was asked to watch.
    pub(crate) fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
        }
    }

    /// Who waits for it by `poll` methods.
    pub(crate) fn task(self) -> Waiter {
        match self {
            Self::Read => Waiter::Reader,
            Self::Write => Waiter::Writer,
        }
    }
}

/// Tries again after a signal handler ran.
pub(crate) fn again<R>(mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match f() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Rounds of trying and waiting in one poll, before other tasks get their turn.
const ROUNDS: u32 = 8;
