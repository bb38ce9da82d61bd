//! The short way of most sends: few buffers, a ring of the soft device that has room for all of
//! them, and nothing that is due.
//!
//! PERF: a `send` of 64 bytes takes about 780 instructions, and 1,450 without this (callgrind).

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_RESET, Sending};
use crate::closing::Descriptor;
use crate::engine::QpStream;
use crate::interrupt::Section;
use crate::sys;
use rsock_verbs::soft::Soft;
use std::io::IoSlice;
use std::{mem, slice};

impl AcceleratedStream {
    /// Sends all of `buf`, which has at least one byte, on the ring, if there is room for it and
    /// nothing else to do. Never waits. False: nothing was sent, and [`Self::send_by`] tells why.
    #[inline]
    #[must_use]
    pub fn send_at_once(&self, descriptor: Descriptor<'_>, buf: &IoSlice<'_>) -> bool {
        self.send_by_shortcut(descriptor, slice::from_ref(buf), buf.len())
    }

    /// Sends all of `bufs`, which have `len` bytes together and at least one, on the ring, if the
    /// switch needs no observation for that. False: nothing was sent, and the caller asks the
    /// switch.
    #[inline]
    pub(in crate::accelerate) fn send_by_shortcut(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        len: usize,
    ) -> bool {
        let Some(path @ Path::Soft(soft)) = self.path() else { return false };
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        let now = (!self.is_answered(&mut tx, &soft.stream)).then(sys::tick);
        if !self.closings.is_open(descriptor)
            || now.is_some_and(|now| self.is_socket_check_due(&tx, path, now))
        {
            return false;
        }
        self.poll_messages_in_turn(&mut tx, path);
        let messages = soft.stream.messages();
        if !tx.switch.writes_ring(self.dirs.conditions(), messages)
            || !soft.stream.try_send_whole(bufs, len)
        {
            return false;
        }
        // PERF: after the send, which the peer may wait for.
        tx.socket_checked_at = now.unwrap_or_else(sys::tick);
        self.sent_on_ring(path, &mut tx, len);
        true
    }

    /// Whether the peer has sent something since the last send, as far as receives tell that had to
    /// wait for it, and nothing after that, such as its end. It was there after the last send, so
    /// that the next one need not check the socket.
    #[inline]
    fn is_answered(&self, tx: &mut Sending, stream: &QpStream<Soft>) -> bool {
        let n = self.dirs.n_answers();
        n != mem::replace(&mut tx.answers_seen, n) && stream.is_quiet() && !self.has(FLAG_RESET)
    }
}
