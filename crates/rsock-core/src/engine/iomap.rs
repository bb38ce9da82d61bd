//! iomaps: memory opened to the peer's direct writes, and direct writes into the peer's.
//!
//! What we open goes as an entry into the *peer's* table, announced by a message; what the peer
//! opens arrives in ours. An entry is copied out of the table when its message comes, and only the
//! copy is used. Mappings belong to the process that made them: a forked child has none.

use crate::engine::layout::N_SLOTS;
use crate::engine::stream::{SendError, Stream};
use crate::interrupt::Section;
use rsock_proto::{
    self, IOMAP_ENTRY, IomapEntry, IomapSlots, PeerError, RemoteIomap, checked_index,
    iomap_table_offset,
};
use rsock_verbs::{
    Access, Backend, CompletionQueue, Error, MemoryRegion, PostError, ProtectionDomain, QueuePair,
    SendFlags, SendOp, WrId,
};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest piece of a direct write, in bytes: what one post copies before signals are let in.
const PIECE: usize = 256 << 10;

/// Both tables of a stream.
#[derive(Debug)]
pub(super) struct Iomaps<B: Backend> {
    /// The peer's table, if it offers one.
    remote: Option<RemoteIomap>,
    /// Entries were made or taken back, and their messages are still to be sent.
    owed: AtomicBool,
    ours: Mutex<Ours<B>>,
    /// What the peer has opened to us: entries as they were when their messages came.
    theirs: Mutex<Vec<IomapEntry>>,
}

/// What we have opened to the peer.
#[derive(Debug)]
struct Ours<B: Backend> {
    /// Taken entries of the peer's table.
    slots: Vec<u64>,
    open: Vec<Open<B>>,
    /// Entries to be sent, in order.
    owed: Vec<(usize, IomapEntry)>,
}

#[derive(Debug)]
struct Open<B: Backend> {
    region: Arc<B::Mr>,
    /// Entry of the peer's table; none for memory that is registered and not opened.
    index: Option<usize>,
}

/// Memory of the caller's that a peer may be let in to.
///
/// # Invariants
/// The memory stays valid, and free of references that forbid foreign writes, until it is taken
/// back from the stream that it was opened on, or that stream is dropped.
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

/// Why memory was not opened.
#[derive(Debug)]
pub enum IomapError {
    /// The peer's table is full, or it offers none. (`ENOMEM`)
    NoEntry,
    /// Longer than an entry can say. (`EINVAL`)
    TooLong,
    /// The device refused.
    Device(Error),
}

impl From<Error> for IomapError {
    fn from(e: Error) -> Self {
        Self::Device(e)
    }
}

impl<B: Backend> Iomaps<B> {
    /// For a peer with that table; `n_entries` is the size of ours.
    pub(super) fn new(remote: Option<RemoteIomap>, n_entries: u16) -> Self {
        let n_remote = remote.map_or(0, |r| r.n_entries());
        let ours = Ours {
            slots: vec![0; IomapSlots::n_words(n_remote)],
            open: Vec::new(),
            owed: Vec::new(),
        };
        Self {
            remote,
            owed: AtomicBool::new(false),
            ours: Mutex::new(ours),
            theirs: Mutex::new(vec![IomapEntry::default(); n_entries.into()]),
        }
    }

    fn ours(&self) -> MutexGuard<'_, Ours<B>> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn theirs(&self) -> MutexGuard<'_, Vec<IomapEntry>> {
        self.theirs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> Stream<B> {
    /// Takes the entry that an iomap message announces out of our table.
    pub(super) fn take_iomap(&self, index: u32) -> Result<(), PeerError> {
        let mut theirs = self.iomaps.theirs();
        let index = checked_index(index, theirs.len())?;
        let at = iomap_table_offset(N_SLOTS.into()) + index * IOMAP_ENTRY;
        let mut bytes = [0; IOMAP_ENTRY];
        self.parts.region.copy_out(at, &mut bytes);
        theirs[index] = IomapEntry::from_table_bytes(&bytes);
        Ok(())
    }

    /// Registers the caller's memory and opens it to the peer under `offset`, or under its address.
    /// With `open` false it is registered only. Returns the offset.
    ///
    /// # Errors
    /// [`IomapError`].
    #[doc(alias = "riomap")]
    pub fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        open: bool,
    ) -> Result<u64, IomapError> {
        let access =
            if open { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        // SAFETY: by the type's invariant; the region is dropped by `close_where` or with `self`.
        let region = unsafe { self.parts.pd.reg_mr(memory.addr, memory.len, access) }?;
        self.open(Arc::new(region), offset, open)
    }

    /// Memory of the device's own, zeroed, opened to the peer under `offset` or under its address.
    /// Returns it with the offset. [`Self::close_region`] takes it back.
    ///
    /// # Errors
    /// [`IomapError`].
    pub fn open_region(
        &self,
        len: usize,
        offset: Option<u64>,
    ) -> Result<(Arc<B::Mr>, u64), IomapError> {
        let region = self.parts.pd.alloc_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let region = Arc::new(region);
        let offset = self.open(Arc::clone(&region), offset, true)?;
        Ok((region, offset))
    }

    fn open(&self, region: Arc<B::Mr>, offset: Option<u64>, open: bool) -> Result<u64, IomapError> {
        let offset = offset.unwrap_or(region.addr().0);
        let len = u32::try_from(region.len()).map_err(|_| IomapError::TooLong)?;
        let mut ours = self.iomaps.ours();
        let mut index = None;
        if open {
            let n_entries = self.iomaps.remote.map_or(0, |r| r.n_entries());
            let mut slots = IomapSlots::new(&mut ours.slots, n_entries);
            let taken = slots.allocate().ok_or(IomapError::NoEntry)?;
            let entry = IomapEntry { offset, addr: region.addr(), rkey: region.rkey(), len };
            ours.owed.push((taken, entry));
            self.iomaps.owed.store(true, Ordering::Release);
            index = Some(taken);
        }
        ours.open.push(Open { region, index });
        drop(ours);
        let _ = self.flush_iomaps();
        Ok(offset)
    }

    /// Takes back the memory that was given to [`Self::iomap`] with this address and length. False
    /// if there is none. A write of the peer that is under way still lands, or breaks the
    /// connection: both ends agree when to stop.
    #[doc(alias = "riounmap")]
    pub fn iounmap(&self, addr: *const u8, len: usize) -> bool {
        self.close_where(|r| r.addr().0 == addr.addr() as u64 && r.len() == len)
    }

    /// Takes back memory from [`Self::open_region`].
    pub fn close_region(&self, region: &Arc<B::Mr>) {
        self.close_where(|r| Arc::ptr_eq(r, region));
    }

    fn close_where(&self, wanted: impl Fn(&Arc<B::Mr>) -> bool) -> bool {
        let mut ours = self.iomaps.ours();
        let Some(at) = ours.open.iter().position(|o| wanted(&o.region)) else { return false };
        let closed = ours.open.swap_remove(at);
        if let Some(index) = closed.index {
            let n_entries = self.iomaps.remote.map_or(0, |r| r.n_entries());
            // COMPAT: C leaves the peer an entry that breaks the connection when it is used.
            ours.owed.push((index, IomapEntry::default()));
            IomapSlots::new(&mut ours.slots, n_entries).release(index);
            self.iomaps.owed.store(true, Ordering::Release);
        }
        drop(ours);
        let _ = self.flush_iomaps();
        true
    }

    /// Whether entries wait to be sent: [`Self::flush_iomaps`] before anything that the peer might
    /// take for a sign that they are there.
    #[inline]
    #[must_use]
    pub fn owes_iomaps(&self) -> bool {
        self.iomaps.owed.load(Ordering::Acquire)
    }

    /// Sends the entries that wait.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if the peer takes no message now.
    pub fn flush_iomaps(&self) -> Result<(), SendError> {
        let _section = Section::enter();
        let mut ours = self.iomaps.ours();
        let Some(remote) = &self.iomaps.remote else { return Ok(()) };
        let mut sent = 0;
        let mut result = Ok(());
        for (index, entry) in &ours.owed {
            let write = remote.write(*index, *entry);
            let at = Some((write.remote, write.rkey));
            match self.parts.post_message(at, &[IoSlice::new(&write.bytes)], write.imm) {
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
        ours.owed.drain(..sent);
        self.iomaps.owed.store(!ours.owed.is_empty(), Ordering::Release);
        result
    }

    /// Writes as much of `bytes` as goes directly into the memory that the peer opened under
    /// `offset`; never blocks. The peer is not told, but what is sent afterwards arrives
    /// afterwards. `Ok(0)`: the peer has opened nothing there.
    ///
    /// # Errors
    /// [`SendError`], if not one byte could be written.
    #[doc(alias = "riowrite")]
    pub fn try_put(&self, bytes: &[u8], offset: u64) -> Result<usize, SendError> {
        let _section = Section::enter();
        self.check_send()?;
        // The peer may have taken something back meanwhile.
        if self.parts.cq.is_ready()
            && let Some(mut recv) = self.ring.shared.recv.0.try_lock()
        {
            self.pump(&mut recv);
        }
        // Where sends wait for the device they are copied first, as other messages are.
        let most = if B::SENDS_WAIT { PIECE.min(self.config.max_message) } else { PIECE };
        let mut done = 0;
        while done < bytes.len() {
            if self.queue_is_full() {
                return if done > 0 { Ok(done) } else { Err(SendError::WouldBlock) };
            }
            let rest = &bytes[done..(done + most).min(bytes.len())];
            let at = offset.wrapping_add(done as u64);
            let Some(target) = rsock_proto::lookup(&self.iomaps.theirs(), at, rest.len()) else {
                break;
            };
            let piece = &rest[..target.len as usize];
            let op = SendOp::Write { remote: target.remote, rkey: target.rkey };
            let piece = [IoSlice::new(piece)];
            match self.parts.qp.post_copy(WrId(0), op, &piece, SendFlags::empty()) {
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
