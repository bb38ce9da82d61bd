//! A send that finds the ring full and must not wait.
//!
//! A ring has room for less than the kernel's socket buffers. Most programs wait for room when a
//! send finds none, and lose nothing by that. But some take `EAGAIN` for a peer that reads no more:
//! they drop what they were about to send, or end the connection, where TCP would have taken
//! megabytes. So such a call returns `EAGAIN` only if the program expects it: it has asked for room
//! in its last wait or has just been told that there is none, and the stream has been full before,
//! not long ago. Otherwise the call goes on over TCP.

#![forbid(unsafe_code)]

use crate::accelerate::AcceleratedStream;
use crate::accelerate::send::Blocked;
use crate::accelerate::state::FLAG_ASKS_FOR_ROOM;
use crate::engine::Interest;
use crate::interrupt::Section;
use crate::sys;

impl AcceleratedStream {
    /// Notes that the program waits for the stream, or begins to watch it, and whether for room to
    /// send as well. A send that must not wait may return `EAGAIN` earlier then.
    #[inline]
    pub fn note_wait(&self, asks_for_room: bool) {
        if asks_for_room == self.dirs.has(FLAG_ASKS_FOR_ROOM) {
            return;
        }
        if asks_for_room {
            self.dirs.raise(FLAG_ASKS_FOR_ROOM);
        } else {
            self.dirs.lower(FLAG_ASKS_FOR_ROOM);
        }
    }

    /// Has the next try leave a full ring at once, unless the peer makes room within a moment.
    /// False if the program expects to be told that there is no room, and between hosts, where the
    /// device has to deliver what is on the ring before TCP may be used.
    pub(super) fn spills(&self, blocked: &Blocked) -> bool {
        let (Blocked::Ring(mark), Some(path)) = (blocked, self.path()) else { return false };
        if path.is_remote() || self.expects_full_ring() {
            return false;
        }
        // PERF: a peer that is reading makes room in less time than a move to TCP and back takes.
        let _ = path.spin(Interest::Write, *mark);
        let _section = Section::enter();
        self.dirs.tx.0.lock().full_since = sys::now().checked_sub(path.patience());
        true
    }

    fn expects_full_ring(&self) -> bool {
        let _section = Section::enter();
        let asks_for_room = self.dirs.has(FLAG_ASKS_FOR_ROOM);
        self.dirs.tx.0.lock().full_sends.is_expected(sys::now(), asks_for_room)
    }
}
