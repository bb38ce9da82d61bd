//! How tasks wait for a datagram socket: for its UDP socket, and for its queues in shared memory
//! and on RDMA devices.

use super::Datagram;
use crate::source::Mark;
use crate::waiter::Waiter;
use crate::waiting::{Direction, Waitable};
use crate::wakers::WakerKey;
use rustix::event::PollFlags;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{Interest, Ready};

/// Time between two checks for room on a device.
const ROOM_INTERVAL: Duration = Duration::from_micros(100);

impl Waitable for Datagram {
    fn waiter(&self) -> Option<&Arc<Waiter>> {
        Some(&self.waiter)
    }

    fn poll_sources(
        &self,
        waiter: &Arc<Waiter>,
        direction: Direction,
        mark: Mark,
    ) -> Poll<io::Result<()>> {
        if waiter.wakers.request(direction.bit()) {
            let mut all = waiter.context();
            let event = match direction {
                Direction::Read => self.udp.poll_read_ready(&mut all),
                Direction::Write => self.udp.poll_write_ready(&mut all),
            };
            if let Poll::Ready(event) = event {
                waiter.wakers.cancel_request(direction.bit());
                // Before the next try: what comes after this is a new event.
                event?.clear_ready();
                return Poll::Ready(Ok(()));
            }
        }
        if direction == Direction::Read && self.socket.has_unannounced_packets() {
            return Poll::Ready(Ok(()));
        }
        if direction == Direction::Write {
            let Some(after) = self.socket.room_retry_after() else {
                // The device has had room since the try, or it is the UDP socket that has none.
                let has_room = waiter.source.mark() != mark;
                return if has_room { Poll::Ready(Ok(())) } else { Poll::Pending };
            };
            // While there is input, an armed doorbell rings at once and does not show room.
            let has_input = self.socket.has_input();
            let after = if has_input { after.min(ROOM_INTERVAL) } else { after };
            if after.is_zero() || waiter.poll_retry(after)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if has_input {
                return Poll::Pending;
            }
        }
        let event = waiter.wait(mark);
        // The device may have reported, while the doorbell was being armed, that it has sent
        // something; that rings no doorbell.
        if event.is_pending() && waiter.source.has_changed(mark) {
            return Poll::Ready(Ok(()));
        }
        event
    }

    /// Never called: there is a waiter.
    fn poll_socket(&self, _: &mut Context<'_>, _: Direction, _: WakerKey) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    /// What comes through the queues is input, not room.
    fn spins_for(&self, direction: Direction) -> bool {
        direction == Direction::Read
    }

    fn current_readiness(&self, interest: Interest) -> io::Result<Ready> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, interest.is_readable());
        events.set(PollFlags::OUT, interest.is_writable());
        let found = self.socket.events(events);
        self.waiter.wake_for_new_queue();
        let mut ready = Ready::EMPTY;
        if found.contains(PollFlags::IN) {
            ready |= Ready::READABLE;
        }
        if found.contains(PollFlags::OUT) {
            ready |= Ready::WRITABLE;
        }
        if ready.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(ready) }
    }
}
