//! Members that the library watches: how the watch begins, looks, and ends.

mod begin;
mod end;
mod look;

pub(super) use look::Found;

use super::mistake::is_mistaken;
use super::{EventSet, State, stream_of};
use crate::own_fds::Tells;
use rsock_core::accelerate::StreamRef;
use std::sync::atomic::Ordering;

const EDGE: u32 = libc::EPOLLET.cast_unsigned();
const ONE_SHOT: u32 = libc::EPOLLONESHOT.cast_unsigned();

impl State {
    pub(super) fn note_candidate(&mut self, number: u32) {
        if let Some(member) = self.members.get_mut(number)
            && !std::mem::replace(&mut member.is_candidate, true)
        {
            if is_mistaken!(UnfairOrder) {
                return self.candidates.push_front(number);
            }
            self.candidates.push_back(number);
        }
    }

    /// The socket watch tells something of a member.
    pub(super) fn note_socket_event(&mut self, (number, tells): (u32, Tells)) {
        match tells {
            Tells::Socket => {}
            Tells::Doorbell => return self.note_candidate(number),
            Tells::Connection => {
                self.note_connection(number);
                return self.note_candidate(number);
            }
        }
        let mut all = vec![number];
        if self.members.have_shared_numbers
            && let Some(member) = self.members.get(number)
        {
            all = self.members.all_of(member.fd);
        }
        for number in all {
            if let Some(ring) = self.members.get_mut(number).and_then(|m| m.ring.as_mut()) {
                ring.has_socket_event = true;
                self.note_candidate(number);
            }
        }
    }

    /// The device or the peer's host may have ended the connection of a member.
    fn note_connection(&mut self, number: u32) {
        let Some(handle) = self.members.get(number).and_then(|m| stream_of(m.fd)) else { return };
        if let StreamRef::Accelerated(stream) = handle.stream() {
            stream.note_connection(handle.fd());
        }
        if let Some(ring) = self.members.get_mut(number).and_then(|m| m.ring.as_mut()) {
            ring.has_changed = true;
        }
    }

    /// Has threads look again that sleep on the set, on a set that it is in, or in `poll` over one
    /// of these. The last two are not counted as sleepers.
    pub(super) fn wake_all(&self, set: &EventSet) {
        if self.is_polled || set.n_sleepers.load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// Rings the doorbell of the set, if it has one.
    pub(super) fn ring(&self) {
        if let Some(own_fds) = &self.own_fds {
            own_fds.ready.ring();
        }
    }
}
