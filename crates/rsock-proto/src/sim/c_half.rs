//! A model of C's flow control, which the tests run against this crate's: two half buffers, a ring
//! of notifications, credits that return when the application has read, a table that is used in
//! place.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rs_can_send`, `rs_give_credits`, `rs_send_credits`.

use super::end::{RING, RING_KEY, TABLE, TABLE_KEY, Write};
use crate::{ConnData, ConnFlags, DataWrite, Imm, PROTOCOL_VERSION, RemoteSge, SeqNo, TABLE_ENTRY};
use rsock_verbs::{RKey, RemoteAddr};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct CHalf {
    half_len: u32,
    rq_size: u16,
    /// The host has the other byte order.
    foreign: bool,
    peer: Option<ConnData>,
    // sending
    sseq_no: u16,
    sseq_comp: u16,
    target_sge: usize,
    // receiving
    rmsg: VecDeque<u32>,
    rbuf_offset: usize,
    rbuf_bytes_avail: u32,
    rbuf_free_offset: u32,
    rseq_no: u16,
    rseq_comp: u16,
    remote_sge: u32,
}

impl CHalf {
    pub(super) fn new(half_len: u32, rq_size: u16, foreign: bool) -> Self {
        Self {
            half_len,
            rq_size,
            foreign,
            peer: None,
            sseq_no: 0,
            sseq_comp: 0,
            target_sge: 0,
            rmsg: VecDeque::new(),
            rbuf_offset: 0,
            rbuf_bytes_avail: half_len,
            rbuf_free_offset: half_len,
            rseq_no: 0,
            rseq_comp: rq_size / 2,
            remote_sge: 1,
        }
    }

    pub(super) fn conn_data(&self) -> ConnData {
        let native = ConnFlags::LOCAL.difference(ConnFlags::EXT);
        ConnData {
            version: PROTOCOL_VERSION,
            flags: if self.foreign { native ^ ConnFlags::NET } else { native },
            credits: self.rq_size,
            target_iomap_size: 1,
            target_sgl: RemoteSge { addr: RemoteAddr(TABLE), key: RKey(TABLE_KEY), len: 2 },
            data_buf: RemoteSge { addr: RemoteAddr(RING), key: RKey(RING_KEY), len: self.half_len },
        }
    }

    pub(super) fn connect(&mut self, peer: &ConnData, table: &mut [u8]) {
        self.peer = Some(*peer);
        self.sseq_comp = peer.credits;
        self.put_entry(table, 0, peer.data_buf);
    }

    pub(super) fn window(&self) -> u16 {
        self.rq_size
    }

    /// Notifications that wait for the application.
    pub(super) fn n_queued(&self) -> usize {
        self.rmsg.len()
    }

    pub(super) fn can_send(&self, table: &[u8]) -> bool {
        self.sseq_no != self.sseq_comp && self.entry(table, self.target_sge).len != 0
    }

    pub(super) fn send(&mut self, table: &mut [u8], want: usize) -> Option<DataWrite> {
        if !self.can_send(table) {
            return None;
        }
        let mut sge = self.entry(table, self.target_sge);
        let len = sge.len.min(65536).min(u32::try_from(want).unwrap_or(u32::MAX));
        let write = DataWrite { remote: sge.addr, rkey: sge.key, len, imm: Imm::data(len) };
        sge.addr = sge.addr.wrapping_add(len.into());
        sge.len -= len;
        self.put_entry(table, self.target_sge, sge);
        if sge.len == 0 {
            self.target_sge ^= 1;
        }
        self.sseq_no = self.sseq_no.wrapping_add(1);
        Some(write)
    }

    /// Entries of the peer's table.
    pub(super) fn peer_slots(&self) -> usize {
        self.peer.map_or(0, |peer| peer.target_sgl.len as usize)
    }

    /// An iomap message is about to be sent.
    pub(super) fn count_iomap(&mut self) {
        self.sseq_no = self.sseq_no.wrapping_add(1);
    }

    pub(super) fn handle_credit(&mut self, limit: SeqNo) {
        self.sseq_comp = limit.0;
    }

    pub(super) fn handle_data(&mut self, len: u32) {
        assert!(self.rmsg.len() < self.rq_size.into(), "C's notification ring overflows");
        self.rmsg.push_back(len);
    }

    pub(super) fn readable(&self) -> usize {
        self.rmsg.iter().map(|len| *len as usize).sum()
    }

    /// Offset in the receive buffer and length of what a read of `want` bytes gets next.
    pub(super) fn read(&mut self, want: usize) -> Option<(usize, usize)> {
        let head = self.rmsg.front_mut()?;
        let whole = 2 * self.half_len as usize;
        let len = want.min(*head as usize).min(whole - self.rbuf_offset);
        let short = u32::try_from(len).expect("a part of a message");
        *head -= short;
        if *head == 0 {
            self.rmsg.pop_front();
            self.rseq_no = self.rseq_no.wrapping_add(1);
        }
        let at = self.rbuf_offset;
        self.rbuf_offset = (at + len) % whole;
        self.rbuf_bytes_avail += short;
        Some((at, len))
    }

    pub(super) fn grant(&mut self) -> Option<(Imm, Option<Write>)> {
        let peer = self.peer?;
        let has_half = self.rbuf_bytes_avail >= self.half_len;
        if !has_half && self.rseq_no.wrapping_sub(self.rseq_comp).cast_signed() < 0 {
            return None;
        }
        self.rseq_comp = self.rseq_no.wrapping_add(self.rq_size / 2);
        // Wider than the 16 bits that count.
        let imm = Imm(0x8000_0000 | (u32::from(self.rseq_no) + u32::from(self.rq_size)));
        if !has_half {
            return Some((imm, None));
        }
        let sge = RemoteSge {
            addr: RemoteAddr(RING + u64::from(self.rbuf_free_offset)),
            key: RKey(RING_KEY),
            len: self.half_len,
        };
        let at = u64::from(self.remote_sge) * TABLE_ENTRY as u64;
        self.rbuf_bytes_avail -= self.half_len;
        self.rbuf_free_offset = self.half_len - self.rbuf_free_offset;
        self.remote_sge = (self.remote_sge + 1) % peer.target_sgl.len;
        let write = Write {
            addr: peer.target_sgl.addr.wrapping_add(at),
            key: peer.target_sgl.key,
            // In this host's byte order: the peer is always this crate.
            bytes: sge.to_table_bytes(false).to_vec(),
        };
        Some((imm, Some(write)))
    }

    fn entry(&self, table: &[u8], slot: usize) -> RemoteSge {
        let bytes = table[slot * TABLE_ENTRY..][..TABLE_ENTRY].try_into().expect("one entry");
        let sge = RemoteSge::from_table_bytes(bytes);
        if self.foreign { swapped(sge) } else { sge }
    }

    fn put_entry(&self, table: &mut [u8], slot: usize, sge: RemoteSge) {
        table[slot * TABLE_ENTRY..][..TABLE_ENTRY]
            .copy_from_slice(&sge.to_table_bytes(self.foreign));
    }
}

fn swapped(sge: RemoteSge) -> RemoteSge {
    RemoteSge {
        addr: RemoteAddr(sge.addr.0.swap_bytes()),
        key: RKey(sge.key.0.swap_bytes()),
        len: sge.len.swap_bytes(),
    }
}
