//! Queue pairs: reliable-connected ones, and what those for datagrams (`ud.rs`) have in common with
//! them.

use super::attributes::blank;
use super::convert::{self, int, object, posted, zero};
use super::outstanding_sends::{OutstandingSends, RECEIVE, SIGNALED, next_number};
use super::requests::{NO_SGE, entries, with_empty_recv_wrs, with_recv_wr};
use super::usage::{Counted, Kind};
use super::{MAX_INLINE, MAX_SGE, Rdma, RdmaCq, RdmaPath, RdmaPd};
use crate::device::{Context, QueuePair};
use crate::error::{Error, PostError};
use crate::fault;
use crate::types::{Access, LKey, QKey, QpCap, QpNum, QpState, WrId};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use rsock_rdma_sys::inline;
use rsock_rdma_sys::verbs::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_send_flags, ibv_send_wr, ibv_wr_opcode,
};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue pair.
///
/// # Invariants
/// `raw` came from `ibv_create_qp` and is destroyed exactly once, in `drop`, before the queue and
/// the domain that it holds.
#[derive(Debug)]
pub struct RdmaQp {
    raw: NonNull<ibv_qp>,
    qp_num: QpNum,
    /// The state that this module set, as an index into [`STATES`]; the device may have moved to
    /// `Err` by itself.
    state: AtomicU8,
    /// Held during a change of state.
    moving: Mutex<()>,
    /// Set in `Rtr`, for the step to `Rts`.
    path: Mutex<Option<RdmaPath>>,
    /// Bytes that the device itself copies while posting; this module copies longer requests.
    max_inline: u32,
    sends: Arc<OutstandingSends>,
    cq: Arc<RdmaCq>,
    pd: Arc<RdmaPd>,
    _counted: Counted,
}

// SAFETY: libibverbs's queue pairs may be used from any thread.
unsafe impl Send for RdmaQp {}
// SAFETY: as above, by several at once.
unsafe impl Sync for RdmaQp {}

impl RdmaQp {
    pub(super) fn new(pd: &Arc<RdmaPd>, cq: &Arc<RdmaCq>, cap: QpCap) -> Result<Self, Error> {
        Self::of_type(ibv_qp_type::IBV_QPT_RC, pd, cq, cap)
    }

    pub(super) fn of_type(
        qp_type: ibv_qp_type,
        pd: &Arc<RdmaPd>,
        cq: &Arc<RdmaCq>,
        cap: QpCap,
    ) -> Result<Self, Error> {
        let limits = pd.ctx().attr();
        if cap.max_send_wr > limits.max_qp_wr || cap.max_recv_wr > limits.max_qp_wr {
            return Err(Error::Invalid("queue depth"));
        }
        if cap.max_send_sge > MAX_SGE || cap.max_recv_sge > MAX_SGE {
            return Err(Error::Invalid("scatter/gather entries"));
        }
        if cap.max_inline > limits.max_inline {
            return Err(Error::Invalid("inline length"));
        }
        let init_attr = |max_inline_data| ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw(),
            recv_cq: cq.raw(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: cap.max_send_wr.max(1),
                max_recv_wr: cap.max_recv_wr,
                max_send_sge: cap.max_send_sge.max(1),
                // Some drivers refuse receives without any entry.
                max_recv_sge: cap.max_recv_sge.max(1),
                max_inline_data,
            },
            qp_type,
            sq_sig_all: 0,
        };
        let mut attr = init_attr(cap.max_inline.min(MAX_INLINE));
        let create = |attr: &mut ibv_qp_init_attr| {
            // SAFETY: the domain and the completion queue are live; `attr` is writable.
            let raw = unsafe { pd.ctx().verbs().ibv_create_qp(pd.raw(), attr) };
            object("ibv_create_qp", raw)
        };
        // No call reports the device's inline limit.
        let raw = create(&mut attr).or_else(|_| {
            attr = init_attr(0);
            create(&mut attr)
        })?;
        // SAFETY: the queue pair is live; its number does not change.
        let qp_num = QpNum(unsafe { (*raw.as_ptr()).qp_num });
        // INVARIANT: made here, destroyed by `drop`; the completion queue is held below.
        let sends = OutstandingSends::new(cap.max_send_wr, cap.max_inline, pd.pool());
        cq.attach(qp_num, &sends);
        Ok(Self {
            raw,
            qp_num,
            state: AtomicU8::new(0),
            moving: Mutex::new(()),
            path: Mutex::new(None),
            max_inline: attr.cap.max_inline_data.min(cap.max_inline),
            sends,
            cq: Arc::clone(cq),
            pd: Arc::clone(pd),
            _counted: Counted::one(Kind::QueuePair),
        })
    }

    #[inline]
    fn local_state(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Relaxed)).min(STATES.len() - 1)]
    }

    fn set_state(&self, state: QpState) {
        let place = STATES.iter().position(|other| *other == state).unwrap_or(0);
        self.state.store(u8::try_from(place).unwrap_or(0), Ordering::Relaxed);
    }

    fn moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to change the state, if it is `from`.
    fn moving_from(&self, from: QpState) -> Result<MutexGuard<'_, ()>, Error> {
        let moving = self.moving();
        if self.local_state() == from {
            Ok(moving)
        } else {
            Err(Error::Invalid("queue pair state"))
        }
    }

    fn step(
        &self,
        _moving: MutexGuard<'_, ()>,
        to: QpState,
        attr: &mut ibv_qp_attr,
        mask: i32,
    ) -> Result<(), Error> {
        self.modify(attr, mask)?;
        self.set_state(to);
        Ok(())
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: i32) -> Result<(), Error> {
        let verbs = self.pd.ctx().verbs();
        // SAFETY: the queue pair is live and `attr` is readable.
        zero("ibv_modify_qp", unsafe { verbs.ibv_modify_qp(self.raw.as_ptr(), attr, mask) })
    }

    /// From `Reset` to `Rts`, for datagrams that carry `key`.
    pub(super) fn ready_for_datagrams(&self, key: QKey) -> Result<(), Error> {
        use ibv_qp_attr_mask as M;
        let mut attr = blank(ibv_qp_state::IBV_QPS_INIT);
        attr.port_num = self.pd.port();
        attr.qkey = key.0;
        let steps = [
            (
                QpState::Init,
                ibv_qp_state::IBV_QPS_INIT,
                M::IBV_QP_PKEY_INDEX.0 | M::IBV_QP_PORT.0 | M::IBV_QP_QKEY.0,
            ),
            (QpState::Rtr, ibv_qp_state::IBV_QPS_RTR, 0),
            (QpState::Rts, ibv_qp_state::IBV_QPS_RTS, M::IBV_QP_SQ_PSN.0),
        ];
        let mut from = QpState::Reset;
        for (to, state, mask) in steps {
            attr.qp_state = state;
            let moving = self.moving_from(from)?;
            self.step(moving, to, &mut attr, int(M::IBV_QP_STATE.0 | mask))?;
            from = to;
        }
        Ok(())
    }

    /// How many of its sends were posted, and how many are known to have completed.
    pub(super) fn sends(&self) -> &OutstandingSends {
        &self.sends
    }

    pub(super) fn pd(&self) -> &Arc<RdmaPd> {
        &self.pd
    }

    /// To the error state, also from there: what was posted meanwhile completes.
    fn flush(&self) {
        // In `Reset` there is nothing to flush; in other states only a device that is gone refuses.
        let mask = int(ibv_qp_attr_mask::IBV_QP_STATE.0);
        let _ = self.modify(&mut blank(ibv_qp_state::IBV_QPS_ERR), mask);
    }

    /// The state of the queue pair at the device; `None` if the query fails.
    fn device_state(&self) -> Option<QpState> {
        let mut attr = MaybeUninit::<ibv_qp_attr>::zeroed();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let (verbs, qp) = (self.pd.ctx().verbs(), self.raw.as_ptr());
        let mask = int(ibv_qp_attr_mask::IBV_QP_STATE.0);
        // SAFETY: the queue pair is live and both structures are writable.
        let rc = unsafe { verbs.ibv_query_qp(qp, attr.as_mut_ptr(), mask, init.as_mut_ptr()) };
        // SAFETY: all of its fields are numbers, zero where nothing was written.
        let attr = unsafe { attr.assume_init() };
        (rc == 0).then_some(match attr.qp_state {
            ibv_qp_state::IBV_QPS_RESET => QpState::Reset,
            ibv_qp_state::IBV_QPS_INIT => QpState::Init,
            ibv_qp_state::IBV_QPS_RTR => QpState::Rtr,
            ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD => QpState::Rts,
            _ => QpState::Err,
        })
    }
}

impl Drop for RdmaQp {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_qp`, and `self` is its only owner.
        let _ = unsafe { self.pd.ctx().verbs().ibv_destroy_qp(self.raw.as_ptr()) };
        self.cq.detach(self.qp_num, &self.sends);
    }
}

impl QueuePair<Rdma> for RdmaQp {
    fn qp_num(&self) -> QpNum {
        self.qp_num
    }

    fn state(&self) -> QpState {
        let _moving = self.moving();
        if matches!(self.local_state(), QpState::Rtr | QpState::Rts)
            && let Some(QpState::Err) = self.device_state()
        {
            self.set_state(QpState::Err);
        }
        self.local_state()
    }

    fn init(&self, access: Access) -> Result<(), Error> {
        use ibv_qp_attr_mask as M;
        let mut attr = blank(ibv_qp_state::IBV_QPS_INIT);
        attr.port_num = self.pd.port();
        attr.qp_access_flags = convert::access(access).0;
        let mask = [M::IBV_QP_STATE, M::IBV_QP_PKEY_INDEX, M::IBV_QP_PORT, M::IBV_QP_ACCESS_FLAGS];
        let mask = mask.iter().fold(0, |all, bit| all | bit.0.cast_signed());
        let moving = self.moving_from(QpState::Reset)?;
        self.step(moving, QpState::Init, &mut attr, mask)
    }

    fn ready_to_receive(&self, path: &RdmaPath, dest: QpNum) -> Result<(), Error> {
        let moving = self.moving_from(QpState::Init)?;
        let (mut attr, mask) = path.to_receive(dest)?;
        self.step(moving, QpState::Rtr, &mut attr, mask)?;
        // Its send attributes are set in the next step.
        *self.path.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
        Ok(())
    }

    fn ready_to_send(&self) -> Result<(), Error> {
        let moving = self.moving_from(QpState::Rtr)?;
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner).take();
        let path = path.ok_or(Error::Invalid("queue pair state"))?;
        let (mut attr, mask) = path.to_send()?;
        self.step(moving, QpState::Rts, &mut attr, mask)
    }

    fn fail(&self) {
        let _moving = self.moving();
        self.set_state(QpState::Err);
        self.flush();
    }

    #[inline]
    unsafe fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        // SAFETY: the caller of this function promises the same.
        unsafe { self.post(wr, |_| ()) }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.sends.is_full()
    }

    fn is_idle(&self) -> bool {
        self.sends.is_idle()
    }

    fn unsettled(&self) -> Option<(u64, bool)> {
        self.sends.unsettled()
    }

    fn n_done(&self) -> u64 {
        self.sends.progress().1
    }

    #[inline]
    unsafe fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let state = self.local_state();
        if state == QpState::Reset {
            return Err(PostError::State);
        }
        with_recv_wr(wr, |wr, bad| {
            // SAFETY: the queue pair is live, the request is on the stack of the caller of this
            // closure, and the caller of this function promises the memory that it names.
            posted(unsafe { inline::post_recv(self.raw.as_ptr(), wr, bad) })
        })?;
        if state == QpState::Err {
            // A driver may read receives only when something arrives.
            self.flush();
        }
        Ok(())
    }

    fn post_recvs_empty(&self, id: WrId, n: u32) -> u32 {
        let state = self.local_state();
        if state == QpState::Reset {
            return 0;
        }
        let mut taken = 0;
        while taken < n {
            let more = with_empty_recv_wrs(id, n - taken, |wr, bad| {
                // SAFETY: the queue pair is live, the chain is on the stack of the caller of this
                // closure, and names no memory.
                posted(unsafe { inline::post_recv(self.raw.as_ptr(), wr, bad) }).is_ok()
            });
            if more == 0 {
                break;
            }
            taken += more;
        }
        if state == QpState::Err && taken != 0 {
            // As above.
            self.flush();
        }
        taken
    }
}

impl RdmaQp {
    /// Posts a send; `address` says where a datagram goes.
    ///
    /// # Safety
    /// As for `post_send` of the trait; an address handle that `address` names outlives the
    /// request.
    #[inline]
    pub(super) unsafe fn post(
        &self,
        wr: &SendWr<'_>,
        address: impl FnOnce(&mut ibv_send_wr),
    ) -> Result<(), PostError> {
        if wr.id.0 & (SIGNALED | RECEIVE) != 0 {
            return Err(PostError::Invalid);
        }
        if matches!(self.local_state(), QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State);
        }
        let mut flags = 0;
        let mut sges = [NO_SGE; MAX_SGE as usize];
        let mut n = entries(wr.sges, &mut sges)?;
        let mut ledger = self.sends.lock();
        let mut copied = None;
        let mut own = [MaybeUninit::<u8>::uninit(); MAX_INLINE as usize];
        let len = wr.sges.iter().try_fold(0u32, |len, sge| len.checked_add(sge.len));
        let len = len.ok_or(PostError::Invalid)?;
        if len > self.max_inline {
            // SAFETY: the caller promises readable memory.
            let copy = unsafe { self.sends.copy(&mut ledger, &self.pd, wr.sges, len) };
            let (sge, place) = copy?;
            n = entries(&[sge], &mut sges)?;
            copied = Some(place);
        } else if len != 0 {
            if fault::is_armed() {
                // The driver would copy outside of the code that recovers from faults.
                // SAFETY: the caller promises readable memory, or memory that is not there.
                let sge = unsafe { gather(wr.sges, &mut own) }?;
                n = entries(&[sge], &mut sges)?;
            }
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let is_wanted = wr.flags.contains(SendFlags::SIGNALED);
        let number = (is_wanted || self.sends.is_due(&ledger, copied.as_ref())).then(next_number);
        if number.is_some() {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        // SAFETY: a request of zeros holds null pointers and numbers only.
        let mut raw = unsafe { MaybeUninit::<ibv_send_wr>::zeroed().assume_init() };
        raw.wr_id = number.map_or(wr.id.0, |number| SIGNALED | number);
        raw.sg_list = sges.as_mut_ptr();
        raw.num_sge = n;
        raw.send_flags = flags;
        match wr.op {
            SendOp::Send => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
            SendOp::Write { remote, rkey } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                raw.wr.rdma.remote_addr = remote.0;
                raw.wr.rdma.rkey = rkey.0;
            }
            SendOp::WriteImm { remote, rkey, imm } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                raw.wr.rdma.remote_addr = remote.0;
                raw.wr.rdma.rkey = rkey.0;
                raw.__bindgen_anon_1.imm_data = imm.to_be();
            }
        }
        address(&mut raw);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, the request and its entries are on this stack, and the
        // caller promises the memory that they name.
        posted(unsafe { inline::post_send(self.raw.as_ptr(), &raw mut raw, &raw mut bad) })?;
        ledger.posted(wr.id, number, is_wanted, copied);
        Ok(())
    }
}

/// Copies a short payload to `to`.
///
/// # Errors
/// [`PostError::Fault`].
///
/// # Safety
/// The entries name readable memory, or unmapped memory.
unsafe fn gather(from: &[Sge], to: &mut [MaybeUninit<u8>]) -> Result<Sge, PostError> {
    let mut len = 0;
    for sge in from {
        let n = sge.len as usize;
        let room = to.get_mut(len..len + n).ok_or(PostError::Invalid)?;
        let src = ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap_or(0));
        // SAFETY: the caller's promise, and as much room.
        if !unsafe { fault::copy(src, room.as_mut_ptr().cast(), n) } {
            return Err(PostError::Fault);
        }
        len += n;
    }
    let addr = to.as_ptr().expose_provenance() as u64;
    Ok(Sge { addr, len: u32::try_from(len).unwrap_or(0), lkey: LKey(0) })
}

/// The states, in the order of their numbers in the atomic.
const STATES: [QpState; 5] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err];
