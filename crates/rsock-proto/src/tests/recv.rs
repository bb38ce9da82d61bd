//! The receiving half by itself.

use crate::{
    ConnData, ConnFlags, Grant, Msg, PROTOCOL_VERSION, PeerError, RecvConfig, RecvHalf, RemoteSge,
    RingConfig, Span,
};
use rsock_verbs::{RKey, RemoteAddr};

const REGION: u64 = 0x10_0000;
const CFG: RecvConfig = RecvConfig {
    region: RemoteAddr(REGION),
    rkey: RKey(5),
    buf_len: 100,
    n_bufs: 4,
    window: 8,
    first_len: 100,
};

fn peer(flags: ConnFlags, entries: u32) -> ConnData {
    ConnData {
        version: PROTOCOL_VERSION,
        flags,
        credits: 1,
        target_iomap_size: 0,
        target_sgl: RemoteSge { addr: RemoteAddr(0x9000), key: RKey(9), len: entries },
        data_buf: RemoteSge::default(),
    }
}

fn half(cfg: RecvConfig) -> RecvHalf {
    let mut half = RecvHalf::new(cfg);
    half.set_peer(&peer(ConnFlags::LOCAL, 2)).unwrap();
    half
}

/// A limit and, with an entry, its address and the announced range.
type Granted = (u16, Option<(u64, u64, u32)>);

/// Takes the grant that is due.
fn grant(half: &mut RecvHalf) -> Option<Granted> {
    let Grant { imm, entry } = half.next_grant()?;
    half.commit_grant();
    let Ok(Msg::Credit { limit }) = imm.decode() else { panic!("{imm:?} is no grant") };
    let entry = entry.map(|(at, key, bytes)| {
        let sge = RemoteSge::from_table_bytes(&bytes);
        assert_eq!((key, sge.key), (RKey(9), RKey(5)));
        (at.0, sge.addr.0 - REGION, sge.len)
    });
    Some((limit.0, entry))
}

fn span(offset: usize, len: usize) -> Span {
    Span { offset, len, is_old: false }
}

#[test]
fn the_second_buffer_is_announced_at_once_in_slot_1() {
    let mut half = half(CFG);
    let (credits, first) = half.conn_fields();
    assert_eq!((credits, first.addr.0, first.key.0, first.len), (8, REGION, 5, 100));
    assert_eq!(grant(&mut half), Some((8, Some((0x9010, 100, 100)))));
    assert_eq!(grant(&mut half), None);
}

#[test]
fn nothing_is_granted_before_the_peer_is_known() {
    let mut half = RecvHalf::new(CFG);
    assert_eq!(half.next_grant(), None);
    half.set_peer(&peer(ConnFlags::LOCAL, 2)).unwrap();
    assert!(half.next_grant().is_some());
}

#[test]
fn a_slot_is_reused_when_its_buffer_is_full_though_nothing_was_read() {
    let mut half = half(CFG);
    grant(&mut half).unwrap();
    half.handle_data(99).unwrap();
    assert_eq!(grant(&mut half), None);
    half.handle_data(1).unwrap();
    assert_eq!(grant(&mut half), Some((10, Some((0x9000, 200, 100)))));
    half.handle_data(100).unwrap();
    assert_eq!(grant(&mut half), Some((11, Some((0x9010, 300, 100)))));
    half.handle_data(100).unwrap();
    // Buffer 0 is not read yet.
    assert_eq!(grant(&mut half), None);
    half.consume(99);
    assert_eq!(grant(&mut half), None);
    half.consume(1);
    assert_eq!(grant(&mut half), Some((12, Some((0x9000, 0, 100)))));
    assert_eq!(half.readable(), 200);
}

#[test]
fn every_free_slot_of_a_larger_table_is_used() {
    let mut half = RecvHalf::new(CFG);
    half.set_peer(&peer(ConnFlags::LOCAL, 8)).unwrap();
    for k in 1..4 {
        assert_eq!(grant(&mut half), Some((8, Some((0x9000 + 16 * k, 100 * k, 100)))));
    }
    assert_eq!(grant(&mut half), None);
}

#[test]
fn a_short_first_buffer_is_followed_by_its_rest() {
    let mut half = half(RecvConfig { first_len: 30, ..CFG });
    assert_eq!(half.conn_fields().1.len, 30);
    assert_eq!(grant(&mut half), Some((8, Some((0x9010, 30, 70)))));
    assert_eq!(half.handle_data(31), Err(PeerError::DataOverrun { len: 31, room: 30 }));
    half.handle_data(30).unwrap();
    assert_eq!(grant(&mut half), Some((9, Some((0x9000, 100, 100)))));
    assert_eq!(half.handle_data(71), Err(PeerError::DataOverrun { len: 71, room: 70 }));
    half.handle_data(70).unwrap();
    assert_eq!(grant(&mut half), Some((10, Some((0x9010, 200, 100)))));
    half.handle_data(100).unwrap();
    assert_eq!(half.span_at(0), Some(span(0, 200)));
    // The same when the rest is announced only after the first part is full.
    let mut half = RecvHalf::new(RecvConfig { first_len: 30, ..CFG });
    half.handle_data(30).unwrap();
    assert_eq!(half.handle_data(1), Err(PeerError::DataOverrun { len: 1, room: 0 }));
    half.set_peer(&peer(ConnFlags::LOCAL, 2)).unwrap();
    assert_eq!(grant(&mut half), Some((9, Some((0x9010, 30, 70)))));
    half.handle_data(70).unwrap();
    assert_eq!(half.handle_data(1), Err(PeerError::DataOverrun { len: 1, room: 0 }));
}

#[test]
fn credits_return_when_half_the_window_has_arrived() {
    let mut half = half(CFG);
    grant(&mut half).unwrap();
    for arrived in 1..=40 {
        half.handle_data(1).unwrap();
        let expected = (arrived % 4 == 0).then_some((arrived + 8, None));
        assert_eq!(grant(&mut half), expected, "{arrived}");
    }
}

#[test]
fn a_window_of_one_message_works() {
    let mut half = half(RecvConfig { window: 1, ..CFG });
    grant(&mut half).unwrap();
    for arrived in 1..=20 {
        half.handle_data(1).unwrap();
        assert_eq!(half.handle_data(1), Err(PeerError::NoCredit));
        assert_eq!(grant(&mut half), Some((arrived + 1, None)));
        assert_eq!(grant(&mut half), None);
    }
}

#[test]
fn messages_beyond_the_limit_are_a_violation() {
    let mut half = half(CFG);
    for _ in 0..8 {
        half.handle_data(1).unwrap();
    }
    assert_eq!(half.handle_data(1), Err(PeerError::NoCredit));
    assert_eq!(half.readable(), 8);
    grant(&mut half).unwrap();
    half.handle_data(1).unwrap();
}

#[test]
fn data_outside_the_buffer_is_a_violation() {
    let mut half = half(CFG);
    assert_eq!(half.handle_data(0), Err(PeerError::EmptyData));
    assert_eq!(half.handle_data(101), Err(PeerError::DataOverrun { len: 101, room: 100 }));
    assert_eq!(
        half.handle_data(u32::MAX),
        Err(PeerError::DataOverrun { len: u32::MAX, room: 100 })
    );
    // The first buffer full, the second not announced.
    half.handle_data(100).unwrap();
    assert_eq!(half.handle_data(1), Err(PeerError::DataOverrun { len: 1, room: 0 }));
    assert_eq!(half.readable(), 100);
}

#[test]
fn iomap_messages_cost_a_c_peer_credits_and_come_back() {
    let mut c = RecvHalf::new(CFG);
    c.set_peer(&peer(ConnFlags::IOMAP, 2)).unwrap();
    grant(&mut c).unwrap();
    for _ in 0..8 {
        c.handle_iomap_msg().unwrap();
    }
    assert_eq!(c.handle_iomap_msg(), Err(PeerError::NoCredit));
    assert_eq!(grant(&mut c), Some((16, None)));

    let mut ours = half(CFG);
    grant(&mut ours).unwrap();
    for _ in 0..1000 {
        ours.handle_iomap_msg().unwrap();
    }
    assert_eq!(ours.next_grant(), None);
}

#[test]
fn spans_are_contiguous_and_wrap_with_the_ring() {
    let mut half = half(RecvConfig { n_bufs: 2, ..CFG });
    grant(&mut half).unwrap();
    half.handle_data(100).unwrap();
    half.handle_data(50).unwrap();
    assert_eq!(half.span_at(0), Some(span(0, 150)));
    half.consume(120);
    grant(&mut half).unwrap();
    half.handle_data(50).unwrap();
    half.handle_data(40).unwrap();
    assert_eq!(half.readable(), 120);
    assert_eq!(half.span_at(0), Some(span(120, 80)));
    assert_eq!(half.span_at(79), Some(span(199, 1)));
    assert_eq!(half.span_at(80), Some(span(0, 40)));
    assert_eq!((half.span_at(120), half.span_at(usize::MAX)), (None, None));
    half.consume(80);
    assert_eq!(half.span_at(0), Some(span(0, 40)));
    half.consume(40);
    assert_eq!(half.span_at(0), None);
}

/// A ring elsewhere, of shorter buffers.
const OTHER: RingConfig =
    RingConfig { region: RemoteAddr(REGION + 0x1000), rkey: RKey(5), buf_len: 10, n_bufs: 2 };

#[test]
fn what_is_announced_in_the_old_ring_comes_before_the_new_one() {
    let mut half = half(CFG);
    grant(&mut half).unwrap();
    // Two buffers announced: no slot is free.
    assert!(!half.can_replace_ring() && !half.replace_ring(OTHER));
    half.handle_data(100).unwrap();
    half.consume(70);
    assert!(half.replace_ring(OTHER) && !half.is_old_ring_free());
    assert_eq!(grant(&mut half), Some((9, Some((0x9000, 0x1000, 10)))));
    assert!(!half.can_replace_ring());
    assert_eq!(half.handle_data(101), Err(PeerError::DataOverrun { len: 101, room: 100 }));
    half.handle_data(100).unwrap();
    assert_eq!(grant(&mut half), Some((10, Some((0x9010, 0x100a, 10)))));
    assert_eq!(half.handle_data(11), Err(PeerError::DataOverrun { len: 11, room: 10 }));
    half.handle_data(10).unwrap();
    // The old ring is not read yet, and all of the new one is taken.
    assert!(!half.can_replace_ring());
    assert_eq!(grant(&mut half), None);
    assert_eq!(half.span_at(0), Some(Span { offset: 70, len: 130, is_old: true }));
    assert_eq!(half.span_at(129), Some(Span { offset: 199, len: 1, is_old: true }));
    assert_eq!(half.span_at(130), Some(span(0, 10)));
    half.consume(135);
    assert!(half.is_old_ring_free());
    assert_eq!((half.span_at(0), half.readable()), (Some(span(5, 5)), 5));
    // And back.
    let back = RingConfig { region: RemoteAddr(REGION), buf_len: 100, n_bufs: 4, ..OTHER };
    assert!(half.replace_ring(back));
    assert_eq!(grant(&mut half), Some((11, Some((0x9000, 0, 100)))));
    half.handle_data(10).unwrap();
    half.consume(15);
    assert!(half.is_old_ring_free());
}

#[test]
fn a_ring_is_extended_where_its_next_buffer_is_the_first() {
    let mut half = half(RecvConfig { n_bufs: 2, ..CFG });
    assert!(!half.can_extend_ring() && !half.extend_ring(3), "the second buffer comes next");
    grant(&mut half).unwrap();
    half.handle_data(100).unwrap();
    half.consume(60);
    assert!(half.can_extend_ring() && !half.extend_ring(2), "it has two");
    assert_eq!(grant(&mut half), None, "the first buffer is not free");
    assert!(half.extend_ring(4));
    assert_eq!(grant(&mut half).and_then(|(_, entry)| entry), Some((0x9000, 200, 100)));
    assert!(!half.can_extend_ring());
    half.handle_data(100).unwrap();
    half.handle_data(90).unwrap();
    assert_eq!(half.span_at(0), Some(span(60, 230)));
    half.consume(230);
    let fourth = grant(&mut half).and_then(|(_, entry)| entry);
    assert_eq!(fourth, Some((0x9010, 300, 100)));
    half.handle_data(10).unwrap();
    half.handle_data(100).unwrap();
    let first = grant(&mut half).and_then(|(_, entry)| entry);
    assert_eq!(first, Some((0x9000, 0, 100)), "it wraps at its new end");
    half.handle_data(100).unwrap();
    assert_eq!(half.span_at(0), Some(span(290, 110)));
    assert_eq!(half.span_at(110), Some(span(0, 100)));
}

#[test]
fn the_ring_is_not_replaced_before_the_peer_is_known() {
    let mut half = RecvHalf::new(CFG);
    assert!(!half.replace_ring(OTHER));
    half.set_peer(&peer(ConnFlags::LOCAL, 2)).unwrap();
    assert!(half.can_replace_ring());
}

#[test]
fn tables_of_the_peer_are_checked() {
    let mut half = RecvHalf::new(CFG);
    for n in [0, 1] {
        assert_eq!(half.set_peer(&peer(ConnFlags::LOCAL, n)), Err(PeerError::TableTooSmall(n)));
    }
    let mut wraps = peer(ConnFlags::LOCAL, u32::MAX);
    wraps.target_sgl.addr = RemoteAddr(u64::MAX - 100);
    assert_eq!(half.set_peer(&wraps), Err(PeerError::RangeWraps));
    assert_eq!(half.next_grant(), None);
}

#[test]
fn entries_for_a_peer_of_the_other_byte_order_are_swapped() {
    let mut half = RecvHalf::new(CFG);
    half.set_peer(&peer(ConnFlags::LOCAL ^ ConnFlags::NET, 2)).unwrap();
    let (_, _, bytes) = half.next_grant().unwrap().entry.unwrap();
    let native = RemoteSge { addr: RemoteAddr(REGION + 100), key: RKey(5), len: 100 };
    assert_eq!(bytes, native.to_table_bytes(true));
}

#[test]
fn the_limit_wraps_at_16_bits() {
    let mut half =
        half(RecvConfig { window: u16::MAX, buf_len: 1 << 20, first_len: 1 << 20, ..CFG });
    grant(&mut half).unwrap();
    let mut grants = 0;
    for arrived in 1..=70_000_u32 {
        half.handle_data(1).unwrap();
        if let Some(granted) = grant(&mut half) {
            assert_eq!(granted, (((arrived + 0xFFFF) & 0xFFFF) as u16, None));
            grants += 1;
        }
    }
    assert_eq!(grants, 2);
}
