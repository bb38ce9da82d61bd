//! What a datagram socket is waited for: its UDP socket, and the queue beside it.

use super::Datagram;
use crate::link::Link;
use crate::ring::Mark;
use crate::waiting::{Side, Waits};
use rustix::event::PollFlags;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
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
        // Only UDP ever has no room.
        if side == Side::Write {
            return Poll::Pending;
        }
        match link.watch(mark) {
            // Nothing can come but by UDP.
            Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Unsupported => Poll::Pending,
            other => other,
        }
    }

    /// There is always a link.
    fn poll_socket(&self, _: &mut Context<'_>, _: Side) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    /// What comes past UDP is no room.
    fn is_spun_for(&self, side: Side) -> bool {
        side == Side::Read
    }

    fn look(&self, interest: Interest) -> io::Result<Ready> {
        let mut ready = Ready::EMPTY;
        if interest.is_readable() && self.socket.events(PollFlags::IN).contains(PollFlags::IN) {
            ready |= Ready::READABLE;
        }
        if interest.is_writable() {
            // A datagram that finds no room says so.
            ready |= Ready::WRITABLE;
        }
        if ready.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(ready) }
    }
}
