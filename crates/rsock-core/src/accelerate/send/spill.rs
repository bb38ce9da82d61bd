//! A send that finds the ring full and must not wait.
//!
//! A ring has room for less than the kernel's socket buffers. Most programs wait for room when a
//! send finds none, and lose nothing by that. But some take `EAGAIN` for a peer that reads no more:
//! they drop what they were about to send, or end the connection, where TCP would have taken
//! megabytes. So such a call returns `EAGAIN` only if the program expects it: it asks for room when
//! it waits, or was told lately that there is none, and the stream has been full before, not long
//! ago. Otherwise the call goes on over TCP.

#![forbid(unsafe_code)]

use crate::accelerate::AcceleratedStream;
use crate::accelerate::send::Blocked;
use crate::accelerate::state::{FLAG_POLLED_FOR_ROOM, FLAG_WAITS_FOR_ROOM, FLAG_WATCHED_FOR_ROOM};
use crate::engine::Interest;
use crate::interrupt::Section;
use crate::sys;

impl AcceleratedStream {
    /// Notes whether a `poll` or `select` that names the stream asks for room to send. Then a send
    /// that must not wait may return `EAGAIN` earlier.
    #[inline]
    pub fn note_poll(&self, asks_for_room: bool) {
        self.note_if(FLAG_POLLED_FOR_ROOM, asks_for_room);
    }

    /// As [`Self::note_poll`], whether an epoll set watches the stream for room to send.
    pub fn note_watch(&self, asks_for_room: bool) {
        self.note_if(FLAG_WATCHED_FOR_ROOM, asks_for_room);
    }

    #[inline]
    fn note_if(&self, flag: u32, holds: bool) {
        if holds == self.dirs.has(flag) {
            return;
        }
        if holds {
            self.dirs.raise(flag);
        } else {
            self.dirs.lower(flag);
        }
    }

    /// Notes that the caller waits for room after each send that finds none, so that such a send
    /// need not go on over TCP: an asynchronous runtime.
    pub fn note_waits_for_room(&self) {
        self.dirs.raise(FLAG_WAITS_FOR_ROOM);
    }

    /// Whether a call that must not wait, has sent nothing and is `blocked` is to leave a full
    /// ring. Not if the program expects to be told that there is no room; and not between hosts,
    /// where the device has to deliver what is on the ring before TCP may be used.
    pub(super) fn is_to_spill(&self, blocked: &Blocked) -> bool {
        let (Blocked::Ring(mark), Some(path)) = (blocked, self.path()) else { return false };
        let is_patient = self.dirs.has(FLAG_WAITS_FOR_ROOM);
        if is_patient || path.is_remote() || self.expects_full_ring() {
            return false;
        }
        // PERF: a peer that is reading makes room in less time than a move to TCP and back takes.
        let _ = path.spin_at_first(Interest::Write, *mark);
        true
    }

    fn expects_full_ring(&self) -> bool {
        let _section = Section::enter();
        let asks_for_room = self.dirs.has(FLAG_POLLED_FOR_ROOM | FLAG_WATCHED_FOR_ROOM);
        self.dirs.tx.0.lock().full_sends.is_expected(sys::now(), asks_for_room)
    }
}
