//! How tasks wait for a datagram socket.
//!
//! As `shared`, whose order it keeps: try, park (be found by whoever wakes), then look at the UDP
//! socket and at the queue; whatever has happened since the try means another.

use super::Datagram;
use crate::link::Link;
use crate::shared::{Shared, Side};
use crate::wakers::Waiter;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use tokio::task::coop;

/// Rounds of trying and waiting in one poll, before other tasks get their turn.
const ROUNDS: u32 = 8;

/// A waiter that leaves when dropped.
pub(super) struct Guard<'a> {
    link: &'a Link,
    pub(super) who: Waiter,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.link.unpark(self.who);
    }
}

impl Datagram {
    pub(super) fn guard(&self) -> Guard<'_> {
        Guard { link: &self.link, who: Shared::waiter() }
    }

    /// Waits as a future of its own, for `io` to answer something other than that it would block.
    pub(super) async fn retry<R>(
        &self,
        side: Side,
        mut io: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let waiter = self.guard();
        poll_fn(|cx| self.poll_io(cx, side, waiter.who, &mut io)).await
    }

    /// Tries `io` until it answers something other than that it would block; waits as `who`.
    pub(super) fn poll_io<R>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        who: Waiter,
        mut io: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        let coop = ready!(coop::poll_proceed(cx));
        self.link.unpark(who);
        for _ in 0..ROUNDS {
            match io() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    coop.made_progress();
                    return Poll::Ready(done);
                }
            }
            if let Err(e) = ready!(self.poll_event(cx, side, who)) {
                return Poll::Ready(Err(e));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// After a try that would have blocked: ready when it is time for another.
    fn poll_event(&self, cx: &mut Context<'_>, side: Side, who: Waiter) -> Poll<io::Result<()>> {
        let mark = self.link.ring.mark();
        if side == Side::Read && self.link.spin(mark) {
            return Poll::Ready(Ok(()));
        }
        self.link.park(who, cx.waker());
        let event = self.poll_sources(side);
        if event.is_ready() {
            // Others who wait may have been about to look for the very event that is used up here.
            self.link.unpark(who);
            self.link.wakers.wake_all();
        }
        event
    }

    /// Looks at the UDP socket, and at the queue; the caller has parked.
    fn poll_sources(&self, side: Side) -> Poll<io::Result<()>> {
        let wakers = &self.link.wakers;
        if wakers.watch(side.bit()) {
            let mut everyone = self.link.context();
            let news = match side {
                Side::Read => self.udp.poll_read_ready(&mut everyone),
                Side::Write => self.udp.poll_write_ready(&mut everyone),
            };
            if let Poll::Ready(news) = news {
                wakers.unwatch(side.bit());
                // Before the next try: what comes after it is news again.
                news?.clear_ready();
                return Poll::Ready(Ok(()));
            }
        }
        // Only UDP ever has no room.
        if side == Side::Write {
            return Poll::Pending;
        }
        match self.link.watch(self.link.ring.mark()) {
            // Nothing can come but by UDP.
            Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Unsupported => Poll::Pending,
            other => other,
        }
    }
}
