//! The short way of most receives: one buffer, and a ring of the soft device from which the next
//! bytes come.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::accelerate::receive::Blocked;
use crate::closing::{Call, Descriptor};
use crate::interrupt::Section;
use rsock_proto::switch::FlagConditions;
use rustix::net::RecvFlags;
use std::io::IoSliceMut;

impl AcceleratedStream {
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
        let done = self.receive_by_shortcut(path, &mut rx, mark, || stream.try_recv_to(buf))?;
        match done {
            Ok(got) if got < buf.len() && !self.ends_on_ring(&rx, path, FlagConditions::NONE) => {
                let call = Call::begin(&self.closings, descriptor);
                Some(Ok(self.recv_behind_moves(&call, &mut rx, bufs, flags, got)))
            }
            done => Some(done),
        }
    }
}
