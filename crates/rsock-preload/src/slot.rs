//! Type-stable slots that hold the adopted sockets of the descriptor table.
//!
//! A call enters a slot through one of two gates, one for each direction, so that a thread that
//! sends and one that receives share no cache line. A slot is never unmapped, so a late access to a
//! slot that holds another socket by now is harmless: the generation in the gate tells. Guards that
//! a [`Socket`] is dropped once, after the last call has left both gates.

mod free_list;
mod gate;
mod handle;

pub(crate) use handle::{Handle, await_leave};

use crate::chunked::{Chunked, Zeroed};
use free_list::FreeList;
use gate::{Gate, OpenGates};
use rsock_core::accelerate::{AcceleratedStream, NativeStream};
use rsock_core::closing::Closings;
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rsock_core::interrupt;
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

/// An adopted socket. PERF: every call asks several times which kind it is, so that the answer has
/// a word of its own.
#[repr(u32)]
pub(crate) enum Socket {
    Accelerated(AcceleratedStream),
    Native(NativeStream),
    Udp(Box<AcceleratedUdp>),
}

impl Socket {
    #[inline]
    fn closings(&self) -> &Closings {
        match self {
            Self::Accelerated(stream) => stream.closings(),
            Self::Native(stream) => stream.closings(),
            Self::Udp(udp) => udp.closings(),
        }
    }

    /// In a forked child, whose only thread is in no call.
    fn forget_calls(&self) {
        match self {
            Self::Accelerated(stream) => stream.forget_calls(),
            Self::Native(_) | Self::Udp(_) => self.closings().forget_calls(),
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
    /// The `vfork` child that means the stream for the program which it becomes; 0: none.
    meant_by: AtomicU32,
    /// The next free slot, as `index + 1`.
    next: AtomicU32,
}

/// The program has asked that a program which it is to start inherits this stream.
const FOR_CHILD: u32 = 2;

/// The stream is pinned to TCP.
const PINNED: u32 = 1;

// SAFETY: atomics only; a zeroed gate has generation 0, which no key has.
unsafe impl Zeroed for Slot {}

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
    slot.shared.meant_by.store(0, Ordering::Relaxed);
    // INVARIANT: a live box, before the gates open.
    slot.shared.socket.store(Box::into_raw(Box::new(socket)), Ordering::Relaxed);
    slot.send.open(generation);
    slot.recv.open(generation);
    Some(Key { index, generation })
}

/// Begins a call on descriptor `fd` in the slot of `key`. `None` if that socket has been retired.
#[inline(always)]
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
            handle.socket().forget_calls();
        }
    }
}

/// The generation of a slot that has never held a socket.
const UNUSED: u32 = 0;

/// The descriptor of a handle that stands for no call of the program.
const NO_DESCRIPTOR: i32 = i32::MAX;

fn take_fresh() -> Option<u32> {
    let room = |n: u32| ((n as usize) < PER_CHUNK * CHUNKS).then_some(n + 1);
    FRESH.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
}
