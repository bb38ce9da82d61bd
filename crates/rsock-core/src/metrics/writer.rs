//! The writing side: a [`StreamSlot`] per connection (and a [`UdpSlot`](crate::metrics::UdpSlot)
//! per UDP socket), in a table that the process creates with its first socket.
//!
//! INVARIANT: a process writes only the table whose header carries its own pid. A forked child
//! finds its parent's table and creates its own; its sockets claim slots there as they are used.

use crate::metrics::{
    FallbackReason, MAGIC, MEMFD_NAME, N_SLOTS, RawCounters, RawHeader, RawSlot, RawUdpSlot,
    SEQ_STEP, SLOT_LEN, SLOT_LEN_WORD, SLOTS_AT, STATE_FREE, STATE_LIVE, STATE_MASK, STATE_OPENING,
    TABLE_LEN, Transport, VERSION,
};
use rsock_verbs::rdma::show_usage;
use rsock_verbs::{family, own_fd};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this process to the peer.
    Send,
    /// From the peer to this process.
    Recv,
}

/// A connection's slot in the table, freed when dropped.
///
/// Keep it in memory that is private to the process. Counting takes a few loads and one store;
/// calls for the same direction that race with each other may lose a count, never more.
#[derive(Debug)]
pub struct StreamSlot {
    local: SocketAddr,
    peer: SocketAddr,
    inode: u64,
    claim: SlotClaim,
}

/// A claim to a slot of the table, which is freed when this is dropped.
#[derive(Debug)]
pub(super) struct SlotClaim {
    /// Owning process in the upper half, slot number plus one in the lower; 0 before the first use.
    at: AtomicU64,
}

impl StreamSlot {
    /// Claims a slot for a connection on TCP. Never fails: without memory, descriptors or a free
    /// slot the connection is not shown.
    #[must_use]
    pub fn open(local: SocketAddr, peer: SocketAddr, inode: u64) -> Self {
        let slot = Self { local, peer, inode, claim: SlotClaim::new() };
        slot.raw();
        slot
    }

    /// Counts `n` bytes that `transport` moved.
    #[inline]
    pub fn add_bytes(&self, direction: Direction, transport: Transport, n: u64) {
        if let Some(counters) = self.counters(direction) {
            add(&counters.bytes[transport as usize], n);
        }
    }

    /// Counts `n` bytes that `transport` has received, and the waits for them that spinning ended.
    #[inline]
    pub fn add_received(&self, transport: Transport, n: u64, n_spins: u32) {
        if let Some(counters) = self.counters(Direction::Recv) {
            add(&counters.bytes[transport as usize], n);
            add(&counters.spins, n_spins.into());
        }
    }

    /// Counts a return from a sleep in the kernel.
    #[inline]
    pub fn add_wakeup(&self, direction: Direction) {
        if let Some(counters) = self.counters(direction) {
            add(&counters.wakeups, 1);
        }
    }

    /// Counts a wait that spinning ended.
    #[inline]
    pub fn add_spin(&self, direction: Direction) {
        if let Some(counters) = self.counters(direction) {
            add(&counters.spins, 1);
        }
    }

    /// Sets the transport of one direction.
    pub fn set_transport(&self, direction: Direction, transport: Transport) {
        if let Some(raw) = self.raw() {
            let field = match direction {
                Direction::Send => &raw.tx_transport,
                Direction::Recv => &raw.rx_transport,
            };
            field.store(transport as u8, Ordering::Relaxed);
        }
    }

    /// Sets why the connection is on TCP, [`FallbackReason::None`] if it is not.
    pub fn set_fallback(&self, reason: FallbackReason) {
        if let Some(raw) = self.raw() {
            raw.fallback.store(reason as u8, Ordering::Relaxed);
        }
    }

    /// Sets the peer's process.
    pub fn set_peer_pid(&self, pid: u32) {
        if let Some(raw) = self.raw() {
            raw.peer_pid.store(pid, Ordering::Relaxed);
        }
    }

    /// The counter of keepalive probes, valid while this value lives.
    #[must_use]
    pub fn probes(&self) -> Option<&'static AtomicU64> {
        self.raw().map(|raw| &raw.probes)
    }

    #[inline]
    fn counters(&self, direction: Direction) -> Option<&'static RawCounters> {
        let raw = self.raw()?;
        Some(match direction {
            Direction::Send => &raw.tx,
            Direction::Recv => &raw.rx,
        })
    }

    #[inline]
    fn raw(&self) -> Option<&'static RawSlot> {
        self.claim.raw(|raw| fill(raw, self))
    }
}

impl SlotClaim {
    pub(super) fn new() -> Self {
        Self { at: AtomicU64::new(0) }
    }

    /// The slot of this process, which `fill` makes live if it is newly claimed.
    #[inline]
    pub(super) fn raw(&self, fill: impl FnOnce(&RawSlot)) -> Option<&'static RawSlot> {
        let at = self.at.load(Ordering::Relaxed);
        let (owner, index) = split(at);
        if owner == family::process().0 {
            // A process keeps its table once a slot of it was claimed.
            return Table::current()?.slot(index.checked_sub(1)?);
        }
        self.register(fill)
    }

    /// Claims a slot in this process's table, for a socket that may be inherited.
    #[cold]
    fn register(&self, fill: impl FnOnce(&RawSlot)) -> Option<&'static RawSlot> {
        let pid = family::process().0;
        let old = self.at.load(Ordering::Relaxed);
        let taken = Table::obtain(pid).and_then(|table| table.take());
        if let Some((_, raw)) = taken {
            fill(raw);
        }
        let number = taken.as_ref().map_or(0, |(index, _)| index + 1);
        let new = u64::from(pid) << 32 | u64::from(number);
        // Two threads may register at once: the second frees its slot.
        if self.at.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            if let Some((_, raw)) = taken {
                release(raw);
            }
            return None;
        }
        taken.map(|(_, raw)| raw)
    }
}

impl Drop for SlotClaim {
    fn drop(&mut self) {
        let (owner, index) = split(*self.at.get_mut());
        // The parent frees an inherited slot.
        if index != 0
            && owner == family::process().0
            && let Some(raw) = Table::current().and_then(|table| table.slot(index - 1))
        {
            release(raw);
        }
    }
}

/// The table's descriptor, if there is one. The preload library protects it from the program's
/// `close`.
#[must_use]
pub fn descriptor() -> Option<RawFd> {
    let fd = DESCRIPTOR.load(Ordering::Relaxed);
    (fd >= 0).then_some(fd)
}

/// A mapped table, never unmapped.
#[derive(Clone, Copy)]
struct Table {
    base: NonNull<u8>,
}

impl Table {
    #[inline]
    fn current() -> Option<Self> {
        NonNull::new(TABLE.load(Ordering::Acquire)).map(|base| Self { base })
    }

    /// This process's table, which is created if there is none.
    fn obtain(pid: u32) -> Option<Self> {
        let is_ours = |table: &Self| table.header().pid.load(Ordering::Relaxed) == pid;
        let found = Self::current();
        let table = found
            .filter(is_ours)
            .or_else(|| Self::create(found, pid).ok())
            // Another thread may have created it meanwhile.
            .or_else(|| Self::current().filter(is_ours))?;
        // Only once this is the table of the process: a reader may find the file of a thread that
        // lost the race, and must not take that for the table. SYNC(stat-magic): the header is
        // complete. A reader checks the magic first.
        table.header().magic.store(MAGIC, Ordering::Release);
        Some(table)
    }

    fn create(inherited: Option<Self>, pid: u32) -> io::Result<Self> {
        let (base, fd) = map_table()?;
        let table = Self { base };
        let header = table.header();
        header.pid.store(pid, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.n_slots.store(N_SLOTS, Ordering::Relaxed);
        header.slot_len.store(SLOT_LEN_WORD, Ordering::Relaxed);
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        let old = inherited.map_or(ptr::null_mut(), |table| table.base.as_ptr());
        // SYNC(stat-table): publishes the mapping. Pairs with the Acquire in `current`.
        if TABLE.compare_exchange(old, base.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            // SAFETY: mapped above with this length, and no other thread has its address.
            let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), TABLE_LEN) };
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        show_usage(&header.rdma);
        let old_inode = INODE.swap(inode, Ordering::Relaxed);
        let old_fd = DESCRIPTOR.swap(fd.into_raw_fd(), Ordering::Relaxed);
        if old_fd >= 0 {
            close_inherited(old_fd, old_inode);
        }
        Ok(table)
    }

    fn header(&self) -> &'static RawHeader {
        // SAFETY: the mapping is page-aligned, at least a header long, zeroed when made, made of
        // atomics only, and never unmapped once a `Table` of it is visible to others.
        unsafe { self.base.cast::<RawHeader>().as_ref() }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&'static RawSlot> {
        if index >= N_SLOTS {
            return None;
        }
        // SAFETY: `index < N_SLOTS`, so the offset lies inside the mapping.
        let raw = unsafe { self.base.add(SLOTS_AT + index as usize * SLOT_LEN) };
        // SAFETY: `SLOTS_AT` and `SLOT_LEN` are multiples of the alignment; otherwise as `header`.
        Some(unsafe { raw.cast::<RawSlot>().as_ref() })
    }

    /// Claims a free slot, which is in the opening state then.
    fn take(&self) -> Option<(u32, &'static RawSlot)> {
        let start = NEXT.load(Ordering::Relaxed);
        for offset in 0..N_SLOTS {
            let index = start.wrapping_add(offset) % N_SLOTS;
            let raw = self.slot(index)?;
            let seq = raw.seq.load(Ordering::Relaxed);
            if seq & STATE_MASK != STATE_FREE {
                continue;
            }
            let opening = seq.wrapping_add(SEQ_STEP) & !STATE_MASK | STATE_OPENING;
            // SYNC(stat-slot): the thread that claims a slot sees it released. Pairs with
            // `release`.
            if raw.seq.compare_exchange(seq, opening, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                NEXT.store(index.wrapping_add(1), Ordering::Relaxed);
                return Some((index, raw));
            }
        }
        self.header().n_dropped.fetch_add(1, Ordering::Relaxed);
        None
    }
}

static TABLE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);
/// Where the search for a free slot begins.
static NEXT: AtomicU32 = AtomicU32::new(0);

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each half of 64 bits fits 32")]
fn split(at: u64) -> (u32, u32) {
    ((at >> 32) as u32, at as u32)
}

/// There is one writer at a time by contract, so no locked instruction is needed.
#[inline]
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn fill(raw: &RawSlot, slot: &StreamSlot) {
    for byte in [&raw.tx_transport, &raw.rx_transport, &raw.fallback, &raw.flags] {
        byte.store(0, Ordering::Relaxed);
    }
    put_ends(&raw.local, &raw.peer, &raw.ports, [slot.local, slot.peer]);
    raw.peer_pid.store(0, Ordering::Relaxed);
    raw.inode.store(slot.inode, Ordering::Relaxed);
    raw.probes.store(0, Ordering::Relaxed);
    for counters in [&raw.tx, &raw.rx] {
        let all = counters.bytes.iter().chain([&counters.wakeups, &counters.spins]);
        for counter in all {
            counter.store(0, Ordering::Relaxed);
        }
    }
    go_live(&raw.seq, STATE_LIVE);
}

/// Stores the two ends: the addresses, IPv4 ones mapped, and the ports.
pub(super) fn put_ends(
    local: &[AtomicU64; 2],
    peer: &[AtomicU64; 2],
    ports: &AtomicU32,
    ends: [SocketAddr; 2],
) {
    for (words, addr) in [local, peer].into_iter().zip(ends) {
        let ip = match addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        for (word, half) in words.iter().zip(ip.octets().as_chunks().0) {
            word.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
        }
    }
    let [local, peer] = ends.map(|end| u32::from(end.port()));
    ports.store(local << 16 | peer, Ordering::Relaxed);
}

/// A slot as that of a UDP socket.
pub(super) fn as_udp_slot(raw: &RawSlot) -> &RawUdpSlot {
    // SAFETY: both are made of atomics only, of one size and alignment, as is asserted where they
    // are laid out.
    unsafe { &*ptr::from_ref(raw).cast() }
}

/// Lets readers see a slot that has been filled, in the state `state`.
pub(super) fn go_live(seq: &AtomicU32, state: u32) {
    let old = seq.load(Ordering::Relaxed);
    // SYNC(stat-live): all that was stored before is visible to a reader that sees the slot live.
    seq.store(old & !STATE_MASK | state, Ordering::Release);
}

fn release(raw: &RawSlot) {
    let seq = raw.seq.load(Ordering::Relaxed);
    // SYNC(stat-slot): this owner's last counts precede the next owner's. Pairs with `Table::take`.
    raw.seq.store(seq & !STATE_MASK | STATE_FREE, Ordering::Release);
}

fn map_table() -> io::Result<(NonNull<u8>, OwnedFd)> {
    // The kernel sends SIGXFSZ for a file beyond the limit, which ends the program.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < TABLE_LEN as u64) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let fd = rustix::fs::memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, TABLE_LEN as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let fd = own_fd::raise(fd);
    // SAFETY: a fresh mapping at an address of the kernel's choice; the file has this length and
    // is sealed, so no access can fault.
    let base = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            TABLE_LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &fd,
            0,
        )
    }?;
    let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok((base, fd))
}

/// Closes the parent's table in a forked child, unless the program has reused the number.
fn close_inherited(fd: RawFd, inode: u64) {
    // SAFETY: used for one `fstat`, which answers EBADF if the number is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let same = rustix::fs::fstat(borrowed.as_fd()).is_ok_and(|stat| stat.st_ino == inode);
    if same {
        // SAFETY: the descriptor is the one this module opened (same inode, and a memfd's is not
        // reused while it is open), and nothing else closes it.
        unsafe { rustix::io::close(fd) };
        own_fd::forget(fd);
    }
}
