//! A stream before its peer is known.

use crate::engine::QpStream;
use crate::engine::buffers::adaptive::AdaptiveBuffer;
use crate::engine::buffers::layout::{Layout, N_SLOTS};
use crate::engine::buffers::ring::Ring;
use crate::engine::config::{Config, Wire};
use crate::engine::delivery_timeout::DeliveryTimeout;
use crate::engine::keepalive::KeepaliveProber;
use crate::engine::remote_memory::Iomaps;
use crate::engine::resources::Resources;
use crate::engine::send::MAX_PIECES;
use crate::engine::shared::{CacheAligned, Mailbox, RecvState, SendState, Shared};
use crate::engine::wait::HoldBack;
use crate::engine::wait::coalesce::WakeCoalescing;
use crate::engine::working_set::WorkingSet;
use crate::fork;
use crate::page_reclaim::{self, Reclaimable, RingUsage};
use rsock_proto::{
    self, ConnData, ConnFlags, CtrlWindow, EMPTY_SLOT, Lifecycle, PROTOCOL_VERSION, RecvConfig,
    RecvHalf, RemoteSge, SendConfig, SendHalf,
};
use rsock_verbs::family::{self, FamilyBox, Lock};
use rsock_verbs::{
    Access, Backend, Context, Error, MemoryRegion, ProtectionDomain, QpCap, QpNum, QueuePair,
};
use std::sync::{Arc, Weak};

/// Bytes copied while one request is posted, at most.
const COPIED: u32 = 1 << 20;
/// Credits kept for this end's control messages, where the peer posts no spare receives
/// (librdmacm).
const RESERVE: u16 = 8;

/// A stream before its peer is known: queues made, receives posted, memory registered.
#[derive(Debug)]
pub struct Preparing<B: Backend> {
    resources: Resources<B>,
    recv: RecvHalf,
    config: Config,
}

impl<B: Backend> Preparing<B> {
    /// Creates everything that this end's connection data names.
    ///
    /// # Errors
    /// When memory, queues or descriptors run out.
    pub fn new(ctx: &B::Context, path: &B::Path, config: &Config) -> Result<Self, Error> {
        let config = &config.on_device::<B>();
        let wire = if ctx.attr().write_with_imm { Wire::WriteImm } else { Wire::MsgSend };
        let idle = config.when_idle::<B>();
        let layout = Layout::new(&idle, wire, !B::PINS);
        let pd = ctx.alloc_pd(path)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = Arc::new(pd.alloc_mr(layout.len, access)?);
        let table = match layout.has_own_ring() {
            true => Arc::new(pd.alloc_mr(layout.table_end, access)?),
            false => Arc::clone(&region),
        };
        let depth = config.recv_depth();
        let max_inline = ctx.attr().max_inline;
        // A message is copied while it is posted, so it is no longer than one post copies.
        let max_message = config.max_message.min(usize::try_from(max_inline).unwrap_or(usize::MAX));
        let first_message = config.first_message.min(max_message);
        let config = &Config { max_message, first_message, ..*config };
        let cap = QpCap {
            max_send_wr: B::SEND_DEPTH,
            max_recv_wr: depth,
            max_send_sge: u32::try_from(MAX_PIECES).unwrap_or(1),
            // A receive that only takes an immediate needs no scatter entry.
            max_recv_sge: u32::from(wire == Wire::MsgSend),
            has_recv_ids: wire == Wire::MsgSend,
            max_inline: max_inline.min(COPIED),
        };
        let (cq, qp) = pd.create_qp(ctx, cap)?;
        qp.init(Access::REMOTE_WRITE)?;
        let ring = layout.ring_in::<B>(&region, &idle, layout.begins_short());
        let recv = RecvHalf::new(RecvConfig {
            region: ring.region,
            rkey: ring.rkey,
            buf_len: ring.buf_len,
            n_bufs: ring.n_bufs,
            window: config.window,
            first_len: ring.buf_len,
        });
        for i in 0..usize::from(N_SLOTS) {
            table.copy_in(Layout::slot(i), &EMPTY_SLOT);
        }
        let resources = Resources { qp, cq, region, table, layout, wire, pd, path: path.clone() };
        if !resources.post_first_receives(depth) {
            return Err(Error::Exhausted("receive queue"));
        }
        Ok(Self { resources, recv, config: *config })
    }

    /// The connection data for the peer.
    #[must_use]
    pub fn conn_data(&self) -> ConnData {
        let (credits, data_buf) = self.recv.conn_fields();
        let mut flags = ConnFlags::LOCAL;
        flags.set(ConnFlags::EXT, self.config.extensions);
        ConnData {
            version: PROTOCOL_VERSION,
            flags,
            credits,
            target_iomap_size: rsock_proto::iomap_size_to_wire(self.config.iomap_slots.into()),
            target_sgl: RemoteSge {
                addr: self.resources.table.addr(),
                key: self.resources.table.rkey(),
                len: N_SLOTS.into(),
            },
            data_buf,
        }
    }

    /// Number of the queue pair, for the peer.
    #[must_use]
    pub fn qp_num(&self) -> QpNum {
        self.resources.qp.qp_num()
    }

    /// Connects to queue pair `dest`, whose owner sent `peer`.
    ///
    /// # Errors
    /// `Invalid` if the peer's connection data cannot be used; `PeerGone`.
    pub fn connect(self, peer: &ConnData, dest: QpNum) -> Result<QpStream<B>, Error> {
        let send = SendHalf::new(
            SendConfig {
                max_message: u32::try_from(self.config.max_message)
                    .unwrap_or(rsock_proto::MAX_DATA_LEN),
                n_slots: N_SLOTS,
            },
            peer,
        )
        .map_err(|_| Error::PeerViolation("connection data"))?;
        let send = if peer.has_ext() { send } else { send.with_reserve(RESERVE) };
        let mut recv = self.recv;
        recv.set_peer(peer).map_err(|_| Error::PeerViolation("connection data"))?;
        let shared = FamilyBox::new(Shared {
            send: CacheAligned(Lock::new(SendState { half: send, credits_seen: 0, sent: 0 })),
            recv: CacheAligned(Lock::new(RecvState {
                half: recv,
                life: Lifecycle::Open,
                set: WorkingSet::new(self.resources.layout.begins_short()),
                dirty: 0,
                is_grant_due: false,
                n_owed: 0,
                ctrl: CtrlWindow::new(),
                coalescing: WakeCoalescing::default(),
                hold_back: HoldBack::default(),
            })),
            mail: Mailbox::default(),
        })
        .ok_or(Error::Exhausted("family memory"))?;
        let remote = rsock_proto::RemoteIomap::new(peer)
            .map_err(|_| Error::PeerViolation("connection data"))?;
        self.resources.qp.ready_to_receive(&self.resources.path, dest)?;
        self.resources.qp.ready_to_send()?;
        let ring = Arc::new(Ring {
            shared,
            region: Arc::clone(&self.resources.region),
            cq: Arc::clone(&self.resources.cq),
            layout: self.resources.layout,
            usage: RingUsage::new(),
        });
        if !B::PINS {
            if !family::is_forking() {
                fork::watch();
            }
            page_reclaim::register(Arc::downgrade(&ring) as Weak<dyn Reclaimable>);
        }
        Ok(QpStream {
            resources: self.resources,
            ring,
            adaptive: AdaptiveBuffer::new(),
            config: self.config,
            extensions: self.config.extensions && peer.has_ext(),
            limits_ctrl: B::SENDS_WAIT && !peer.has_ext(),
            delivery: DeliveryTimeout::default(),
            prober: KeepaliveProber::default(),
            iomaps: Iomaps::new(remote, self.config.iomap_slots),
        })
    }
}
