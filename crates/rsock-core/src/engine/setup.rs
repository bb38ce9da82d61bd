//! A stream before its peer is known.

use crate::engine::adaptive_buffer::Growth;
use crate::engine::config::{Config, Wire};
use crate::engine::delivery_timeout::Doubt;
use crate::engine::iomap::Iomaps;
use crate::engine::keepalive::Prober;
use crate::engine::layout::{Layout, N_SLOTS};
use crate::engine::page_reclaim::{self, Trim, Usage};
use crate::engine::resources::Parts;
use crate::engine::ring::Ring;
use crate::engine::shared::{Line, Mailbox, RecvSide, SendSide, Shared};
use crate::engine::stream::{MAX_PIECES, Stream};
use crate::engine::wake_coalescing::Moderation;
use rsock_proto::{
    self, ConnData, ConnFlags, CtrlWindow, Lifecycle, PROTOCOL_VERSION, RecvConfig, RecvHalf,
    RemoteSge, SendConfig, SendHalf,
};
use rsock_verbs::family::{FamilyBox, Lock};
use rsock_verbs::{
    Access, Backend, Context, Error, MemoryRegion, ProtectionDomain, QpCap, QpNum, QueuePair, Retry,
};
use std::sync::{Arc, Weak};

/// Bytes copied while one request is posted, at most.
const COPIED: u32 = 1 << 20;
/// Credits of a peer that posts no spare receives (C) that control messages of ours may need.
const RESERVE: u16 = 8;

/// A stream before its peer is known: queues made, receives posted, memory registered.
#[derive(Debug)]
pub struct Preparing<B: Backend> {
    parts: Parts<B>,
    recv: RecvHalf,
    config: Config,
}

impl<B: Backend> Preparing<B> {
    /// Makes everything that this end's connection data will name.
    ///
    /// # Errors
    /// When memory, queues or descriptors run out.
    pub fn new(ctx: &B::Context, path: &B::Path, config: &Config) -> Result<Self, Error> {
        let wire = if ctx.attr().write_with_imm { Wire::WriteImm } else { Wire::MsgSend };
        let rest = config.at_rest::<B>();
        let layout = Layout::new(&rest, wire);
        let pd = ctx.alloc_pd(path)?;
        let region = pd.alloc_mr(layout.len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let depth = config.recv_depth();
        let max_inline = ctx.attr().max_inline;
        // One message is copied while it is posted, so it is as long as can be copied.
        let max_message = config.max_message.min(usize::try_from(max_inline).unwrap_or(usize::MAX));
        let first_message = config.first_message.min(max_message);
        let config = &Config { max_message, first_message, ..*config };
        let cap = QpCap {
            max_send_wr: B::SEND_DEPTH,
            max_recv_wr: depth,
            max_send_sge: u32::try_from(MAX_PIECES).unwrap_or(1),
            // Receives that only carry an immediate need no room for pieces.
            max_recv_sge: u32::from(wire == Wire::MsgSend),
            max_inline: max_inline.min(COPIED),
            signal_all: false,
        };
        let (cq, qp) = pd.create_qp_with_cq(ctx, cap)?;
        qp.init(Access::REMOTE_WRITE)?;
        let recv = RecvHalf::new(RecvConfig {
            region: region.addr().wrapping_add(layout.ring as u64),
            rkey: region.rkey(),
            buf_len: rest.buf_len,
            n_bufs: rest.n_bufs,
            window: config.window,
            first_len: rest.buf_len,
        });
        let region = Arc::new(region);
        let parts = Parts { qp, cq, region, layout, wire, pd, path: path.clone() };
        for i in 0..depth {
            parts.post_receive(i).map_err(|_| Error::Exhausted("receive queue"))?;
        }
        Ok(Self { parts, recv, config: *config })
    }

    /// What the peer must be told.
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
                addr: self.parts.region.addr(),
                key: self.parts.region.rkey(),
                len: N_SLOTS.into(),
            },
            data_buf,
        }
    }

    /// Number of the queue pair, for the peer.
    #[must_use]
    pub fn qp_num(&self) -> QpNum {
        self.parts.qp.qp_num()
    }

    /// Connects to queue pair `dest`, whose owner sent `peer`.
    ///
    /// # Errors
    /// `Invalid` if the peer's connection data cannot be used; `PeerGone`.
    pub fn connect(self, peer: &ConnData, dest: QpNum) -> Result<Stream<B>, Error> {
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
            send: Line(Lock::new(SendSide { half: send, credits_seen: 0, sent: 0 })),
            recv: Line(Lock::new(RecvSide {
                half: recv,
                life: Lifecycle::Open,
                dirty: 0,
                n_owed: 0,
                ctrl: CtrlWindow::new(),
                moderation: Moderation::default(),
            })),
            mail: Mailbox::default(),
        })
        .ok_or(Error::Exhausted("family memory"))?;
        let remote = rsock_proto::RemoteIomap::new(peer)
            .map_err(|_| Error::PeerViolation("connection data"))?;
        self.parts.qp.ready_to_receive(&self.parts.path, dest)?;
        self.parts.qp.ready_to_send(Retry::default())?;
        let ring = Arc::new(Ring {
            shared,
            region: Arc::clone(&self.parts.region),
            cq: Arc::clone(&self.parts.cq),
            layout: self.parts.layout,
            usage: Usage::default(),
        });
        if !B::PINS {
            page_reclaim::register(Arc::downgrade(&ring) as Weak<dyn Trim>);
        }
        Ok(Stream {
            parts: self.parts,
            ring,
            growth: Growth::new(),
            config: self.config,
            extensions: self.config.extensions && peer.has_ext(),
            limits_ctrl: B::SENDS_WAIT && !peer.has_ext(),
            doubt: Doubt::default(),
            prober: Prober::default(),
            iomaps: Iomaps::new(remote, self.config.iomap_slots),
        })
    }
}
