//! The slot of a UDP socket with a queue beside it: written by its process, read by others.
//!
//! It lies in the same table as the slots of connections, and differs from them by its state.

use crate::metrics::bytes::Bytes;
use crate::metrics::writer::{SlotClaim, add, as_udp_slot, go_live, put_ends};
use crate::metrics::{FallbackReason, N_DATAGRAM_COUNTS, RawUdpSlot, STATE_DATAGRAMS};
use std::mem::offset_of;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How datagrams reach a socket, and why not by its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReceivePath {
    /// By the kernel: too few datagrams have come from this host.
    Kernel = 0,
    /// By the queue from senders that have found it, by the kernel from others.
    Queue = 1,
    /// By the kernel: other sockets could receive datagrams for the port.
    SharedPort = 2,
    /// By the kernel: the address is link-local, or that of several sockets.
    Address = 3,
    /// By the kernel: memory or descriptors ran out.
    Exhausted = 4,
    /// By the kernel: an epoll set watches the socket in a way that only the kernel supports.
    Watched = 5,
}

/// An event that is counted per datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DatagramEvent {
    /// It went into a peer's queue.
    Sent = 0,
    /// It was dropped: the peer's queue was full.
    Dropped = 1,
    /// It went by the kernel because the peer's queue was full.
    Rescued = 2,
    /// It was sent by the kernel.
    ByKernel = 3,
    /// It came by the queue.
    Received = 8,
    /// It came by the queue and was dropped: not from the peer that the socket is connected to.
    Foreign = 9,
    /// It came by the queue and was no valid datagram.
    Malformed = 10,
    /// It came by the kernel.
    ReceivedByKernel = 11,
}

/// A UDP socket's slot in the table, freed when dropped.
///
/// As with [`StreamSlot`](crate::metrics::StreamSlot), keep it in private memory; calls that race
/// with each other may lose a count.
#[derive(Debug)]
pub struct UdpSlot {
    ends: Ends,
    inode: u64,
    claim: SlotClaim,
}

/// The addresses of both ends as a slot stores them: for the slot that a forked child claims later.
#[derive(Debug)]
struct Ends {
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    ports: AtomicU32,
}

/// The metrics of a UDP socket, as read from its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSocketMetrics {
    /// The address that it is bound to.
    pub local: SocketAddr,
    /// The address that it is connected to.
    pub peer: Option<SocketAddr>,
    /// Inode of the kernel socket.
    pub inode: u64,
    /// How datagrams reach it; `None` is a way that this build does not know.
    pub receives: Option<ReceivePath>,
    /// Why it stays with the kernel; `None` is a reason that this build does not know.
    pub fallback: Option<FallbackReason>,
    /// Destinations that it reaches by their queue.
    pub n_queue_peers: u32,
    /// Remembered destinations that it reaches by the kernel.
    pub n_kernel_peers: u32,
    counts: [u64; N_DATAGRAM_COUNTS],
}

/// Stands for the absence of a peer.
const NO_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

impl RawUdpSlot {
    fn fill(&self, socket: &UdpSlot) {
        for byte in [&self.receives, &self.spare, &self.fallback, &self.flags] {
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
        let words = self.local.iter().chain(&self.peer);
        for (word, known) in words.zip(ends.local.iter().chain(&ends.peer)) {
            word.store(known.load(Ordering::Relaxed), Ordering::Relaxed);
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
        put_ends(&self.local, &self.peer, &self.ports, [local, peer.unwrap_or(NO_PEER)]);
    }
}

impl UdpSlot {
    /// Claims a slot for a socket. Never fails: without memory, descriptors or a free slot the
    /// socket is not shown.
    #[must_use]
    pub fn open(local: SocketAddr, peer: Option<SocketAddr>, inode: u64) -> Self {
        let this = Self { ends: Ends::new(local, peer), inode, claim: SlotClaim::new() };
        this.raw();
        this
    }

    /// Sets the addresses that the socket is bound and connected to.
    pub fn set_ends(&self, local: SocketAddr, peer: Option<SocketAddr>) {
        self.ends.put(local, peer);
        if let Some(raw) = self.raw() {
            raw.copy_ends(&self.ends);
        }
    }

    /// Sets how datagrams reach the socket.
    pub fn set_receives(&self, receives: ReceivePath) {
        if let Some(raw) = self.raw() {
            raw.receives.store(receives as u8, Ordering::Relaxed);
        }
    }

    /// Sets why the socket stays with the kernel.
    pub fn set_fallback(&self, reason: FallbackReason) {
        if let Some(raw) = self.raw() {
            raw.fallback.store(reason as u8, Ordering::Relaxed);
        }
    }

    /// Sets how many destinations are reached by their queue, and how many by the kernel.
    pub fn set_peers(&self, n_queue: usize, n_kernel: usize) {
        if let Some(raw) = self.raw() {
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            raw.n_queue_peers.store(number(n_queue), Ordering::Relaxed);
            raw.n_kernel_peers.store(number(n_kernel), Ordering::Relaxed);
        }
    }

    /// Counts a datagram.
    #[inline]
    pub fn count(&self, what: DatagramEvent) {
        if let Some(raw) = self.raw() {
            add(&raw.counts[what as usize], 1);
        }
    }

    #[inline]
    fn raw(&self) -> Option<&'static RawUdpSlot> {
        self.claim.raw(|raw| as_udp_slot(raw).fill(self)).map(as_udp_slot)
    }
}

impl UdpSocketMetrics {
    /// How often `what` has happened.
    #[must_use]
    pub fn count(&self, what: DatagramEvent) -> u64 {
        self.counts[what as usize]
    }

    pub(super) fn read(line: &Bytes<'_>) -> Self {
        let [local, peer] = line.ends();
        let at = |i: usize| offset_of!(RawUdpSlot, counts) + i * size_of::<u64>();
        let all = [
            ReceivePath::Kernel,
            ReceivePath::Queue,
            ReceivePath::SharedPort,
            ReceivePath::Address,
            ReceivePath::Exhausted,
            ReceivePath::Watched,
        ];
        let receives = line.byte(offset_of!(RawUdpSlot, receives));
        Self {
            local,
            peer: (peer != NO_PEER).then_some(peer),
            inode: line.word(offset_of!(RawUdpSlot, inode)),
            receives: all.into_iter().find(|one| *one as u8 == receives),
            fallback: FallbackReason::known(line.byte(offset_of!(RawUdpSlot, fallback))),
            n_queue_peers: line.half(offset_of!(RawUdpSlot, n_queue_peers)),
            n_kernel_peers: line.half(offset_of!(RawUdpSlot, n_kernel_peers)),
            counts: std::array::from_fn(|i| line.word(at(i))),
        }
    }
}
