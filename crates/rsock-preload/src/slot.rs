//! Type-stable slots that hold the adopted sockets of the descriptor table.
//!
//! A call enters a slot through one of two gates, one for each direction, so that a thread that
//! sends and one that receives share no cache line. A slot is never unmapped, so a late access to a
//! slot that holds another socket by now is harmless: the generation in the gate tells. Guards that
//! a [`Socket`] is dropped once, after the last call has left both gates.

mod free_list;
mod gate;

use crate::chunked::{Chunked, Zeroed};
use free_list::FreeList;
use gate::{Gate, OpenGates};
use rsock_core::accelerate::{AcceleratedStream, FallbackReason};
use rsock_core::closing::{Call, Closings, Descriptor};
use rsock_core::datagram::kernel_udp::Udp;
use rsock_core::interrupt;
use rustix::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Slots per mapped chunk, and chunks. Their product is the number of sockets that one process can
/// have adopted at a time.
const PER_CHUNK: usize = 32;
const CHUNKS: usize = 2048;

static SLOTS: Chunked<Slot, PER_CHUNK, CHUNKS> = Chunked::new();
/// The number of slots that have been handed out at least once.
static FRESH: AtomicU32 = AtomicU32::new(0);
static FREE: FreeList = FreeList(AtomicU64::new(0));
/// Slots whose last call left inside a signal handler: the next [`insert`] drops their sockets.
static UNDROPPED: FreeList = FreeList(AtomicU64::new(0));

/// The direction of a call, which selects the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// An adopted socket.
#[expect(clippy::large_enum_variant, reason = "boxed as a whole, and most are streams")]
pub(crate) enum Socket {
    Stream(AcceleratedStream),
    Udp(Box<Udp>),
}

impl Socket {
    #[inline]
    fn closings(&self) -> &Closings {
        match self {
            Self::Stream(stream) => stream.closings(),
            Self::Udp(udp) => udp.closings(),
        }
    }
}

/// One use of one slot: what the descriptor table stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// # Invariants
/// While either gate is open or has users, `shared.socket` points to a live boxed [`Socket`].
#[repr(C, align(128))]
pub(crate) struct Slot {
    shared: Shared,
    send: Gate,
    recv: Gate,
}

/// Written when a socket is inserted, pinned, duplicated or retired: read-mostly on the data path.
#[repr(C, align(128))]
struct Shared {
    socket: AtomicPtr<Socket>,
    /// Descriptors that refer to this socket.
    n_descriptors: AtomicU32,
    open_gates: OpenGates,
    flags: AtomicU32,
    /// The next free slot, as `index + 1`.
    next: AtomicU32,
}

/// The program has asked that a program which it is to start inherits this stream.
const FOR_CHILD: u32 = 2;
/// The stream is pinned to TCP.
const PINNED: u32 = 1;

// SAFETY: atomics only; a zeroed gate has generation 0, which no key has.
unsafe impl Zeroed for Slot {}

/// An in-flight call on a slot: keeps the socket alive.
///
/// # Invariants
/// Counted once in the gate of `direction`, under the generation with which the call entered.
#[must_use]
pub(crate) struct Handle {
    slot: &'static Slot,
    direction: Direction,
    index: u32,
    fd: i32,
    /// How often the socket's descriptors had been closed when the call began.
    seen: u32,
}

impl Slot {
    fn gate(&self, direction: Direction) -> &Gate {
        match direction {
            Direction::Send => &self.send,
            Direction::Recv => &self.recv,
        }
    }

    fn note_gate_closed(&self, index: u32) {
        if !self.shared.open_gates.close_one() {
            return;
        }
        if interrupt::is_in_handler() {
            // The handler may have interrupted the allocator.
            UNDROPPED.push(index, &self.shared.next);
            return;
        }
        self.clear(index);
    }

    /// Drops the socket of a retired slot, and frees the slot.
    fn clear(&self, index: u32) {
        let socket = self.shared.socket.swap(ptr::null_mut(), Ordering::AcqRel);
        if !socket.is_null() {
            // SAFETY: `insert` stored what `Box::into_raw` gave; both gates are closed and empty,
            // and the swap lets only one thread take the pointer.
            drop(unsafe { Box::from_raw(socket) });
        }
        FREE.push(index, &self.shared.next);
    }
}

/// Puts a socket into a slot, with one descriptor that refers to it. `None` when all slots are in
/// use.
pub(crate) fn insert(socket: Socket) -> Option<Key> {
    let next = |index: u32| SLOTS.get(index as usize).map(|slot| &slot.shared.next);
    while let Some(index) = UNDROPPED.pop(next) {
        SLOTS.get(index as usize)?.clear(index);
    }
    let index = FREE.pop(next).or_else(take_fresh)?;
    let slot = SLOTS.get_or_map(index as usize)?;
    let generation = slot.send.generation().checked_add(1).unwrap_or(UNUSED + 1);
    slot.shared.n_descriptors.store(1, Ordering::Relaxed);
    slot.shared.open_gates.set(2);
    slot.shared.flags.store(0, Ordering::Relaxed);
    // INVARIANT: a live box, before the gates open.
    slot.shared.socket.store(Box::into_raw(Box::new(socket)), Ordering::Relaxed);
    slot.send.open(generation);
    slot.recv.open(generation);
    Some(Key { index, generation })
}

/// Begins a call on descriptor `fd` in the slot of `key`. `None` if that socket has been retired.
#[inline]
pub(crate) fn begin_call(key: Key, direction: Direction, fd: i32) -> Option<Handle> {
    let slot = SLOTS.get(key.index as usize)?;
    if !slot.gate(direction).enter(key.generation) {
        return None;
    }
    // INVARIANT: counted by the gate above, uncounted in `Handle::drop`.
    let mut handle = Handle { slot, direction, index: key.index, fd, seen: 0 };
    handle.seen = handle.socket().closings().count();
    Some(handle)
}

/// Ends a socket: no call can begin any more, and the last one that leaves drops the socket. Called
/// once for each key, by the thread that removed the last descriptor.
pub(crate) fn retire(key: Key) {
    let Some(slot) = SLOTS.get(key.index as usize) else { return };
    for direction in [Direction::Send, Direction::Recv] {
        if slot.gate(direction).close() {
            slot.note_gate_closed(key.index);
        }
    }
}

/// In a forked child, whose only thread is in no call: forgets the calls that the parent's other
/// threads were in, so that nothing waits for them.
pub(crate) fn forget_calls() {
    for index in 0..FRESH.load(Ordering::Relaxed) {
        let Some(slot) = SLOTS.get(index as usize) else { continue };
        let generation = slot.send.generation();
        if generation == UNUSED {
            // Another thread of the parent was about to insert a socket.
            continue;
        }
        slot.send.forget_calls();
        slot.recv.forget_calls();
        if let Some(handle) = begin_call(Key { index, generation }, Direction::Send, NO_DESCRIPTOR)
        {
            handle.socket().closings().forget_calls();
        }
    }
}

/// The generation of a slot that has never held a socket.
const UNUSED: u32 = 0;

/// The descriptor of a handle that stands for no call of the program.
const NO_DESCRIPTOR: i32 = i32::MAX;

impl Handle {
    /// The stream, in a slot that holds one.
    ///
    /// # Panics
    /// If the slot holds a UDP socket: the table's words keep the two apart.
    #[inline]
    pub(crate) fn stream(&self) -> &AcceleratedStream {
        match self.socket() {
            Socket::Stream(stream) => stream,
            Socket::Udp(_) => unreachable!("a word of the table says which"),
        }
    }

    /// The UDP socket, in a slot that holds one.
    #[inline]
    pub(crate) fn udp(&self) -> Option<&Udp> {
        match self.socket() {
            Socket::Udp(udp) => Some(udp),
            Socket::Stream(_) => None,
        }
    }

    #[inline]
    fn socket(&self) -> &Socket {
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
        let is_same = match self.socket() {
            Socket::Stream(stream) => stream.is_same_socket(self.fd()) != Some(false),
            Socket::Udp(udp) => udp.is_same_socket(self.fd()),
        };
        let fd = is_same.then(|| self.fd());
        match self.socket() {
            Socket::Stream(stream) => stream.keep_for_calls(fd, || self.n_other_calls()),
            Socket::Udp(udp) => udp.closings().keep(fd, || {}, || self.n_other_calls()),
        }
    }

    /// Whether this stream is on TCP in both directions and stays there.
    #[inline]
    pub(crate) fn stays_on_tcp(&self) -> bool {
        self.stream().is_plain()
    }

    /// Pins the stream to TCP, unless that has been done.
    pub(crate) fn pin(&self, reason: FallbackReason) {
        if self.slot.shared.flags.load(Ordering::Relaxed) & PINNED == 0 {
            self.stream().pin(self.fd(), reason);
            self.slot.shared.flags.fetch_or(PINNED, Ordering::Relaxed);
        }
    }

    /// Whether the descriptor still refers to the socket that was adopted: a system call. `None`
    /// where it makes no difference, as for [`AcceleratedStream::is_same_socket`].
    pub(crate) fn is_same_socket(&self) -> Option<bool> {
        self.stream().is_same_socket(self.fd())
    }

    /// Whether `fd` refers to the socket that was adopted, as far as is known: a system call.
    pub(crate) fn is_socket_of(&self, fd: BorrowedFd<'_>) -> bool {
        self.stream().is_same_socket(fd) == Some(true)
    }

    /// Whether both are calls on the same stream.
    pub(crate) fn is_same_stream(&self, other: &Self) -> bool {
        self.index == other.index
    }

    /// The key by which this call entered.
    pub(crate) fn key(&self) -> Key {
        Key { index: self.index, generation: self.slot.gate(self.direction).generation() }
    }

    /// Lets no further call begin, if this one is the only call in flight. All table entries of the
    /// socket must have been claimed before, or calls would take the stream for a retired one.
    pub(crate) fn pause(&self) -> bool {
        let inside = self.slot.send.pause() + self.slot.recv.pause();
        if inside != 1 {
            self.resume();
        }
        inside == 1
    }

    /// Ends [`Self::pause`].
    pub(crate) fn resume(&self) {
        self.slot.send.resume();
        self.slot.recv.resume();
    }

    /// Notes that a program which this one is to start inherits the stream: [`Self::is_for_child`].
    pub(crate) fn mark_for_child(&self) {
        self.slot.shared.flags.fetch_or(FOR_CHILD, Ordering::Relaxed);
    }

    /// Whether the program has asked that a program which it is to start inherits this stream.
    pub(crate) fn is_for_child(&self) -> bool {
        self.slot.shared.flags.load(Ordering::Relaxed) & FOR_CHILD != 0
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

    /// Counts one descriptor less; returns whether it was the last.
    pub(crate) fn remove_descriptor(&self) -> bool {
        self.slot.shared.n_descriptors.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if self.slot.gate(self.direction).leave() {
            self.slot.note_gate_closed(self.index);
        }
    }
}

fn take_fresh() -> Option<u32> {
    let room = |n: u32| ((n as usize) < PER_CHUNK * CHUNKS).then_some(n + 1);
    FRESH.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
}
