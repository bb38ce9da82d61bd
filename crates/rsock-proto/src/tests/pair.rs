//! Two ends against each other: random schedules, and the named ones that once seemed hard.

use crate::RecvConfig;
use crate::sim::{EndConfig, Op, Pair, Side, plausible_block, run_hostile, run_pair};
use proptest::collection::vec;
use proptest::prelude::*;
use rsock_verbs::{RKey, RemoteAddr};

const RSOCK: EndConfig = EndConfig::Rsock {
    buf_len: 128 << 10,
    n_bufs: 4,
    window: 1024,
    first_len: 128 << 10,
    n_slots: 2,
    max_message: 64 << 10,
};
const C: EndConfig = EndConfig::C { half_len: 64 << 10, rq_size: 384, foreign: false };

/// Random cases of each test. Miri takes seconds for one.
const CASES: u32 = if cfg!(miri) { 2 } else { 128 };

fn rsock() -> impl Strategy<Value = EndConfig> {
    any::<[u32; 2]>().prop_map(EndConfig::rsock)
}

fn c() -> impl Strategy<Value = EndConfig> {
    any::<u32>().prop_map(EndConfig::c)
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    vec(any::<u32>().prop_map(Op::from_word), 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn two_rsock_ends_lose_double_or_move_no_byte(a in rsock(), b in rsock(), ops in ops()) {
        run_pair([a, b], ops);
    }

    #[test]
    fn no_byte_is_lost_doubled_or_moved_between_rsock_and_c(a in rsock(), b in c(), ops in ops()) {
        run_pair([a, b], ops);
    }

    #[test]
    fn default_sizes_work_too(ops in ops(), with_c: bool) {
        run_pair([RSOCK, if with_c { C } else { RSOCK }], ops);
    }

    #[test]
    fn no_message_of_a_peer_reaches_outside_local_memory(
        buf_len in 1..2000_u32,
        n_bufs in 2..6_u8,
        window in 1..50_u16,
        first in any::<u32>(),
        block in any::<[[u8; 20]; 2]>(),
        plausible in any::<Option<(u16, u8, u16)>>(),
        words in vec(any::<[u32; 2]>(), 0..200),
    ) {
        let cfg = RecvConfig {
            region: RemoteAddr(0x1000),
            rkey: RKey(1),
            buf_len,
            n_bufs,
            window,
            first_len: 1 + first % buf_len,
        };
        let random = block.as_flattened().try_into().unwrap();
        let block = plausible.map_or(random, |(credits, entries, first)| {
            plausible_block(credits, entries.into(), first.into())
        });
        run_hostile(cfg, block, &words);
    }
}

/// Writes `len` bytes on `side` and lets them arrive, unread.
fn write_and_deliver(pair: &mut Pair, side: Side, len: usize) {
    pair.apply(Op::Write(side, len));
    pair.apply(Op::Deliver(side.peer(), usize::MAX));
}

#[test]
fn a_reader_that_does_not_read_takes_all_its_buffers_and_no_more() {
    let EndConfig::Rsock { buf_len, n_bufs, .. } = RSOCK else { unreachable!() };
    let mut pair = Pair::new([RSOCK, RSOCK]);
    for _ in 0..50 {
        write_and_deliver(&mut pair, Side::A, 1 << 14);
        pair.apply(Op::Grant(Side::B));
        pair.apply(Op::Deliver(Side::A, 16));
        pair.apply(Op::Poll(Side::B));
    }
    assert_eq!(pair.readable(Side::B), buf_len as usize * usize::from(n_bufs));
    assert!(pair.backlog(Side::A) > 0);
    pair.drive();
    assert_eq!((pair.readable(Side::B), pair.backlog(Side::A)), (0, 0));
}
