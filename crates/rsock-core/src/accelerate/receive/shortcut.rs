//! The short way of most receives: one buffer, and a ring of the soft device from which the next
//! bytes come.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::accelerate::receive::Blocked;
use crate::accelerate::state::FLAG_RX_WAITS;
use crate::closing::{Call, Descriptor};
use crate::interrupt::Section;
use rsock_proto::switch::FlagConditions;
use rustix::net::RecvFlags;
use std::io::IoSliceMut;
use std::slice;

impl AcceleratedStream {
    /// Receives to `buf`, if that has room, what is on the ring, if there is nothing else to do. A
    /// call that `may_spin` also takes what comes there within the [moment] that a blocking call
    /// spins first; it never sleeps. `None`: nothing was received, and [`Self::recv_by`] tells why.
    ///
    /// [moment]: Self::first_spin
    #[inline]
    #[must_use]
    pub fn recv_at_once(
        &self,
        descriptor: Descriptor<'_>,
        buf: &mut IoSliceMut<'_>,
        may_spin: bool,
    ) -> Option<usize> {
        let bufs = slice::from_mut(buf);
        self.try_recv_by_shortcut(descriptor, bufs, RecvFlags::empty(), may_spin, false)?.ok()
    }

    /// Whether something has arrived on a ring of the soft device, as far as a look without a lock
    /// tells.
    #[inline]
    pub(super) fn has_arrivals(&self) -> bool {
        self.path().and_then(Path::soft).is_some_and(|stream| stream.has_arrivals())
    }

    /// Receives from the ring to one buffer, or finds the ring empty, if the switch needs no
    /// observation for that. `None`: nothing was tried, and the caller asks the switch.
    pub(in crate::accelerate) fn recv_by_shortcut(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Option<Result<usize, Blocked<'_>>> {
        self.try_recv_by_shortcut(descriptor, bufs, flags, false, true)
    }

    /// As [`Self::recv_by_shortcut`]. Where nothing is there, it first spins for a moment if it
    /// `may_spin`. A read that finds nothing counts as one if it `is_counted`: a call that tries
    /// twice makes one read.
    #[inline(always)]
    fn try_recv_by_shortcut(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        may_spin: bool,
        is_counted: bool,
    ) -> Option<Result<usize, Blocked<'_>>> {
        let path = self.path()?;
        let stream = path.soft()?;
        let [buf] = bufs else { return None };
        if buf.is_empty() || flags.contains(RecvFlags::PEEK) {
            return None;
        }
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        if !self.closings.is_open(descriptor) {
            return None;
        }
        // Taken before the try, for the wait if there is nothing.
        let mark = stream.mark();
        let done = self.receive_by_shortcut(path, &mut rx, mark, || {
            stream.try_recv_to(buf, |hold_back| {
                let has_come =
                    may_spin && self.has(FLAG_RX_WAITS) && stream.spin_for_arrival(hold_back);
                if has_come {
                    self.dirs.note_answer();
                }
                has_come
            })
        })?;
        if is_counted && done.is_err() {
            rx.count_idle();
        }
        match done {
            Ok(got) if got < buf.len() && !self.ends_on_ring(&rx, path, FlagConditions::NONE) => {
                let call = Call::begin(&self.closings, descriptor);
                Some(Ok(self.recv_behind_moves(&call, &mut rx, bufs, flags, got)))
            }
            done => Some(done),
        }
    }
}
