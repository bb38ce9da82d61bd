//! What a datagram socket is waited for: its UDP socket, and the queues beside it, in shared memory and on
//! RDMA devices.

use super::Datagram;
use crate::link::Link;
use crate::ring::Mark;
use crate::waiting::{Side, Waits};
use crate::wakers::Waiter;
use rustix::event::PollFlags;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{Interest, Ready};

impl Waits for Datagram {
    fn link(&self) -> Option<&Arc<Link>> {
        Some(&self.link)
    }

    fn poll_sources(&self, link: &Arc<Link>, side: Side, mark: Mark) -> Poll<io::Result<()>> {
        if link.wakers.watch(side.bit()) {
            let mut everyone = link.context();
            let news = match side {
                Side::Read => self.udp.poll_read_ready(&mut everyone),
                Side::Write => self.udp.poll_write_ready(&mut everyone),
            };
            if let Poll::Ready(news) = news {
                link.wakers.unwatch(side.bit());
                // Before the next try: what comes after it is news again.
                news?.clear_ready();
                return Poll::Ready(Ok(()));
            }
        }
        if side == Side::Write {
            let Some(patience) = self.socket.patience() else {
                // There was room since the try, or it is UDP that has none.
                let has_room = link.ring.mark() != mark;
                return if has_room { Poll::Ready(Ok(())) } else { Poll::Pending };
            };
            // While there is input a doorbell would ring for that, and tell nothing of room.
            let has_input = self.socket.has_input();
            let patience = if has_input { patience.min(GLANCE) } else { patience };
            if patience.is_zero() || link.wait_at_most(patience)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if has_input {
                return Poll::Pending;
            }
        }
        let watched = link.watch(mark);
        // What was sent may have been found out while a doorbell was armed, and rings none then.
        if watched.is_pending() && link.ring.has_changed(mark) {
            return Poll::Ready(Ok(()));
        }
        watched
    }

    /// There is always a link.
    fn poll_socket(&self, _: &mut Context<'_>, _: Side, _: Waiter) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    /// What comes past UDP is no room.
    fn is_spun_for(&self, side: Side) -> bool {
        side == Side::Read
    }

    fn look(&self, interest: Interest) -> io::Result<Ready> {
        let mut ready = Ready::EMPTY;
        if interest.is_readable() {
            let events = self.socket.events(PollFlags::IN);
            self.link.note_reach();
            if events.contains(PollFlags::IN) {
                ready |= Ready::READABLE;
            }
        }
        // A datagram that finds no room in the UDP socket says so.
        if interest.is_writable()
            && self.socket.patience().is_none_or(|patience| patience.is_zero())
        {
            ready |= Ready::WRITABLE;
        }
        if ready.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(ready) }
    }
}

/// Time between two looks for room on a device.
const GLANCE: Duration = Duration::from_micros(100);
