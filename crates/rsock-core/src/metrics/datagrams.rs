//! The line of a UDP socket with a queue beside it: written by its process, read by others.
//!
//! It lies in the same table as those of connections, and is told apart by its state.

use crate::accelerate::FallbackReason;
use crate::metrics::reader::Bytes;
use crate::metrics::writer::{Place, add, as_datagrams, go_live, put_ends};
use crate::metrics::{RawSlot, SLOT_LEN, STATE_DATAGRAMS, pin_reason};
use std::mem::offset_of;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// By which ways datagrams come to a socket, and why not by the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Receives {
    /// By the kernel: not enough has come from this host.
    Kernel = 0,
    /// By the queue from those that have it, by the kernel from others.
    Queue = 1,
    /// By the kernel: other sockets might get what is sent to the port.
    SharedPort = 2,
    /// By the kernel: an address that means something on one link only, or many sockets.
    Address = 3,
    /// By the kernel: memory or descriptors ran out.
    Exhausted = 4,
    /// By the kernel: an epoll set watches the socket as only the kernel can.
    Watched = 5,
}

/// What may happen to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Happened {
    /// It went into a peer's queue.
    Sent = 0,
    /// It was dropped: the peer's queue was full.
    Dropped = 1,
    /// It went by the kernel because the peer's queue was full.
    Rescued = 2,
    /// It was left to the kernel to send.
    ByKernel = 3,
    /// It came by the queue.
    Received = 8,
    /// It came by the queue and was dropped: not of the peer that the socket is connected to.
    Foreign = 9,
    /// Something came by the queue that was none.
    Malformed = 10,
    /// It came by the kernel.
    ReceivedByKernel = 11,
}

/// A UDP socket's line in the table, freed when dropped.
///
/// As [`Slot`](crate::metrics::Slot): keep it in private memory; calls that race with each other may lose a count.
#[derive(Debug)]
pub struct Datagrams {
    ends: Ends,
    inode: u64,
    place: Place,
}

/// The ends, as a line has them: for a line that is taken later, after a fork.
#[derive(Debug)]
struct Ends {
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    ports: AtomicU32,
}

/// A UDP socket, as its line tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramSocket {
    /// What it is bound to.
    pub local: SocketAddr,
    /// What it is connected to.
    pub peer: Option<SocketAddr>,
    /// Inode of the kernel socket.
    pub inode: u64,
    /// By which way datagrams come; `None` is one this build does not know.
    pub receives: Option<Receives>,
    /// Why nothing goes past the kernel any more; `None` is a reason this build does not know.
    pub pin: Option<FallbackReason>,
    /// Destinations that are reached by their queue.
    pub n_queue_peers: u32,
    /// Destinations that are remembered, and reached by the kernel.
    pub n_kernel_peers: u32,
    counts: [u64; N_COUNTS],
}

const N_COUNTS: usize = 16;

/// A line of the table, as one of a UDP socket has it. What it shares with [`RawSlot`] lies where it does there.
#[repr(C, align(64))]
pub(super) struct RawDatagrams {
    seq: AtomicU32,
    receives: AtomicU8,
    /// Reserved, zero.
    spare: AtomicU8,
    pin: AtomicU8,
    flags: AtomicU8,
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    ports: AtomicU32,
    n_queue_peers: AtomicU32,
    inode: AtomicU64,
    n_kernel_peers: AtomicU32,
    spare_too: AtomicU32,
    /// Indexed by [`Happened`]: the sending direction has a line, the receiving one another.
    counts: [AtomicU64; N_COUNTS],
}

const _: () = {
    assert!(size_of::<RawDatagrams>() == SLOT_LEN);
    assert!(align_of::<RawDatagrams>() == align_of::<RawSlot>());
    assert!(offset_of!(RawDatagrams, pin) == offset_of!(RawSlot, pin));
    assert!(offset_of!(RawDatagrams, local) == offset_of!(RawSlot, local));
    assert!(offset_of!(RawDatagrams, peer) == offset_of!(RawSlot, peer));
    assert!(offset_of!(RawDatagrams, ports) == offset_of!(RawSlot, ports));
    assert!(offset_of!(RawDatagrams, inode) == offset_of!(RawSlot, inode));
    assert!(offset_of!(RawDatagrams, n_kernel_peers) == 56);
    assert!(offset_of!(RawDatagrams, counts) == 64);
};

/// What stands for no peer.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

impl RawDatagrams {
    fn fill(&self, socket: &Datagrams) {
        for byte in [&self.receives, &self.spare, &self.pin, &self.flags] {
            byte.store(0, Ordering::Relaxed);
        }
        self.copy_ends(&socket.ends);
        self.inode.store(socket.inode, Ordering::Relaxed);
        for count in [&self.n_queue_peers, &self.n_kernel_peers, &self.spare_too] {
            count.store(0, Ordering::Relaxed);
        }
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        go_live(&self.seq, STATE_DATAGRAMS);
    }

    fn copy_ends(&self, ends: &Ends) {
        let mine = self.local.iter().chain(&self.peer);
        for (mine, known) in mine.zip(ends.local.iter().chain(&ends.peer)) {
            mine.store(known.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.ports.store(ends.ports.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Ends {
    fn new(local: SocketAddr, peer: Option<SocketAddr>) -> Self {
        let zeros = || [const { AtomicU64::new(0) }; 2];
        let this = Self { local: zeros(), peer: zeros(), ports: AtomicU32::new(0) };
        this.put(local, peer);
        this
    }

    fn put(&self, local: SocketAddr, peer: Option<SocketAddr>) {
        put_ends(&self.local, &self.peer, &self.ports, [local, peer.unwrap_or(NOBODY)]);
    }
}

impl Datagrams {
    /// Opens a line for a socket. Never fails: without memory, descriptors or a free line it is not shown.
    #[must_use]
    pub fn open(local: SocketAddr, peer: Option<SocketAddr>, inode: u64) -> Self {
        let this = Self { ends: Ends::new(local, peer), inode, place: Place::new() };
        this.raw();
        this
    }

    /// Says what the socket is bound and connected to from now on.
    pub fn set_ends(&self, local: SocketAddr, peer: Option<SocketAddr>) {
        self.ends.put(local, peer);
        if let Some(raw) = self.raw() {
            raw.copy_ends(&self.ends);
        }
    }

    /// Says by which way datagrams come from now on.
    pub fn set_receives(&self, receives: Receives) {
        if let Some(raw) = self.raw() {
            raw.receives.store(receives as u8, Ordering::Relaxed);
        }
    }

    /// Says why nothing goes past the kernel any more.
    pub fn set_pin(&self, reason: FallbackReason) {
        if let Some(raw) = self.raw() {
            raw.pin.store(reason as u8, Ordering::Relaxed);
        }
    }

    /// Says how many destinations are reached by their queue, and how many by the kernel.
    pub fn set_peers(&self, n_queue: usize, n_kernel: usize) {
        if let Some(raw) = self.raw() {
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            raw.n_queue_peers.store(number(n_queue), Ordering::Relaxed);
            raw.n_kernel_peers.store(number(n_kernel), Ordering::Relaxed);
        }
    }

    /// Counts a datagram.
    #[inline]
    pub fn count(&self, what: Happened) {
        self.count_many(what, 1);
    }

    /// Counts `n` datagrams.
    #[inline]
    pub fn count_many(&self, what: Happened, n: u64) {
        if let Some(raw) = self.raw() {
            add(&raw.counts[what as usize], n);
        }
    }

    #[inline]
    fn raw(&self) -> Option<&'static RawDatagrams> {
        self.place.raw(|raw| as_datagrams(raw).fill(self)).map(as_datagrams)
    }
}

impl DatagramSocket {
    /// How often that has happened.
    #[must_use]
    pub fn count(&self, what: Happened) -> u64 {
        self.counts[what as usize]
    }

    pub(super) fn read(line: &Bytes<'_>) -> Self {
        let [local, peer] = line.ends();
        let at = |i: usize| offset_of!(RawDatagrams, counts) + i * size_of::<u64>();
        let all = [
            Receives::Kernel,
            Receives::Queue,
            Receives::SharedPort,
            Receives::Address,
            Receives::Exhausted,
            Receives::Watched,
        ];
        let receives = line.byte(offset_of!(RawDatagrams, receives));
        Self {
            local,
            peer: (peer != NOBODY).then_some(peer),
            inode: line.word(offset_of!(RawDatagrams, inode)),
            receives: all.into_iter().find(|one| *one as u8 == receives),
            pin: pin_reason(line.byte(offset_of!(RawDatagrams, pin))),
            n_queue_peers: line.half(offset_of!(RawDatagrams, n_queue_peers)),
            n_kernel_peers: line.half(offset_of!(RawDatagrams, n_kernel_peers)),
            counts: std::array::from_fn(|i| line.word(at(i))),
        }
    }
}
