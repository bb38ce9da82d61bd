//! Halves that get any message of a hostile peer.

use crate::{
    CONN_DATA_LEN, ConnData, ConnFlags, Imm, Msg, PROTOCOL_VERSION, RecvConfig, RecvHalf,
    RemoteIomap, RemoteSge, SendConfig, SendHalf, SeqNo,
};
use rsock_verbs::{RKey, RemoteAddr};

/// Passes both halves the words that a peer could send, and checks after each that every range they
/// return lies inside local memory.
///
/// `block` is the peer's connection data, except for its version; each of `words` is a step.
///
/// # Panics
/// When a half breaks a promise.
pub fn run_hostile(cfg: RecvConfig, mut block: [u8; CONN_DATA_LEN], words: &[[u32; 2]]) {
    block[0] = PROTOCOL_VERSION;
    let peer = ConnData::decode(&block).expect("the right version and length");
    let ring_len = cfg.buf_len as usize * usize::from(cfg.n_bufs);
    let mut recv = RecvHalf::new(cfg);
    let has_peer = recv.set_peer(&peer).is_ok();
    assert!(has_peer || recv.next_grant().is_none());
    let send_cfg = SendConfig { max_message: 1 << 20, n_slots: 2 };
    let Ok(mut send) = SendHalf::new(send_cfg, &peer) else { return };
    if let Ok(Some(iomaps)) = RemoteIomap::new(&peer) {
        let _ = iomaps.write(iomaps.n_entries() - 1, crate::IomapEntry::default());
    }
    let mut announced: u64 = send.announced().map(|sge| u64::from(sge.len)).sum();

    for &[word, extra] in words {
        match Imm(word).decode() {
            Ok(Msg::Data { len }) => {
                let before = recv.readable();
                // Large lengths are refused; small ones have a chance.
                let len = if extra & 1 == 0 { len } else { 1 + len % cfg.buf_len };
                let grew = recv.handle_data(len).is_ok();
                let now = if grew { before + len as usize } else { before };
                assert_eq!(recv.readable(), now);
            }
            Ok(Msg::Credit { limit }) => {
                send.handle_credit(limit);
                let len = if extra & 1 == 0 { extra } else { extra >> 24 };
                let sge = RemoteSge {
                    addr: RemoteAddr(u64::from(extra) << 33 | u64::from(word)),
                    key: RKey(word),
                    len,
                };
                if send.handle_slot(sge).is_ok() {
                    announced += u64::from(len);
                }
            }
            Ok(Msg::Iomap { index }) => {
                let _ = recv.handle_iomap_msg();
                let _ = crate::checked_index(index, 32);
            }
            Ok(Msg::Ctrl(_)) => recv.consume((extra as usize).min(recv.readable())),
            Ok(Msg::Ext(_)) => {
                if let Ok(write) = send.peek(1 + extra as usize) {
                    assert!(write.len >= 1 && u64::from(write.len) <= announced);
                    assert!(write.remote.0.checked_add(write.len.into()).is_some());
                    announced -= u64::from(write.len);
                    send.commit(&write);
                }
            }
            Ok(Msg::Ignored) | Err(_) => {
                if recv.next_grant().is_some() {
                    recv.commit_grant();
                }
            }
        }
        assert_eq!(send.announced().map(|sge| u64::from(sge.len)).sum::<u64>(), announced);
        check_spans(&recv, ring_len);
    }
}

/// Unread bytes are inside the ring and do not overlap.
fn check_spans(recv: &RecvHalf, ring_len: usize) {
    let mut spans = Vec::new();
    let mut skip = 0;
    while let Some(span) = recv.span_at(skip) {
        spans.push(span);
        skip += span.len;
    }
    assert_eq!(skip, recv.readable());
    spans.sort_by_key(|span| span.offset);
    let mut end = 0;
    for span in spans {
        assert!(span.len > 0 && span.offset >= end, "spans overlap");
        end = span.offset + span.len;
    }
    assert!(end <= ring_len, "a span passes the end of the ring");
}

/// A block of connection data that a hostile peer could almost have meant.
#[must_use]
pub fn plausible_block(credits: u16, entries: u32, first: u32) -> [u8; CONN_DATA_LEN] {
    ConnData {
        version: PROTOCOL_VERSION,
        flags: ConnFlags::from_bits_retain((credits & 7) as u8),
        credits: SeqNo(credits).0,
        target_iomap_size: 3,
        target_sgl: RemoteSge { addr: RemoteAddr(0x1000), key: RKey(1), len: entries },
        data_buf: RemoteSge { addr: RemoteAddr(0x1_0000), key: RKey(2), len: first },
    }
    .encode()
}
