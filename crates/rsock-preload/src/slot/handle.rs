//! An in-flight call on a slot.

use super::{Direction, FOR_CHILD, Key, PINNED, Slot, Socket};
use rsock_core::accelerate::{self, FallbackReason, StreamRef};
use rsock_core::closing::{Call, Descriptor};
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rustix::fd::BorrowedFd;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An in-flight call on a slot: keeps the socket alive.
///
/// # Invariants
/// Counted once in the gate of `direction`, under the generation with which the call entered.
#[must_use]
pub(crate) struct Handle {
    pub(super) slot: &'static Slot,
    pub(super) direction: Direction,
    pub(super) index: u32,
    pub(super) fd: i32,
    /// How often the socket's descriptors had been closed when the call began.
    pub(super) seen: u32,
}

impl Handle {
    /// The stream, in a slot that holds one. PERF: a handle whose methods are inlined lies in
    /// registers.
    ///
    /// # Panics
    /// If the slot holds a UDP socket: the table's words keep the two apart.
    #[inline(always)]
    pub(crate) fn stream(&self) -> StreamRef<'_> {
        match self.socket() {
            Socket::Accelerated(stream) => StreamRef::Accelerated(stream),
            Socket::Native(stream) => StreamRef::Native(stream),
            Socket::Udp(_) => unreachable!("a word of the table says which"),
        }
    }

    /// The UDP socket, in a slot that holds one.
    #[inline]
    pub(crate) fn udp(&self) -> Option<&AcceleratedUdp> {
        match self.socket() {
            Socket::Udp(udp) => Some(udp),
            Socket::Accelerated(_) | Socket::Native(_) => None,
        }
    }

    #[inline(always)]
    pub(super) fn socket(&self) -> &Socket {
        let stream = self.slot.shared.socket.load(Ordering::Relaxed);
        // SAFETY: by the invariants of `Slot` and `Handle`: this call is a user of its gate, so the
        // pointer is a live box until the call leaves, and only shared references to it exist.
        unsafe { &*stream }
    }

    /// The descriptor of this call, for immediate use. A use that may sleep takes
    /// [`Self::descriptor`] or [`Self::call`].
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: never -1 (the table has no such entry). The program owns the descriptor; if
        // another thread closes it at this moment, calls on it fail with EBADF or reach its
        // successor, as they would without this library.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The descriptor of this call, with the count by which the core notices that another thread
    /// has closed it.
    #[inline]
    pub(crate) fn descriptor(&self) -> Descriptor<'_> {
        Descriptor::new(self.fd(), self.seen)
    }

    /// This call as the core knows it: it stays with its socket when the descriptor is closed.
    #[inline]
    pub(crate) fn call(&self) -> Call<'_> {
        Call::begin(self.socket().closings(), self.descriptor())
    }

    /// Whether no other call on this socket is in flight.
    pub(crate) fn is_only_call(&self) -> bool {
        self.n_other_calls() == 0
    }

    /// In-flight calls on this socket other than this one.
    fn n_other_calls(&self) -> u64 {
        (self.slot.send.users() + self.slot.recv.users()).saturating_sub(1)
    }

    /// The program is about to close the descriptor of this call, or has done so: the socket stays
    /// open for the other in-flight calls.
    pub(crate) fn keep_for_calls(&self) {
        if self.n_other_calls() == 0 {
            return;
        }
        if let Some(udp) = self.udp() {
            let fd = udp.is_same_socket(self.fd()).then(|| self.fd());
            return udp.closings().keep(fd, || {}, || self.n_other_calls());
        }
        let fd = (self.is_same_socket() != Some(false)).then(|| self.fd());
        self.stream().keep_for_calls(fd, || self.n_other_calls());
    }

    /// Whether this stream is on TCP in both directions and stays there.
    #[inline]
    pub(crate) fn stays_on_tcp(&self) -> bool {
        self.stream().is_plain()
    }

    /// Pins the stream to TCP, unless that has been done.
    pub(crate) fn pin(&self, reason: FallbackReason) {
        if !self.is_pinned() {
            self.stream().pin(self.fd(), reason);
            self.slot.shared.flags.fetch_or(PINNED, Ordering::Relaxed);
        }
    }

    /// Whether [`Self::pin`] has pinned the stream.
    pub(crate) fn is_pinned(&self) -> bool {
        self.slot.shared.flags.load(Ordering::Relaxed) & PINNED != 0
    }

    /// Whether the descriptor still refers to the socket that was adopted: a system call. `None`
    /// where it makes no difference, as for [`StreamRef::is_same_socket`].
    pub(crate) fn is_same_socket(&self) -> Option<bool> {
        self.stream().is_same_socket(self.fd())
    }

    /// Whether both are calls on the same stream.
    pub(crate) fn is_same_stream(&self, other: &Self) -> bool {
        self.index == other.index
    }

    /// The key by which this call entered.
    pub(crate) fn key(&self) -> Key {
        Key { index: self.index, generation: self.slot.gate(self.direction).generation() }
    }

    /// Lets no further call begin, and has the others in flight stop, if they do so soon. All table
    /// entries of the socket must have been claimed before, or calls would take the stream for a
    /// retired one.
    pub(crate) fn pause(&self) -> bool {
        self.slot.send.pause();
        self.slot.recv.pause();
        let has_paused = self.stream().stop_calls(|| self.n_other_calls());
        if !has_paused {
            self.resume();
        }
        has_paused
    }

    /// Ends [`Self::pause`].
    pub(crate) fn resume(&self) {
        self.stream().resume_calls();
        self.slot.send.resume();
        self.slot.recv.resume();
    }

    /// Has the calls that [`Self::pause`] has stopped continue on `proxy`, which has taken the
    /// place of the stream's descriptors.
    pub(crate) fn replace_for_calls(&self, proxy: BorrowedFd<'_>) {
        self.stream().replace_for_calls(proxy, || self.n_other_calls());
    }

    /// Notes that a program which this one is to start inherits the stream: [`Self::is_for_child`].
    pub(crate) fn mark_for_child(&self) {
        self.slot.shared.flags.fetch_or(FOR_CHILD, Ordering::Relaxed);
    }

    /// Whether the program has asked that a program which it is to start inherits this stream.
    pub(crate) fn is_for_child(&self) -> bool {
        self.slot.shared.flags.load(Ordering::Relaxed) & FOR_CHILD != 0
    }

    /// Notes that the `vfork` child `pid` means the stream for the program which it becomes.
    pub(crate) fn note_meant(&self, pid: u32) {
        self.slot.shared.meant_by.store(pid, Ordering::Relaxed);
    }

    /// Whether the `vfork` child `pid` means the stream for the program which it becomes.
    pub(crate) fn is_meant_by(&self, pid: u32) -> bool {
        self.slot.shared.meant_by.load(Ordering::Relaxed) == pid
    }

    /// Counts one more descriptor of this socket. False if its last one is being closed.
    pub(crate) fn add_descriptor(&self) -> bool {
        let more = |n: u32| (n != 0).then_some(n + 1);
        self.slot
            .shared
            .n_descriptors
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Whether the socket has a descriptor beside that of this call, in this process or in another.
    pub(crate) fn has_other_descriptors(&self) -> bool {
        self.slot.shared.n_descriptors.load(Ordering::Acquire) > 1 || self.stream().is_shared()
    }

    /// Counts one descriptor less; returns whether it was the last.
    pub(crate) fn remove_descriptor(&self) -> bool {
        self.slot.shared.n_descriptors.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// As [`accelerate::await_leave`], for the streams of these calls. Those without TCP stay as they
/// are.
pub(crate) fn await_leave(calls: &[Handle], limit: Duration) -> bool {
    let streams = calls.iter().filter_map(|call| match call.stream() {
        StreamRef::Accelerated(stream) => Some((stream, call.fd())),
        StreamRef::Native(_) => None,
    });
    accelerate::await_leave(&streams.collect::<Vec<_>>(), limit)
}

/// The last call that has left a closed gate.
#[must_use]
pub(crate) struct LastCall {
    slot: &'static Slot,
    index: u32,
}

impl LastCall {
    /// Ends the socket, if the other gate is closed and empty as well.
    pub(crate) fn end_socket(self) {
        self.slot.note_gate_closed(self.index);
    }
}

impl Handle {
    /// Ends the call, but for the socket that may end with it.
    #[inline]
    pub(crate) fn leave(self) -> Option<LastCall> {
        ManuallyDrop::new(self).leave_gate()
    }

    /// Leaves the gate, once.
    #[inline]
    fn leave_gate(&self) -> Option<LastCall> {
        let is_last = self.slot.gate(self.direction).leave();
        is_last.then_some(LastCall { slot: self.slot, index: self.index })
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if let Some(last) = self.leave_gate() {
            last.end_socket();
        }
    }
}
