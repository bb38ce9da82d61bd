//! Datagrams: an unreliable queue pair, the slots that it receives in, and the handles that it
//! sends with.
//!
//! Each slot begins with 40 bytes in which the device puts the packet's network header. A slot
//! belongs to the device from the moment it is posted until its completion is taken; then its
//! datagram is copied out, under the lock of the receiving side, and the slot is posted again. It
//! is as long as the longest packet that the port could ever carry, because a longer one breaks the
//! queue.
//!
//! Sends are copied while they are posted (`outstanding_sends.rs`), and their completions only make
//! room.

use super::address_handles::{Address, AddressHandles};
use super::qp::RdmaQp;
use super::{Rdma, RdmaBell, RdmaContext, RdmaCq, RdmaMr, RdmaPath, RdmaPd};
use crate::datagram::{
    Arrived, DatagramBackend, DatagramCounters, DatagramError, DatagramQueue, Posted,
};
use crate::device::{CompletionQueue, Context, MemoryRegion, Parked, ProtectionDomain, QueuePair};
use crate::error::{Error, PostError};
use crate::types::{Access, Gid, LKey, QKey, QpCap, QpNum, WrId};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use rsock_rdma_sys::verbs::{
    ibv_qp_type, ibv_send_wr, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A datagram queue.
#[derive(Debug)]
pub struct RdmaUd {
    /// Dropped before the memory and the handles that it uses.
    qp: RdmaQp,
    slots: RdmaMr,
    slot_len: usize,
    address_handles: AddressHandles,
    max_len: usize,
    rx: Mutex<UdRx>,
    counts: Counts,
    is_broken: AtomicBool,
    cq: Arc<RdmaCq>,
}

/// The receiving side: the holder of its lock polls, and owns the slots whose completions it takes.
#[derive(Debug, Default)]
struct UdRx {
    /// Slots that the device refused to take back.
    idle: Vec<u64>,
}

#[derive(Debug, Default)]
struct Counts {
    n_sent: AtomicU64,
    n_received: AtomicU64,
    n_malformed: AtomicU64,
}

/// Where datagrams go: a queue of a host.
#[derive(Clone, Debug)]
pub struct RdmaDestination {
    address: Arc<Address>,
    dest: QpNum,
    key: QKey,
}

/// A datagram in its slot.
struct Found<'a> {
    slots: &'a RdmaMr,
    /// Where the slot begins.
    at: usize,
    len: usize,
    src: QpNum,
}

impl Arrived for Found<'_> {
    fn src(&self) -> QpNum {
        self.src
    }

    /// # Source
    /// InfiniBand specification, volume 1, annex A17 (RoCEv2), section 4.5.2: an IPv4 header takes
    /// the second half of the 40 bytes.
    fn source(&self) -> Option<IpAddr> {
        let mut header = [0; HEADER];
        self.slots.copy_out(self.at, &mut header);
        let v4: [u8; 4] = header[32..36].try_into().ok()?;
        let v6: [u8; 16] = header[8..24].try_into().ok()?;
        match (header[0] >> 4, header[20] >> 4) {
            (6, _) => Some(Ipv6Addr::from(v6).to_canonical()),
            (_, 4) => Some(Ipv4Addr::from(v4).into()),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        let end = offset.checked_add(dst.len()).filter(|end| *end <= self.len);
        assert!(end.is_some(), "{} bytes at {offset} of {}", dst.len(), self.len);
        self.slots.copy_out(self.at + HEADER + offset, dst);
    }
}

impl DatagramBackend for Rdma {
    type Datagrams = RdmaUd;
    type Destination = RdmaDestination;
    const KNOWS_LOSS: bool = false;

    /// On the device's first port; [`RdmaContext::create_datagrams`] takes any port.
    fn create_datagrams(ctx: &RdmaContext, key: QKey) -> Result<RdmaUd, Error> {
        ctx.create_datagrams(1, key)
    }
}

impl RdmaContext {
    /// A datagram queue on `port` that accepts datagrams with `key`.
    ///
    /// # Errors
    /// When memory, numbers or descriptors run out; the driver's error.
    pub fn create_datagrams(&self, port: u8, key: QKey) -> Result<RdmaUd, Error> {
        RdmaUd::new(self, port, key)
    }
}

impl RdmaUd {
    fn new(ctx: &RdmaContext, port: u8, key: QKey) -> Result<Self, Error> {
        let (mtu, max_mtu) = ctx.mtus(port)?;
        // A domain of its own, so no peer learns a key.
        let pd = RdmaPd::new(ctx, &ctx.path_from(port, Gid([0; 16]))?)?;
        let slot_len = (HEADER + max_mtu).next_multiple_of(64);
        let mut n_slots = N_SLOTS.min(ctx.attr().max_qp_wr);
        let slots = loop {
            let len = slot_len * n_slots as usize;
            match pd.alloc_mr(len, Access::LOCAL_WRITE) {
                Ok(slots) => break slots,
                // The limit of pinned memory may be low: few slots are better than none.
                Err(_) if n_slots > FEWEST => n_slots /= 2,
                Err(e) => return Err(e),
            }
        };
        let cq = RdmaCq::device(ctx, SEND_DEPTH + n_slots)?;
        let cap = QpCap {
            max_send_wr: SEND_DEPTH,
            max_recv_wr: n_slots,
            max_send_sge: 1,
            max_recv_sge: 1,
            has_recv_ids: true,
            max_inline: u32::try_from(mtu).unwrap_or(0),
        };
        let qp = RdmaQp::of_type(ibv_qp_type::IBV_QPT_UD, &pd, &cq, cap)?;
        qp.ready_for_datagrams(key)?;
        let this = Self {
            qp,
            slots,
            slot_len,
            address_handles: AddressHandles::default(),
            max_len: mtu,
            rx: Mutex::default(),
            counts: Counts::default(),
            is_broken: AtomicBool::new(false),
            cq,
        };
        for slot in 0..u64::from(n_slots) {
            this.post_slot(slot).map_err(|_| Error::Exhausted("receive queue"))?;
        }
        Ok(this)
    }

    /// Whether the device has not sent yet what was posted before, so that a datagram may find no
    /// room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.cq.gather();
        self.qp.sends().is_full()
    }

    /// Whether the queue has failed: nothing is sent or received any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Number of address handles, for tests: a bounded number for recent hosts, and those that
    /// callers or posted sends still use.
    #[must_use]
    pub fn n_address_handles(&self) -> usize {
        self.address_handles.len()
    }

    fn rx(&self) -> MutexGuard<'_, UdRx> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an unused slot to the device.
    fn post_slot(&self, slot: u64) -> Result<(), PostError> {
        let at = self.place(slot);
        let sge = self.slots.sge(at, u32::try_from(self.slot_len).unwrap_or(0));
        // SAFETY: the slot lies in a region that lives as long as the queue pair, and no thread
        // touches it until its completion is taken; a thread that polls and posts holds the lock of
        // the receiving side, or is the only one that knows of the queue.
        unsafe { self.qp.post_recv(&RecvWr { id: WrId(slot), sges: &[sge] }) }
    }

    fn place(&self, slot: u64) -> usize {
        usize::try_from(slot).unwrap_or(usize::MAX).saturating_mul(self.slot_len)
    }

    /// Decodes a completion; the caller owns its slot then.
    fn found(&self, wc: &Completion) -> Option<Found<'_>> {
        if wc.status != WcStatus::SUCCESS {
            self.is_broken.store(true, Ordering::Relaxed);
            return None;
        }
        let len = usize::try_from(wc.len).unwrap_or(usize::MAX);
        let is_sound = wc.op == WcOp::Recv && (HEADER..=self.slot_len).contains(&len);
        let at = self.place(wc.id.0);
        is_sound.then(|| Found { slots: &self.slots, at, len: len - HEADER, src: QpNum(wc.imm) })
    }

    /// Posts a copy of the bytes that `sges` name.
    ///
    /// # Safety
    /// The entries name readable memory.
    unsafe fn post_copied(&self, to: &RdmaDestination, sges: &[Sge]) -> Result<(), PostError> {
        let wr = SendWr { id: WrId(0), op: SendOp::Send, sges, flags: SendFlags::empty() };
        let address = |raw: &mut ibv_send_wr| {
            let (ah, remote_qpn, remote_qkey) = (to.address.raw(), to.dest.0, to.key.0);
            raw.wr = ibv_send_wr__bindgen_ty_2 {
                ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey },
            };
        };
        // SAFETY: the caller promises the memory. The handle outlives the request: the destination
        // holds it until this returns, and the address_handles after that, until the request is
        // done.
        unsafe { self.qp.post(&wr, address) }
    }
}

impl DatagramQueue<Rdma> for RdmaUd {
    fn qp_num(&self) -> QpNum {
        self.qp.qp_num()
    }

    fn max_len(&self) -> usize {
        self.max_len
    }

    fn room(&self, _len: usize) -> usize {
        self.slots.len() / self.slot_len
    }

    fn admit(&self, _path: &RdmaPath) -> Result<(), Error> {
        Ok(())
    }

    fn destination(
        &self,
        path: &RdmaPath,
        dest: QpNum,
        key: QKey,
    ) -> Result<RdmaDestination, Error> {
        let sends = || self.qp.sends().progress();
        let address = self.address_handles.address(self.qp.pd(), path, sends)?;
        Ok(RdmaDestination { address, dest, key })
    }

    fn post(&self, to: &RdmaDestination, payload: &[IoSlice<'_>]) -> Result<Posted, DatagramError> {
        let len = payload.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        if len > self.max_len {
            return Err(DatagramError::TooLong);
        }
        if self.is_broken() {
            return Err(DatagramError::Broken);
        }
        let mut whole = Vec::new();
        let mut few = [Sge { addr: 0, len: 0, lkey: LKey(0) }; PIECES];
        let mut n = 0;
        let mut add = |piece: &[u8]| {
            let addr = piece.as_ptr().expose_provenance() as u64;
            few[n] = Sge { addr, len: u32::try_from(piece.len()).unwrap_or(0), lkey: LKey(0) };
            n += 1;
        };
        if payload.len() <= PIECES {
            payload.iter().for_each(|piece| add(piece));
        } else {
            payload.iter().for_each(|piece| whole.extend_from_slice(piece));
            add(&whole);
        }
        // SAFETY: the pieces are borrowed, so readable, for the whole call.
        let post = || unsafe { self.post_copied(to, &few[..n]) };
        let posted = match post() {
            // The completion queue shows what was sent.
            Err(PostError::QueueFull) => {
                self.cq.gather();
                post()
            }
            posted => posted,
        };
        match posted {
            Ok(()) => {
                self.counts.n_sent.fetch_add(1, Ordering::Relaxed);
                Ok(Posted::Out)
            }
            Err(PostError::QueueFull) => Err(DatagramError::Full),
            // Programs with memory that may be unmapped send no datagrams here.
            Err(PostError::State | PostError::Invalid | PostError::Fault) => {
                Err(DatagramError::Broken)
            }
        }
    }

    fn ring(&self, _to: &RdmaDestination) {}

    fn try_recv(&self, take: &mut dyn FnMut(&dyn Arrived)) -> bool {
        let mut rx = self.rx();
        rx.idle.retain(|slot| self.post_slot(*slot).is_err());
        let mut wc = [Completion::BLANK];
        while self.cq.poll(&mut wc) == 1 {
            let found = self.found(&wc[0]);
            let count = match &found {
                Some(_) => &self.counts.n_received,
                None => &self.counts.n_malformed,
            };
            count.fetch_add(1, Ordering::Relaxed);
            let any = found.is_some();
            if let Some(found) = found {
                take(&found);
            }
            let is_receive = wc[0].op == WcOp::Recv;
            if is_receive && !self.is_broken() && self.post_slot(wc[0].id.0).is_err() {
                rx.idle.push(wc[0].id.0);
            }
            if any {
                return true;
            }
        }
        false
    }

    fn is_ready(&self) -> bool {
        self.cq.is_ready()
    }

    fn arm(&self, bell: &RdmaBell) -> bool {
        self.cq.arm(bell)
    }

    fn disarm(&self, bell: &RdmaBell) {
        self.cq.disarm(bell);
    }

    fn wake_epoch(&self) -> u32 {
        self.cq.wake_epoch()
    }

    fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        self.cq.park_since(epoch, timeout)
    }

    fn wake_waiters(&self) {
        self.cq.wake_waiters();
    }

    fn sweep(&self) {
        self.address_handles.tidy(|| self.qp.sends().progress());
    }

    fn counters(&self) -> DatagramCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DatagramCounters {
            n_sent: read(&self.counts.n_sent),
            n_received: read(&self.counts.n_received),
            n_malformed: read(&self.counts.n_malformed),
            ..DatagramCounters::default()
        }
    }
}

/// Bytes that the device puts before each datagram.
const HEADER: usize = 40;
/// Slots of a queue, if the limit of pinned memory permits.
const N_SLOTS: u32 = 128;
/// Fewest slots of a queue.
const FEWEST: u32 = 16;
/// Sends under way.
const SEND_DEPTH: u32 = 127;
/// Most pieces of a datagram that are not joined first.
const PIECES: usize = 8;
