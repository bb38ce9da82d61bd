//! One end of a simulated stream: its memory, its halves and its application.

use super::c_half::CHalf;
use crate::{
    ConnData, ConnFlags, Ctrl, CtrlWindow, EMPTY_SLOT, Ext, IOMAP_ENTRY, Imm, IomapEntry,
    Lifecycle, LifecycleEvent, MAX_SLOTS, Msg, PROTOCOL_VERSION, RecvConfig, RecvHalf, RemoteIomap,
    RemoteSge, RingConfig, SendConfig, SendHalf, TABLE_ENTRY, lookup, slot_offset,
};
use rsock_verbs::{RKey, RemoteAddr};
use std::collections::VecDeque;

/// Where each end's receive ring is, in its own address space.
pub(super) const RING: u64 = 0x7f00_0010_0000;
pub(super) const RING_KEY: u32 = 0x55;
/// Address of the second ring, which replaces the first and is replaced by it.
const OTHER_RING: u64 = 0x7f00_0200_0000;
const OTHER_KEY: u32 = 0x66;
/// Where each end's tables are.
pub(super) const TABLE: u64 = 0x7f00_0000_1000;
pub(super) const TABLE_KEY: u32 = 0xAA;

/// What kind of end, and its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndConfig {
    /// This crate's halves.
    Rsock {
        /// Bytes of each receive buffer.
        buf_len: u32,
        /// Receive buffers.
        n_bufs: u8,
        /// Receives that are always posted.
        window: u16,
        /// Bytes of the first announcement.
        first_len: u32,
        /// Entries of the table of announced buffers.
        n_slots: u8,
        /// Longest message.
        max_message: u32,
    },
    /// C's rules.
    C {
        /// Half the receive buffer, in bytes.
        half_len: u32,
        /// Receives.
        rq_size: u16,
        /// Whether this host has the other byte order.
        foreign: bool,
    },
}

impl EndConfig {
    /// An end of this crate with sizes that follow from `words`: often tiny.
    #[must_use]
    pub fn rsock(words: [u32; 2]) -> Self {
        let [a, b] = words;
        let [window_bits, window, n_bufs, n_slots] = a.to_le_bytes();
        let buf_len = 1 + (b & 0xFFFF) % (1 << (b >> 16 & 0xF));
        Self::Rsock {
            buf_len,
            n_bufs: 2 + n_bufs % 6,
            window: 1 + (u16::from(window) << (window_bits % 9) >> 4),
            first_len: 1 + (b >> 20) % buf_len,
            n_slots: 2 + n_slots % 7,
            max_message: 1 + (b >> 8 & 0xFFFF),
        }
    }

    /// C's end, with sizes that follow from `word`.
    #[must_use]
    pub fn c(word: u32) -> Self {
        let half_len = 1 + (word & 0xFFFF) % (1 << (word >> 16 & 0xF));
        let rq_size = if word & 1 << 30 == 0 { 384 } else { 16 };
        Self::C { half_len, rq_size, foreign: word >> 31 == 1 }
    }
}

/// Bytes on their way into an end's memory.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) addr: RemoteAddr,
    pub(super) key: RKey,
    pub(super) bytes: Vec<u8>,
}

/// A message on its way to an end.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) write: Option<Write>,
    pub(super) imm: Imm,
    /// Its completion frees a place in the sender's control window.
    pub(super) is_ctrl: bool,
}

#[derive(Debug)]
enum Half {
    Rsock { send: SendHalf, recv: RecvHalf, iomaps: Option<RemoteIomap> },
    C(CHalf),
}

#[derive(Debug)]
pub(super) struct End {
    half: Half,
    cfg: EndConfig,
    ring: Vec<u8>,
    /// The ring before the last replacement, or for the next one.
    other_ring: Vec<u8>,
    /// Whether `ring` is the one at [`OTHER_RING`].
    is_replaced: bool,
    table: Vec<u8>,
    iomap: IomapEntry,
    pub(super) lifecycle: Lifecycle,
    ctrl: CtrlWindow,
    ctrl_queue: VecDeque<Ctrl>,
    /// Bytes that the application has written and that are not sent.
    pub(super) backlog: usize,
    pub(super) sent: u64,
    pub(super) read: u64,
}

impl End {
    pub(super) fn new(cfg: EndConfig) -> (Self, ConnData) {
        let (half, data, ring_len) = match cfg {
            EndConfig::Rsock { buf_len, n_bufs, window, first_len, n_slots, max_message } => {
                let region = RemoteAddr(RING);
                let rkey = RKey(RING_KEY);
                let recv =
                    RecvHalf::new(RecvConfig { region, rkey, buf_len, n_bufs, window, first_len });
                let (credits, data_buf) = recv.conn_fields();
                let data = ConnData {
                    version: PROTOCOL_VERSION,
                    flags: ConnFlags::LOCAL,
                    credits,
                    target_iomap_size: 1,
                    target_sgl: RemoteSge {
                        addr: RemoteAddr(TABLE),
                        key: RKey(TABLE_KEY),
                        len: n_slots.into(),
                    },
                    data_buf,
                };
                // Replaced when the peer is known.
                let send = SendHalf::new(SendConfig { max_message, n_slots }, &data);
                let send = send.expect("a valid block");
                let half = Half::Rsock { send, recv, iomaps: None };
                (half, data, buf_len as usize * usize::from(n_bufs))
            }
            EndConfig::C { half_len, rq_size, foreign } => {
                let c = CHalf::new(half_len, rq_size, foreign);
                let data = c.conn_data();
                (Half::C(c), data, 2 * half_len as usize)
            }
        };
        let mut table = vec![0; slot_offset(MAX_SLOTS) + IOMAP_ENTRY];
        if matches!(half, Half::Rsock { .. }) {
            table[..slot_offset(MAX_SLOTS)].as_chunks_mut().0.fill(EMPTY_SLOT);
        }
        let end = Self {
            half,
            cfg,
            ring: vec![0; ring_len],
            other_ring: Vec::new(),
            is_replaced: false,
            table,
            iomap: IomapEntry::default(),
            lifecycle: Lifecycle::Open,
            ctrl: CtrlWindow::new(),
            ctrl_queue: VecDeque::new(),
            backlog: 0,
            sent: 0,
            read: 0,
        };
        (end, data)
    }

    /// The private data of the peer arrived.
    pub(super) fn connect(&mut self, block: &[u8]) {
        let peer = ConnData::decode(block).expect("a block that this crate encoded");
        match (&mut self.half, self.cfg) {
            (Half::Rsock { send, recv, iomaps }, EndConfig::Rsock { n_slots, max_message, .. }) => {
                let cfg = SendConfig { max_message, n_slots };
                *send = SendHalf::new(cfg, &peer).expect("an honest peer").with_reserve(2);
                recv.set_peer(&peer).expect("an honest peer");
                *iomaps = RemoteIomap::new(&peer).expect("an honest peer");
            }
            (Half::C(c), _) => c.connect(&peer, &mut self.table),
            (Half::Rsock { .. }, EndConfig::C { .. }) => unreachable!("the kind does not change"),
        }
    }

    pub(super) fn is_rsock(&self) -> bool {
        matches!(self.half, Half::Rsock { .. })
    }

    /// Messages with a credit that this end has room for when `n_queued` of them wait in it.
    pub(super) fn window(&self) -> usize {
        match (&self.half, self.cfg) {
            (Half::C(c), _) => usize::from(c.window()) - c.n_queued(),
            (_, EndConfig::Rsock { window, .. }) => window.into(),
            (Half::Rsock { .. }, EndConfig::C { .. }) => unreachable!("the kind does not change"),
        }
    }

    /// Sends the next message of the waiting bytes.
    pub(super) fn send(&mut self, value: impl Fn(u64) -> u8) -> Option<Flight> {
        if self.backlog == 0 || !self.lifecycle.is_writable() {
            return None;
        }
        let write = match &mut self.half {
            Half::Rsock { send, .. } => {
                let room = send.room();
                let Ok(write) = send.peek(self.backlog) else {
                    assert_eq!(room, 0, "room without a message");
                    return None;
                };
                assert!(write.len as usize <= room, "a message without room");
                send.commit(&write);
                write
            }
            Half::C(c) => c.send(&mut self.table, self.backlog)?,
        };
        let from = self.sent;
        self.sent += u64::from(write.len);
        self.backlog -= write.len as usize;
        let bytes = (from..self.sent).map(value).collect();
        let bytes = Some(Write { addr: write.remote, key: write.rkey, bytes });
        Some(Flight { write: bytes, imm: write.imm, is_ctrl: false })
    }

    /// Whether a byte could be sent now.
    pub(super) fn can_send(&self) -> bool {
        match &self.half {
            Half::Rsock { send, .. } => send.peek(1).is_ok(),
            Half::C(c) => c.can_send(&self.table),
        }
    }

    /// The next control message that is due and fits the control window.
    pub(super) fn control(&mut self) -> Option<Flight> {
        if !self.ctrl.has_room() {
            return None;
        }
        let (imm, write) = if let Some(ctrl) = self.ctrl_queue.pop_front() {
            (Imm::ctrl(ctrl), None)
        } else if self.lifecycle.is_connected() {
            match &mut self.half {
                Half::Rsock { recv, .. } => {
                    let grant = recv.next_grant()?;
                    recv.commit_grant();
                    let write = grant.entry.map(|(addr, key, bytes)| Write {
                        addr,
                        key,
                        bytes: bytes.to_vec(),
                    });
                    (grant.imm, write)
                }
                Half::C(c) => c.grant()?,
            }
        } else {
            return None;
        };
        assert!(self.ctrl.post());
        Some(Flight { write, imm, is_ctrl: true })
    }

    /// A control message of the other end has arrived.
    pub(super) fn control_done(&mut self, imm: Imm) {
        self.ctrl.done(1);
        if imm == Imm::ctrl(Ctrl::Disconnect) {
            self.event(LifecycleEvent::DisconnectDone);
        }
    }

    /// Opens a buffer to the peer. C needs a credit for that, this crate does not.
    pub(super) fn iomap(&mut self) -> Option<Flight> {
        if !self.lifecycle.is_writable() {
            return None;
        }
        let entry =
            IomapEntry { offset: self.sent, addr: RemoteAddr(RING), rkey: RKey(RING_KEY), len: 1 };
        let (imm, write) = match &mut self.half {
            Half::Rsock { iomaps, .. } => {
                let write = iomaps.as_ref()?.write(0, entry);
                let bytes = write.bytes.to_vec();
                (write.imm, Write { addr: write.remote, key: write.rkey, bytes })
            }
            Half::C(c) => {
                if !c.can_send(&self.table) {
                    return None;
                }
                c.count_iomap();
                let at = slot_offset(c.peer_slots());
                let bytes = entry.to_table_bytes(false).to_vec();
                let addr = RemoteAddr(TABLE).wrapping_add(at as u64);
                (Imm::iomap(0), Write { addr, key: RKey(TABLE_KEY), bytes })
            }
        };
        Some(Flight { write: Some(write), imm, is_ctrl: false })
    }

    /// The bytes of a message reach local memory.
    pub(super) fn land(&mut self, write: &Write) {
        let (memory, base) = match (write.key.0, self.is_replaced) {
            (RING_KEY, false) => (&mut self.ring, RING),
            (RING_KEY, true) => (&mut self.other_ring, RING),
            (OTHER_KEY, true) => (&mut self.ring, OTHER_RING),
            (OTHER_KEY, false) => (&mut self.other_ring, OTHER_RING),
            (TABLE_KEY, _) => (&mut self.table, TABLE),
            (key, _) => panic!("no region has the key {key:#x}"),
        };
        let at = usize::try_from(write.addr.0 - base).expect("an offset");
        memory[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }

    /// A message completes here.
    pub(super) fn handle(&mut self, imm: Imm) {
        match imm.decode().expect("an honest peer") {
            Msg::Data { len } => match &mut self.half {
                Half::Rsock { recv, .. } => recv.handle_data(len).expect("an honest peer"),
                Half::C(c) => c.handle_data(len),
            },
            Msg::Credit { limit } => match &mut self.half {
                Half::Rsock { send, .. } => {
                    send.handle_credit(limit);
                    let table = self.table.as_chunks_mut::<TABLE_ENTRY>().0;
                    // Entries of messages that have not completed are taken too.
                    while let Some(sge) = RemoteSge::from_slot(&table[send.next_slot()]) {
                        table[send.next_slot()] = EMPTY_SLOT;
                        send.handle_slot(sge).expect("an honest peer");
                    }
                }
                Half::C(c) => c.handle_credit(limit),
            },
            Msg::Iomap { index } => {
                assert_eq!(index, 0);
                if let (Half::Rsock { recv, .. }, EndConfig::Rsock { n_slots, .. }) =
                    (&mut self.half, self.cfg)
                {
                    recv.handle_iomap_msg().expect("an honest peer");
                    let at = slot_offset(n_slots.into());
                    let bytes = self.table[at..at + IOMAP_ENTRY].try_into().expect("one entry");
                    self.iomap = IomapEntry::from_table_bytes(bytes);
                    assert!(lookup(&[self.iomap], self.iomap.offset, 1).is_some());
                }
            }
            Msg::Ctrl(Ctrl::Shutdown) => self.event(LifecycleEvent::PeerShutdown),
            Msg::Ctrl(Ctrl::Disconnect) => self.event(LifecycleEvent::PeerDisconnect),
            msg @ (Msg::Ctrl(Ctrl::Keepalive)
            | Msg::Ext(Ext::Unknown { .. })
            | Msg::Ext(_)
            | Msg::Ignored) => panic!("no end sends {msg:?}"),
        }
    }

    /// Something happens to the stream as a whole; illegal events leave it as it is.
    pub(super) fn event(&mut self, event: LifecycleEvent) {
        let Ok((next, ctrl)) = self.lifecycle.on(event) else { return };
        let mut ctrl = ctrl;
        if !self.is_rsock() && event == LifecycleEvent::LocalShutWr && next == self.lifecycle {
            // C sends it again.
            ctrl = (next == Lifecycle::WriteClosed).then_some(Ctrl::Shutdown);
        }
        self.ctrl_queue.extend(ctrl);
        self.lifecycle = next;
        if let Half::Rsock { send, .. } = &mut self.half
            && !next.is_writable()
        {
            send.close();
        }
        if !next.is_writable() {
            self.backlog = 0;
        }
    }

    /// The application reads up to `want` bytes, which must be those of the stream.
    pub(super) fn read(&mut self, want: usize, value: impl Fn(u64) -> u8) -> usize {
        let mut done = 0;
        while done < want {
            let (ring, (at, len)) = match &mut self.half {
                Half::Rsock { recv, .. } => {
                    let Some(span) = recv.span_at(0) else { break };
                    let len = span.len.min(want - done);
                    recv.consume(len);
                    let ring = if span.is_old { &self.other_ring } else { &self.ring };
                    (ring, (span.offset, len))
                }
                Half::C(c) => {
                    let Some(part) = c.read(want - done) else { break };
                    (&self.ring, part)
                }
            };
            for byte in &ring[at..at + len] {
                assert_eq!(*byte, value(self.read), "byte {} of the stream", self.read);
                self.read += 1;
            }
            done += len;
        }
        done
    }

    /// Peeks at every readable byte.
    pub(super) fn peek_all(&self, value: impl Fn(u64) -> u8) {
        let Half::Rsock { recv, .. } = &self.half else { return };
        let mut skip = 0;
        while let Some(span) = recv.span_at(skip) {
            let ring = if span.is_old { &self.other_ring } else { &self.ring };
            for (i, byte) in ring[span.offset..span.offset + span.len].iter().enumerate() {
                assert_eq!(*byte, value(self.read + (skip + i) as u64), "peeked");
            }
            skip += span.len;
        }
        assert_eq!(skip, recv.readable());
    }

    pub(super) fn readable(&self) -> usize {
        match &self.half {
            Half::Rsock { recv, .. } => recv.readable(),
            Half::C(c) => c.readable(),
        }
    }

    /// Turns to the other ring, which has buffers of another length.
    pub(super) fn replace_ring(&mut self) {
        let EndConfig::Rsock { buf_len, n_bufs, .. } = self.cfg else { return };
        let Half::Rsock { recv, .. } = &mut self.half else { return };
        let (region, rkey, buf_len) = if self.is_replaced {
            (RING, RING_KEY, buf_len)
        } else {
            (OTHER_RING, OTHER_KEY, 1 + buf_len / 3)
        };
        let (region, rkey) = (RemoteAddr(region), RKey(rkey));
        if recv.replace_ring(RingConfig { region, rkey, buf_len, n_bufs }) {
            self.is_replaced = !self.is_replaced;
            let fresh = vec![0; buf_len as usize * usize::from(n_bufs)];
            self.other_ring = std::mem::replace(&mut self.ring, fresh);
        }
    }

    /// Lets the ring have two more buffers.
    pub(super) fn extend_ring(&mut self) {
        /// The other ring is so far behind this one.
        const MOST: usize = 32;
        let EndConfig::Rsock { buf_len, .. } = self.cfg else { return };
        let Half::Rsock { recv, .. } = &mut self.half else { return };
        let buf_len = if self.is_replaced { 1 + buf_len / 3 } else { buf_len } as usize;
        let n_bufs = self.ring.len() / buf_len + 2;
        if n_bufs <= MOST && recv.extend_ring(u8::try_from(n_bufs).unwrap_or(0)) {
            self.ring.resize(n_bufs * buf_len, 0);
        }
    }
}
