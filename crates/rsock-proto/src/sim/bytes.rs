//! What a fuzzer calls: each function takes any bytes and panics when a promise is broken.
//!
//! The committed corpus runs through them in the ordinary tests too.

use super::{EndConfig, Op, run_hostile, run_pair};
use crate::{CONN_DATA_LEN, ConnData, Imm, PeerError, RecvConfig};
use rsock_verbs::{RKey, RemoteAddr};

/// Words of the wire: each decodes, and encodes to an equal word.
///
/// # Panics
/// When it does not.
pub fn imm(data: &[u8]) {
    for word in words(data) {
        if let Ok(msg) = Imm(word).decode() {
            assert_eq!(msg.encode().decode(), Ok(msg));
        }
    }
}

/// A block of connection data: it is refused for a reason, or survives encoding, and ends made from
/// it handle a few messages.
///
/// # Panics
/// When they do not.
pub fn conn_data(data: &[u8]) {
    match ConnData::decode(data) {
        Ok(peer) => {
            let mut block = [0; CONN_DATA_LEN];
            block.copy_from_slice(&data[..CONN_DATA_LEN]);
            block[4..7].fill(0);
            assert_eq!(peer.encode(), block);
            run_hostile(SMALL, block, &pairs(&data[CONN_DATA_LEN..]));
        }
        Err(PeerError::ShortConnData(len)) => assert!(len == data.len() && len < CONN_DATA_LEN),
        Err(PeerError::Version(version)) => assert!(version == data[0] && version != 1),
        Err(e) => panic!("decoding does not return {e:?}"),
    }
}

/// A schedule: of two honest ends, or of a hostile peer's words.
///
/// # Panics
/// When a byte is lost, doubled or moved, the ends are stuck, or a promise is broken.
pub fn proto_ops(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    let words = words(data);
    match (kind % 4, words.as_slice()) {
        (0, [a, b, c, d, ops @ ..]) => {
            run_pair([EndConfig::rsock([*a, *b]), EndConfig::rsock([*c, *d])], decoded(ops));
        }
        (1, [a, b, c, ops @ ..]) => {
            run_pair([EndConfig::rsock([*a, *b]), EndConfig::c(*c)], decoded(ops));
        }
        (2, [a, b, c, ops @ ..]) => {
            run_pair([EndConfig::c(*c), EndConfig::rsock([*a, *b])], decoded(ops));
        }
        (3, _) if data.len() >= CONN_DATA_LEN => {
            let (block, rest) = data.split_at(CONN_DATA_LEN);
            let block = block.try_into().expect("split there");
            run_hostile(SMALL, block, &pairs(rest));
        }
        _ => {}
    }
}

const SMALL: RecvConfig = RecvConfig {
    region: RemoteAddr(0x1000),
    rkey: RKey(1),
    buf_len: 100,
    n_bufs: 3,
    window: 8,
    first_len: 40,
};

fn words(data: &[u8]) -> Vec<u32> {
    let (words, _) = data.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn pairs(data: &[u8]) -> Vec<[u32; 2]> {
    let words = words(data);
    words.as_chunks().0.to_vec()
}

fn decoded(words: &[u32]) -> impl Iterator<Item = Op> + '_ {
    words.iter().map(|word| Op::from_word(*word))
}
