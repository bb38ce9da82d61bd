//! Type-stable slots that hold the twins of the descriptor table, and its UDP sockets.
//!
//! A call takes a slot by one of two gates, one for each direction, so that a thread that sends and
//! one that receives touch no common cache line. A slot is never unmapped, so a late look at one
//! that has been given to another stream is harmless: the generation in the gate says so. Guards
//! that a [`AcceleratedStream`] is dropped once, after the last call through either gate has left.

mod gate;
mod returned;

use crate::chunked::{Chunked, Zeroed};
use gate::{Gate, Left};
use returned::Returned;
use rsock_core::accelerate::{AcceleratedStream, FallbackReason};
use rsock_core::closing::{Call, Closings, Descriptor};
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rsock_core::interrupt;
use rustix::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Slots per mapped chunk, and chunks: streams that one process can have at a time.
const PER_CHUNK: usize = 32;
const CHUNKS: usize = 2048;

static SLOTS: Chunked<Slot, PER_CHUNK, CHUNKS> = Chunked::new();
/// Slots that have been handed out at least once.
static FRESH: AtomicU32 = AtomicU32::new(0);
static RETURNED: Returned = Returned(AtomicU64::new(0));
/// Slots that ended in a signal handler: what they hold is dropped by the next [`insert`].
static ENDED: Returned = Returned(AtomicU64::new(0));

/// By which side of a slot a call goes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Recv,
}

/// What a slot holds.
#[expect(clippy::large_enum_variant, reason = "boxed as a whole, and most are streams")]
pub(crate) enum Held {
    Stream(AcceleratedStream),
    Datagrams(Box<AcceleratedUdp>),
}

impl Held {
    #[inline]
    fn closings(&self) -> &Closings {
        match self {
            Self::Stream(twin) => twin.closings(),
            Self::Datagrams(udp) => udp.closings(),
        }
    }
}

/// Names one use of one slot: what the descriptor table stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// # Invariants
/// While either gate is open or has users, `hub.twin` points to a live boxed [`Held`].
#[repr(C, align(128))]
pub(crate) struct Slot {
    hub: Hub,
    send: Gate,
    recv: Gate,
}

/// Written when a stream comes, is pinned, duplicated or goes: read-mostly on the data path.
#[repr(C, align(128))]
struct Hub {
    twin: AtomicPtr<Held>,
    /// Descriptors that name this twin.
    names: AtomicU32,
    gates: Left,
    flags: AtomicU32,
    /// The next returned slot, as `index + 1`.
    next: AtomicU32,
}

/// The program gives the stream to a program that it starts.
const GIVEN: u32 = 2;
/// The stream has been pinned to TCP.
const PINNED: u32 = 1;

// SAFETY: atomics only; a zeroed gate has generation 0, which no key has.
unsafe impl Zeroed for Slot {}

/// A call inside a slot: keeps its twin alive.
///
/// # Invariants
/// Counted once in the gate of `side`, whose generation it entered with.
#[must_use]
pub(crate) struct Handle {
    slot: &'static Slot,
    side: Side,
    index: u32,
    fd: i32,
    /// Closings of the socket when the call came.
    seen: u32,
}

impl Slot {
    fn gate(&self, side: Side) -> &Gate {
        match side {
            Side::Send => &self.send,
            Side::Recv => &self.recv,
        }
    }

    fn gate_is_done(&self, index: u32) {
        if !self.hub.gates.is_last() {
            return;
        }
        if interrupt::is_in_handler() {
            // It may have interrupted the allocator.
            ENDED.give_back(index, &self.hub.next);
            return;
        }
        self.clear(index);
    }

    /// Drops what an ended slot holds, and returns it.
    fn clear(&self, index: u32) {
        let twin = self.hub.twin.swap(ptr::null_mut(), Ordering::AcqRel);
        if !twin.is_null() {
            // SAFETY: `insert` stored what `Box::into_raw` gave; both gates are closed and empty,
            // and the swap makes us the only one to take it.
            drop(unsafe { Box::from_raw(twin) });
        }
        RETURNED.give_back(index, &self.hub.next);
    }
}

/// Puts something into a slot, with one descriptor naming it. `None` when all slots are in use.
pub(crate) fn insert(held: Held) -> Option<Key> {
    let next = |index: u32| SLOTS.get(index as usize).map(|slot| &slot.hub.next);
    while let Some(index) = ENDED.take(next) {
        SLOTS.get(index as usize)?.clear(index);
    }
    let index = RETURNED.take(next).or_else(take_fresh)?;
    let slot = SLOTS.get_or_map(index as usize)?;
    let generation = slot.send.generation().checked_add(1).unwrap_or(UNUSED + 1);
    slot.hub.names.store(1, Ordering::Relaxed);
    slot.hub.gates.set(2);
    slot.hub.flags.store(0, Ordering::Relaxed);
    // INVARIANT: a live box, before the gates open.
    slot.hub.twin.store(Box::into_raw(Box::new(held)), Ordering::Relaxed);
    slot.send.open(generation);
    slot.recv.open(generation);
    Some(Key { index, generation })
}

/// Goes into the slot of `key` as a call on descriptor `fd`. `None` if that stream has ended.
#[inline]
pub(crate) fn enter(key: Key, side: Side, fd: i32) -> Option<Handle> {
    let slot = SLOTS.get(key.index as usize)?;
    if !slot.gate(side).enter(key.generation) {
        return None;
    }
    // INVARIANT: counted above, uncounted in `Handle::drop`.
    let mut handle = Handle { slot, side, index: key.index, fd, seen: 0 };
    handle.seen = handle.held().closings().count();
    Some(handle)
}

/// Ends a stream: no call goes in any more, and the twin is dropped when the last has come out.
/// Called once for each key, by whoever gave up its last name.
pub(crate) fn retire(key: Key) {
    let Some(slot) = SLOTS.get(key.index as usize) else { return };
    for side in [Side::Send, Side::Recv] {
        if slot.gate(side).close() {
            slot.gate_is_done(key.index);
        }
    }
}

/// In a forked child, whose only thread is in no call: nothing waits for calls that threads of the parent were in.
pub(crate) fn forget_calls() {
    for index in 0..FRESH.load(Ordering::Relaxed) {
        let Some(slot) = SLOTS.get(index as usize) else { continue };
        let generation = slot.send.generation();
        if generation == UNUSED {
            // Another thread of the parent was about to put something in.
            continue;
        }
        slot.send.forget_calls();
        slot.recv.forget_calls();
        if let Some(handle) = enter(Key { index, generation }, Side::Send, NO_DESCRIPTOR) {
            handle.held().closings().forget_calls();
        }
    }
}

/// The generation of a slot that has never held anything.
const UNUSED: u32 = 0;

/// Of a handle that is not used as a call.
const NO_DESCRIPTOR: i32 = i32::MAX;

impl Handle {
    /// The twin, of a slot that holds one.
    ///
    /// # Panics
    /// If it holds something else: the table keeps them apart.
    #[inline]
    pub(crate) fn twin(&self) -> &AcceleratedStream {
        match self.held() {
            Held::Stream(twin) => twin,
            Held::Datagrams(_) => unreachable!("a word of the table says which"),
        }
    }

    /// The UDP socket, of a slot that holds one.
    #[inline]
    pub(crate) fn udp(&self) -> Option<&AcceleratedUdp> {
        match self.held() {
            Held::Datagrams(udp) => Some(udp),
            Held::Stream(_) => None,
        }
    }

    #[inline]
    fn held(&self) -> &Held {
        let twin = self.slot.hub.twin.load(Ordering::Relaxed);
        // SAFETY: by the invariants of `Slot` and `Handle`: our gate has us as a user, so the
        // pointer is a live box until we leave, and only shared references to it exist.
        unsafe { &*twin }
    }

    /// The descriptor this call came in by: for what is done at once. What may sleep takes
    /// [`Self::descriptor`] or [`Self::call`].
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: never -1 (the table has no such entry). The program owns the descriptor; if another
        // thread closes it at this moment, calls on it fail with EBADF or reach its successor, as
        // they would without us.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The descriptor this call came in by, with what it takes to notice that it is closed meanwhile.
    #[inline]
    pub(crate) fn descriptor(&self) -> Descriptor<'_> {
        Descriptor::new(self.fd(), self.seen)
    }

    /// This call, which keeps to its socket.
    #[inline]
    pub(crate) fn call(&self) -> Call<'_> {
        Call::begin(self.held().closings(), self.descriptor())
    }

    /// Calls inside beside this one.
    fn n_others(&self) -> u64 {
        (self.slot.send.users() + self.slot.recv.users()).saturating_sub(1)
    }

    /// The program is about to close the descriptor this call came in by, unless it has done so already:
    /// the other calls inside go on with the socket, whatever becomes of the number.
    pub(crate) fn keep_for_calls(&self) {
        if self.n_others() == 0 {
            return;
        }
        let is_same = match self.held() {
            Held::Stream(twin) => twin.is_same_socket(self.fd()) != Some(false),
            Held::Datagrams(udp) => udp.is_same_socket(self.fd()),
        };
        let fd = is_same.then(|| self.fd());
        match self.held() {
            Held::Stream(twin) => twin.keep_for_calls(fd, || self.n_others()),
            Held::Datagrams(udp) => udp.closings().keep(fd, || {}, || self.n_others()),
        }
    }

    /// Whether only the kernel matters for this stream, now and for ever.
    #[inline]
    pub(crate) fn is_plain_for_good(&self) -> bool {
        self.twin().is_plain()
    }

    /// Pins the stream to TCP, once.
    pub(crate) fn pin(&self, reason: FallbackReason) {
        if self.slot.hub.flags.load(Ordering::Relaxed) & PINNED == 0 {
            self.twin().pin(self.fd(), reason);
            self.slot.hub.flags.fetch_or(PINNED, Ordering::Relaxed);
        }
    }

    /// Whether the descriptor still is the socket that was adopted: a system call. `None` where it
    /// makes no difference, as [`AcceleratedStream::is_same_socket`].
    pub(crate) fn is_same_socket(&self) -> Option<bool> {
        self.twin().is_same_socket(self.fd())
    }

    /// Whether `fd` is known to name the socket that was adopted: a system call.
    pub(crate) fn is_named_by(&self, fd: BorrowedFd<'_>) -> bool {
        self.twin().is_same_socket(fd) == Some(true)
    }

    /// Whether both are calls on one stream.
    pub(crate) fn is_same_stream(&self, other: &Self) -> bool {
        self.index == other.index
    }

    /// The key that led here.
    pub(crate) fn key(&self) -> Key {
        Key { index: self.index, generation: self.slot.gate(self.side).generation() }
    }

    /// Lets no further call go in, if this one is the only one inside. Every entry of the table that
    /// leads here must have been claimed before, or calls would take the stream for an ended one.
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

    /// The stream is being given to another program: [`Self::is_given`] from now on.
    pub(crate) fn give(&self) {
        self.slot.hub.flags.fetch_or(GIVEN, Ordering::Relaxed);
    }

    /// Whether the program has asked for this stream to be given to one that it is to start.
    pub(crate) fn is_given(&self) -> bool {
        self.slot.hub.flags.load(Ordering::Relaxed) & GIVEN != 0
    }

    /// One more descriptor names this stream. False if its last one is just being closed.
    pub(crate) fn add_name(&self) -> bool {
        let more = |n: u32| (n != 0).then_some(n + 1);
        self.slot.hub.names.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// One descriptor less; says whether it was the last.
    pub(crate) fn remove_name(&self) -> bool {
        self.slot.hub.names.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if self.slot.gate(self.side).leave() {
            self.slot.gate_is_done(self.index);
        }
    }
}

fn take_fresh() -> Option<u32> {
    let room = |n: u32| ((n as usize) < PER_CHUNK * CHUNKS).then_some(n + 1);
    FRESH.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
}
