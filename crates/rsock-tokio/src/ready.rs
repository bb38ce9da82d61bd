//! Waiting for readiness without transferring anything: `readable`, `writable`, `ready`.
//!
//! Any number of such futures may wait on one stream, beside its reader and its writer; each has a
//! number in the wakers and takes itself out when it is dropped.

use crate::shared::{Shared, Side};
use crate::wakers::Waiter;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use tokio::io::{Interest, Ready};

/// A waiter that leaves when dropped.
struct Guard<'a> {
    shared: &'a Shared,
    who: Waiter,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.shared.leave(self.who);
    }
}

impl Shared {
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let input = Guard { shared: self, who: Self::waiter() };
        let output = Guard { shared: self, who: Self::waiter() };
        let look = || match self.is_ready(interest)? {
            (false, false) => Err(io::ErrorKind::WouldBlock.into()),
            (read, write) => {
                let mut ready = Ready::EMPTY;
                ready |= if read { Ready::READABLE } else { Ready::EMPTY };
                ready |= if write { Ready::WRITABLE } else { Ready::EMPTY };
                Ok(ready)
            }
        };
        poll_fn(|cx| {
            if interest.is_readable() {
                let polled = self.poll_io(cx, Side::Read, input.who, look);
                if polled.is_ready() || !interest.is_writable() {
                    return polled;
                }
            }
            self.poll_io(cx, Side::Write, output.who, look)
        })
        .await
    }

    /// As `ready`, in the place of the task that reads or writes.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>, side: Side) -> Poll<io::Result<()>> {
        let look = || match self.is_ready(side.interest())? {
            (false, false) => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        };
        self.poll_io(cx, side, side.task(), look)
    }

    /// Waits as a future of its own, for `io` to answer something other than that it would block.
    pub(crate) async fn retry<R>(
        &self,
        side: Side,
        mut io: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        let waiter = Guard { shared: self, who: Self::waiter() };
        poll_fn(|cx| self.poll_io(cx, side, waiter.who, &mut io)).await
    }
}
