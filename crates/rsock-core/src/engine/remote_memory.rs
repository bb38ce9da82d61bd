//! Remote memory (iomaps): memory exposed to the peer's direct writes, and direct writes into the
//! peer's.
//!
//! An entry for exposed memory is written into the *peer's* table and announced by a message; the
//! entries for the peer's memory arrive in the local table. An entry is copied out of that table
//! when its message arrives, and only the copy is used. Mappings belong to the process that made
//! them: a forked child has none.

use crate::engine::QpStream;
use crate::engine::buffers::layout::N_SLOTS;
use crate::engine::send::SendError;
use crate::interrupt::Section;
use rsock_proto::{
    self, IOMAP_ENTRY, IomapEntry, IomapSlots, PeerError, RemoteIomap, checked_index,
    iomap_table_offset,
};
use rsock_verbs::{
    Access, Backend, Error, MemoryRegion, PostError, ProtectionDomain, QueuePair, SendFlags,
    SendOp, WrId,
};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest piece of a direct write, in bytes: what one post copies before signal handlers may run.
const PIECE: usize = 256 << 10;

/// The remote memory of a stream, in both directions.
#[derive(Debug)]
pub(super) struct Iomaps<B: Backend> {
    /// The peer's table, if it has one.
    remote: Option<RemoteIomap>,
    /// Whether entries wait to be sent.
    has_unsent: AtomicBool,
    exposed: Mutex<ExposedMemory<B>>,
    /// The memory that the peer has exposed: each entry as it was when its message arrived.
    peer_entries: Mutex<Vec<IomapEntry>>,
}

/// The memory that this end has exposed.
#[derive(Debug)]
struct ExposedMemory<B: Backend> {
    /// The used entries of the peer's table, as a bitmap.
    slots: Vec<u64>,
    regions: Vec<RegisteredRegion<B>>,
    /// Entries to be sent, in order.
    unsent: Vec<(usize, IomapEntry)>,
}

#[derive(Debug)]
struct RegisteredRegion<B: Backend> {
    region: Arc<B::Mr>,
    /// Entry of the peer's table; none for memory that is registered and not exposed.
    index: Option<usize>,
}

/// Memory of the caller that may be exposed to the peer.
///
/// # Invariants
/// The memory stays valid, and free of references that forbid foreign writes, until it is withdrawn
/// from the stream that it was registered on, or that stream is dropped.
#[derive(Debug)]
pub struct CallerMemory {
    addr: *mut u8,
    len: usize,
}

impl CallerMemory {
    /// `len` bytes at `addr`.
    ///
    /// # Safety
    /// The type's invariant.
    #[must_use]
    pub unsafe fn new(addr: *mut u8, len: usize) -> Self {
        // INVARIANT: the caller's promise.
        Self { addr, len }
    }
}

/// What the peer may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteAccess {
    /// The peer may write it (`PROT_WRITE`).
    Write,
    /// The memory is registered with the device; the peer does not learn of it (`PROT_NONE`).
    None,
}

/// Why memory was not exposed.
#[derive(Debug)]
pub enum IomapError {
    /// The peer's table is full, or it has none. (`ENOMEM`)
    NoEntry,
    /// The memory is longer than an entry can express. (`EINVAL`)
    TooLong,
    /// The device refused to register the memory.
    Device(Error),
}

impl From<Error> for IomapError {
    fn from(e: Error) -> Self {
        Self::Device(e)
    }
}

impl<B: Backend> Iomaps<B> {
    /// For a peer with the table `remote`; `n_entries` is the size of the local table.
    pub(super) fn new(remote: Option<RemoteIomap>, n_entries: u16) -> Self {
        let n_remote = remote.map_or(0, |r| r.n_entries());
        let exposed = ExposedMemory {
            slots: vec![0; IomapSlots::n_words(n_remote)],
            regions: Vec::new(),
            unsent: Vec::new(),
        };
        Self {
            remote,
            has_unsent: AtomicBool::new(false),
            exposed: Mutex::new(exposed),
            peer_entries: Mutex::new(vec![IomapEntry::default(); n_entries.into()]),
        }
    }

    fn exposed(&self) -> MutexGuard<'_, ExposedMemory<B>> {
        self.exposed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer_entries(&self) -> MutexGuard<'_, Vec<IomapEntry>> {
        self.peer_entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> QpStream<B> {
    /// Copies the entry that an iomap message announces out of the local table.
    pub(super) fn take_iomap(&self, index: u32) -> Result<(), PeerError> {
        let mut entries = self.iomaps.peer_entries();
        let index = checked_index(index, entries.len())?;
        let at = iomap_table_offset(N_SLOTS.into()) + index * IOMAP_ENTRY;
        let mut bytes = [0; IOMAP_ENTRY];
        self.resources.table.copy_out(at, &mut bytes);
        entries[index] = IomapEntry::from_table_bytes(&bytes);
        Ok(())
    }

    /// Registers the caller's memory and, if `peer` may write it, exposes it to the peer under
    /// `offset`, or under its address. Returns the offset.
    ///
    /// # Errors
    /// [`IomapError`].
    #[doc(alias = "riomap")]
    pub fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        peer: RemoteAccess,
    ) -> Result<u64, IomapError> {
        let access = match peer {
            RemoteAccess::Write => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            RemoteAccess::None => Access::LOCAL_WRITE,
        };
        // SAFETY: by the type's invariant; the region is dropped by `withdraw` or with `self`.
        let region = unsafe { self.resources.pd.reg_mr(memory.addr, memory.len, access) }?;
        self.add_region(Arc::new(region), offset, peer)
    }

    /// Allocates zeroed memory of the device and exposes it to the peer under `offset`, or under
    /// its address. Returns it with the offset. [`Self::unexpose`] withdraws it.
    ///
    /// # Errors
    /// [`IomapError`].
    pub fn expose(&self, len: usize, offset: Option<u64>) -> Result<(Arc<B::Mr>, u64), IomapError> {
        let region = self.resources.pd.alloc_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let region = Arc::new(region);
        let offset = self.add_region(Arc::clone(&region), offset, RemoteAccess::Write)?;
        Ok((region, offset))
    }

    fn add_region(
        &self,
        region: Arc<B::Mr>,
        offset: Option<u64>,
        peer: RemoteAccess,
    ) -> Result<u64, IomapError> {
        let offset = offset.unwrap_or(region.addr().0);
        let len = u32::try_from(region.len()).map_err(|_| IomapError::TooLong)?;
        let mut exposed = self.iomaps.exposed();
        let mut index = None;
        if peer == RemoteAccess::Write {
            let n_entries = self.iomaps.remote.map_or(0, |r| r.n_entries());
            let mut slots = IomapSlots::new(&mut exposed.slots, n_entries);
            let taken = slots.allocate().ok_or(IomapError::NoEntry)?;
            let entry = IomapEntry { offset, addr: region.addr(), rkey: region.rkey(), len };
            exposed.unsent.push((taken, entry));
            self.iomaps.has_unsent.store(true, Ordering::Release);
            index = Some(taken);
        }
        exposed.regions.push(RegisteredRegion { region, index });
        drop(exposed);
        let _ = self.flush_iomaps();
        Ok(offset)
    }

    /// Withdraws the memory that was given to [`Self::iomap`] with this address and length. False
    /// if there is none. A write of the peer that is under way still lands, or breaks the
    /// connection: the programs of both ends agree when writes stop.
    #[doc(alias = "riounmap")]
    pub fn iounmap(&self, addr: *const u8, len: usize) -> bool {
        self.withdraw(|r| r.addr().0 == addr.addr() as u64 && r.len() == len)
    }

    /// Withdraws memory from [`Self::expose`].
    pub fn unexpose(&self, region: &dyn MemoryRegion) {
        self.withdraw(|r| r.addr() == region.addr() && r.len() == region.len());
    }

    fn withdraw(&self, wanted: impl Fn(&Arc<B::Mr>) -> bool) -> bool {
        let mut exposed = self.iomaps.exposed();
        let Some(at) = exposed.regions.iter().position(|one| wanted(&one.region)) else {
            return false;
        };
        let withdrawn = exposed.regions.swap_remove(at);
        if let Some(index) = withdrawn.index {
            let n_entries = self.iomaps.remote.map_or(0, |r| r.n_entries());
            // COMPAT: librdmacm leaves the peer an entry that breaks the connection when it is
            // used.
            exposed.unsent.push((index, IomapEntry::default()));
            IomapSlots::new(&mut exposed.slots, n_entries).release(index);
            self.iomaps.has_unsent.store(true, Ordering::Release);
        }
        drop(exposed);
        let _ = self.flush_iomaps();
        true
    }

    /// Whether entries wait to be sent. The caller sends them with [`Self::flush_iomaps`] before
    /// any bytes, because the peer's program may use the entries once it has received those.
    #[inline]
    #[must_use]
    pub fn owes_iomaps(&self) -> bool {
        self.iomaps.has_unsent.load(Ordering::Acquire)
    }

    /// Sends the entries that wait to be sent.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if the peer takes no message now.
    pub fn flush_iomaps(&self) -> Result<(), SendError> {
        let _section = Section::enter();
        let mut exposed = self.iomaps.exposed();
        let Some(remote) = &self.iomaps.remote else { return Ok(()) };
        let mut sent = 0;
        let mut result = Ok(());
        for (index, entry) in &exposed.unsent {
            let write = remote.write(*index, *entry);
            let at = Some((write.remote, write.rkey));
            match self.resources.post_message(at, &[IoSlice::new(&write.bytes)], write.imm) {
                Ok(()) => sent += 1,
                Err(e) => {
                    result = Err(match e {
                        PostError::QueueFull => SendError::WouldBlock,
                        _ => SendError::Failed(libc::EIO),
                    });
                    break;
                }
            }
        }
        exposed.unsent.drain(..sent);
        self.iomaps.has_unsent.store(!exposed.unsent.is_empty(), Ordering::Release);
        drop(exposed);
        if result == Err(SendError::WouldBlock) {
            // The queue pair may have failed, which its completions say.
            self.pump_if_free();
            self.check_send()?;
        }
        result
    }

    /// Writes as much of `bytes` as there is room for directly into the memory that the peer
    /// exposed under `offset`; never blocks. The peer is not notified, but bytes sent later arrive
    /// later. `Ok(0)` means that the peer has exposed no memory there.
    ///
    /// # Errors
    /// [`SendError`], if not one byte could be written.
    #[doc(alias = "riowrite")]
    pub fn try_write_remote(&self, bytes: &[u8], offset: u64) -> Result<usize, SendError> {
        let _section = Section::enter();
        self.check_send()?;
        // The peer may have withdrawn memory meanwhile.
        self.pump_if_free();
        // Where sends wait for the device, the bytes are copied first, as those of messages are.
        let most = if B::SENDS_WAIT { PIECE.min(self.config.max_message) } else { PIECE };
        let mut done = 0;
        while done < bytes.len() {
            if self.queue_is_full() {
                return if done > 0 { Ok(done) } else { Err(SendError::WouldBlock) };
            }
            let rest = &bytes[done..(done + most).min(bytes.len())];
            let at = offset.wrapping_add(done as u64);
            let Some(target) = rsock_proto::lookup(&self.iomaps.peer_entries(), at, rest.len())
            else {
                break;
            };
            let piece = &rest[..target.len as usize];
            let op = SendOp::Write { remote: target.remote, rkey: target.rkey };
            let piece = [IoSlice::new(piece)];
            match self.resources.qp.post_copy(WrId(0), op, &piece, SendFlags::empty()) {
                Ok(()) => done += target.len as usize,
                Err(PostError::QueueFull | PostError::Fault) if done > 0 => break,
                Err(PostError::Fault) => return Err(SendError::Fault),
                Err(PostError::QueueFull) => return Err(SendError::WouldBlock),
                Err(_) => {
                    self.ring.shared.mail.fail(libc::EIO);
                    break;
                }
            }
        }
        if done == 0 && !bytes.is_empty() {
            self.check_send()?;
        }
        Ok(done)
    }
}
