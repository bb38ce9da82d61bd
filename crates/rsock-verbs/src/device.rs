//! What a device must provide. Read this before any device: `soft` implements it in shared memory,
//! an RDMA device implements it over rdma-core, and the engine is generic over [`Backend`].
//!
//! The shapes are those of libibverbs: protection domain, memory region, completion queue, queue
//! pair. Each queue pair has a completion queue of its own, for its sends and receives. Two
//! additions let one engine serve both kinds of device:
//!
//! * [`ProtectionDomain::alloc_mr`]: memory that the device itself provides, so that a device in
//!   shared memory can hand out memory that is shared from the start;
//! * [`CompletionQueue::park`] and [`CompletionQueue::arm`]: sleeping on a queue, in a way that a
//!   device may make cheaper than an event on a descriptor.

use crate::error::{Error, PostError};
use crate::types::{Access, DeviceAttr, LKey, QpCap, QpNum, QpState, RKey, RemoteAddr, WrId};
use crate::wc::Completion;
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use std::fmt::Debug;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod sealed {
    /// Closes [`super::Backend`]: only the devices of this crate implement it.
    #[allow(unnameable_types, reason = "that is the point of a sealed trait")]
    pub trait Sealed {}
}

/// A family of device objects.
pub trait Backend: sealed::Sealed + Sized + Copy + Debug + Send + Sync + 'static {
    /// The name that is shown: `soft`, `rdma`.
    const NAME: &'static str;
    /// Send requests worth queueing at once.
    const SEND_DEPTH: u32;
    /// Whether sends wait in their queue for the device, so that room there is an event:
    /// [`CompletionQueue::wake_epoch`] changes with it. Where not, they are done when posting
    /// returns, as a rule.
    const SENDS_WAIT: bool;
    /// Whether registered memory stays taken for as long as it is registered, touched or not:
    /// [`MemoryRegion::punch`] does nothing.
    const PINS: bool;
    /// An opened device.
    type Context: Context<Self>;
    /// Protection domain.
    type Pd: ProtectionDomain<Self>;
    /// Memory region.
    type Mr: MemoryRegion;
    /// Completion queue.
    type Cq: CompletionQueue<Self>;
    /// Reliable-connected queue pair.
    type Qp: QueuePair<Self>;
    /// The path to a queue pair's peer: what `RTR` needs besides the peer's number.
    type Path: Clone + Debug + Send + Sync;
    /// A thread's own doorbell, for waiting on many queues at once.
    type Bell: Bell;
}

/// An opened device. Everything made from it keeps it open.
pub trait Context<B: Backend>: Clone + Debug + Send + Sync {
    /// Limits and abilities.
    fn attr(&self) -> DeviceAttr;

    /// A new protection domain for queue pairs whose peer is at `path`.
    ///
    /// A domain is the memory that one peer may write: on the soft device a process, on an RDMA
    /// device a host. Two calls for the same peer give the same domain.
    ///
    /// # Errors
    /// When memory or descriptors run out.
    fn alloc_pd(&self, path: &B::Path) -> Result<Arc<B::Pd>, Error>;

    /// A doorbell for the calling thread.
    ///
    /// # Errors
    /// When descriptors run out.
    fn create_bell(&self) -> Result<B::Bell, Error>;
}

/// A protection domain: regions and queue pairs of one domain work together, others do not.
pub trait ProtectionDomain<B: Backend>: Debug + Send + Sync {
    /// A region of `len` zeroed bytes that the device provides. Page aligned; pages are taken when
    /// they are first touched.
    ///
    /// # Errors
    /// `Exhausted` when the domain or the machine has no room; `Invalid` for length 0 or remote
    /// access without local write.
    fn alloc_mr(self: &Arc<Self>, len: usize, access: Access) -> Result<B::Mr, Error>;

    /// Registers the caller's memory.
    ///
    /// # Safety
    /// `addr..addr + len` stays valid, and is not referenced by Rust references that forbid
    /// foreign writes, until the region is dropped.
    ///
    /// # Errors
    /// `Unsupported` where remote access to foreign memory cannot be given; `Exhausted`.
    #[doc(alias = "ibv_reg_mr")]
    unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<B::Mr, Error>;

    /// A new queue pair in state `Reset`, and the completion queue of its sends and receives. The
    /// device may implement many such queues by one.
    ///
    /// # Errors
    /// When memory runs out or a limit is exceeded.
    fn create_qp(
        self: &Arc<Self>,
        ctx: &B::Context,
        cap: QpCap,
    ) -> Result<(Arc<B::Cq>, B::Qp), Error>;
}

/// Registered memory. A peer may write it at any time, so it is reached by bounded copies only:
/// no reference into it exists.
pub trait MemoryRegion: Debug + Send + Sync {
    /// Virtual address of the first byte, for [`crate::Sge`]s and for the peer.
    fn addr(&self) -> RemoteAddr;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the region is empty; never true.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Key for local use.
    fn lkey(&self) -> LKey;
    /// Key for the peer.
    fn rkey(&self) -> RKey;
    /// Copies `src` to `offset`.
    ///
    /// # Panics
    /// If the span lies outside the region: offsets come from local bookkeeping.
    fn copy_in(&self, offset: usize, src: &[u8]);
    /// Copies from `offset` into `dst`. Bytes that a peer writes meanwhile arrive torn, no worse.
    ///
    /// # Panics
    /// If the span lies outside the region.
    fn copy_out(&self, offset: usize, dst: &mut [u8]);
    /// As [`Self::copy_out`], to memory of a program that may be missing, where
    /// [`crate::fault::arm`] was called. False if it is; then any part of it may have been written.
    ///
    /// # Panics
    /// If the span lies outside the region.
    #[must_use]
    fn try_copy_out(&self, offset: usize, dst: &mut [u8]) -> bool;
    /// Gives the pages under `offset..offset + len` back to the system; they read as zero after.
    /// Only whole pages are given back. A hint: devices that pin memory do nothing.
    fn punch(&self, offset: usize, len: usize);
}

/// Why a parked thread runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// Something may have completed: poll.
    Woken,
    /// The timeout is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// A completion queue. `poll` may be called by one thread at a time: the engine holds a pump lock.
pub trait CompletionQueue<B: Backend>: Debug + Send + Sync {
    /// Takes up to `out.len()` completions; returns how many. Never blocks.
    #[doc(alias = "ibv_poll_cq")]
    fn poll(&self, out: &mut [Completion]) -> usize;

    /// As [`Self::poll`], of one completion.
    #[inline]
    fn poll_one(&self) -> Option<Completion> {
        Completion::one(|out| self.poll(out))
    }

    /// Whether `poll` would likely find something. Cheap (on the soft device a load), may be wrong
    /// both ways for a moment, and takes no lock: for spinning.
    fn is_ready(&self) -> bool;

    /// As [`Self::is_ready`], but a completion that no call has fetched from the device yet does
    /// not count where to fetch one costs a call of the driver.
    fn has_reported(&self) -> bool {
        self.is_ready()
    }

    /// Whether the peer has granted room that a request which found none has asked for. The next
    /// poll takes note of it, and reports nothing: its caller wakes those that wait for room.
    fn has_granted_room(&self) -> bool {
        false
    }

    /// Runs `f` while the peers of this queue's queue pairs write nothing, neither messages nor
    /// memory: their requests wait meanwhile, so `f` is short. Returns false, without running `f`,
    /// if a peer is writing now or the device cannot keep peers out. One caller at a time: the one
    /// that may [`Self::poll`].
    fn exclusively(&self, f: &mut dyn FnMut()) -> bool {
        let _ = f;
        false
    }

    /// Gives memory in which messages arrive back to the system, if none has arrived. Called inside
    /// [`Self::exclusively`]. A hint, as [`MemoryRegion::punch`] is.
    fn punch(&self) {}

    /// Asks for one ring of `bell` at the next completion, until [`Self::disarm`]. Returns false if
    /// the queue is already ready (then nothing was armed), or has no room for another bell (then
    /// the caller must not sleep without a bound). After `true` no further poll is needed: arming
    /// checks again behind a full fence.
    #[doc(alias = "ibv_req_notify_cq")]
    fn arm(&self, bell: &B::Bell) -> bool;

    /// Undoes an [`Self::arm`]. A ring that is on its way may still arrive.
    fn disarm(&self, bell: &B::Bell);

    /// Sleeps until a completion may be there, `timeout` is over, or a signal handler ran. Returns
    /// `Woken` at once if the queue is ready. Does not notice the peer's death: bound the time.
    ///
    /// A [`Self::wake_waiters`] before the call is not seen: to wait for something that another
    /// thread takes from the queue, use [`Self::park_since`].
    fn park(&self, timeout: Option<Duration>) -> Parked;

    /// Counts the calls of [`Self::wake_waiters`]; wraps.
    fn wake_epoch(&self) -> u32;

    /// As [`Self::park`], and returns `Woken` at once if [`Self::wake_waiters`] was called since
    /// `epoch` was read. Read the epoch, check the condition, then park: no wake-up is lost.
    fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked;

    /// Wakes every thread of this process family that parks or has armed a bell here: for a thread
    /// that took completions which others wait for.
    fn wake_waiters(&self);

    /// Whether the thread of the peer that last woke a sleeper here ran on another CPU than the
    /// calling thread. `None` if that is unknown, as it is of a peer on another host.
    fn is_peer_elsewhere(&self) -> Option<bool> {
        None
    }
}

/// A thread's doorbell: a descriptor that is readable once some armed queue completed something.
pub trait Bell: AsFd + Debug + Send {
    /// Rings it: for its owner, if it found something while arming.
    fn ring(&self);
    /// Empties it. Call with every queue disarmed or about to be polled.
    fn drain(&self);
    /// A second descriptor that becomes readable in its stead. A thread that sleeps watches both.
    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A reliable-connected queue pair.
pub trait QueuePair<B: Backend>: Debug + Send + Sync {
    /// Its number, for the peer.
    fn qp_num(&self) -> QpNum;
    /// Its state now.
    fn state(&self) -> QpState;
    /// `Reset` to `Init`; `access` is what the peer may do.
    ///
    /// # Errors
    /// `Invalid` in another state.
    fn init(&self, access: Access) -> Result<(), Error>;
    /// `Init` to `Rtr`: the peer is queue pair `dest` at `path`.
    ///
    /// # Errors
    /// `Invalid` in another state; `PeerGone`.
    fn ready_to_receive(&self, path: &B::Path, dest: QpNum) -> Result<(), Error>;
    /// `Rtr` to `Rts`.
    ///
    /// # Errors
    /// `Invalid` in another state.
    fn ready_to_send(&self) -> Result<(), Error>;
    /// To `Err`, from any state: everything posted completes with
    /// [`WcStatus::WR_FLUSH`](crate::WcStatus::WR_FLUSH).
    fn fail(&self);

    /// Posts a send. Its payload is copied before this returns. Requests complete in order; RDMA
    /// WRITEs land in order.
    ///
    /// # Safety
    /// The entries name memory that is readable during the call, or, where [`crate::fault::arm`]
    /// was called, that may be missing.
    ///
    /// # Errors
    /// [`PostError`]; the request was not taken. `QueueFull` also where the device does not keep
    /// requests until the peer posts a receive.
    #[doc(alias = "ibv_post_send")]
    unsafe fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError>;

    /// Whether the next send may find no room, but for a few of no payload. Polling the completion
    /// queue makes room.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether everything up to the last signaled send has completed, and that completion was
    /// polled.
    fn is_idle(&self) -> bool {
        true
    }

    /// If not all sends are known to have completed: how many are, and whether none of the others
    /// is signaled, so that nothing will tell. By the completions that were polled.
    fn unsettled(&self) -> Option<(u64, bool)> {
        None
    }

    /// Sends that are known to have completed, by the completions that were polled. Where sends do
    /// not wait it is meaningless.
    fn n_done(&self) -> u64 {
        0
    }

    /// Records that the program has consumed `n` more bytes of what arrived, where the peer can
    /// read it even if this process is killed. The sum stops at `u64::MAX`, which means that
    /// nothing is missing. One caller at a time.
    fn note_consumed(&self, n: u64) {
        _ = n;
    }

    /// Sum of what the peer has noted with [`Self::note_consumed`]. `None` where the device cannot
    /// tell.
    fn consumed_by_peer(&self) -> Option<u64> {
        None
    }

    /// Whether the peer's process has ended. Costs a system call; false where the device does not
    /// know.
    fn is_peer_dead(&self) -> bool {
        false
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The memory that the entries name stays registered and valid until the receive completes. As
    /// long as such a receive is posted, one thread at a time polls the completion queue, and one
    /// posts receives.
    ///
    /// # Errors
    /// [`PostError`].
    #[doc(alias = "ibv_post_recv")]
    unsafe fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError>;

    /// As [`Self::post_send`], of at most eight borrowed pieces.
    ///
    /// # Errors
    /// [`PostError`]; the request was not taken.
    #[inline]
    fn post_copy(
        &self,
        id: WrId,
        op: SendOp,
        payload: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        if let SendOp::WriteImm { remote, rkey, imm } = op
            && let [piece] = payload
            && flags.is_empty()
        {
            return self.post_write_imm(id, (remote, rkey), imm, piece);
        }
        self.post_pieces(id, op, payload, flags)
    }

    /// As [`Self::post_copy`], by [`Self::post_send`].
    ///
    /// # Errors
    /// [`PostError`]; the request was not taken.
    fn post_pieces(
        &self,
        id: WrId,
        op: SendOp,
        payload: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let post = |sges: &[Sge]| {
            let wr = SendWr { id, op, sges, flags };
            // SAFETY: the pieces are borrowed, so readable, for the whole call.
            unsafe { self.post_send(&wr) }
        };
        // PERF: most messages are one piece, for which there is no list to clear.
        if let [piece] = payload {
            return post(&[Sge::of_borrowed(piece)?]);
        }
        let mut sges = [Sge { addr: 0, len: 0, lkey: LKey(0) }; 8];
        let Some(sges) = sges.get_mut(..payload.len()) else { return Err(PostError::Invalid) };
        for (sge, piece) in sges.iter_mut().zip(payload) {
            *sge = Sge::of_borrowed(piece)?;
        }
        post(sges)
    }

    /// As [`Self::post_copy`], of a WRITE WITH IMMEDIATE of one piece for which no completion is
    /// asked, as most messages are.
    ///
    /// # Errors
    /// [`PostError`]; the request was not taken.
    #[inline]
    fn post_write_imm(
        &self,
        id: WrId,
        (remote, rkey): (RemoteAddr, RKey),
        imm: u32,
        piece: &[u8],
    ) -> Result<(), PostError> {
        let op = SendOp::WriteImm { remote, rkey, imm };
        self.post_pieces(id, op, &[IoSlice::new(piece)], SendFlags::empty())
    }

    /// Posts a receive without memory: what a peer's write-with-immediate consumes.
    ///
    /// # Errors
    /// As [`Self::post_recv`].
    #[inline]
    fn post_recv_empty(&self, id: WrId) -> Result<(), PostError> {
        // SAFETY: no memory is named.
        unsafe { self.post_recv(&RecvWr { id, sges: &[] }) }
    }

    /// As [`Self::post_recv_empty`] `n` times, each with `id`. Returns how many receives were
    /// posted: all, or those before the first that the queue pair refuses.
    fn post_recvs_empty(&self, id: WrId, n: u32) -> u32 {
        (0..n).find(|_| self.post_recv_empty(id).is_err()).unwrap_or(n)
    }
}
