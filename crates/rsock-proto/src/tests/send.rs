//! The sending half by itself.

use crate::{
    ConnData, ConnFlags, Imm, MAX_SLOTS, PROTOCOL_VERSION, PeerError, RemoteSge, SendBlocked,
    SendConfig, SendHalf, SeqNo, TransferSize,
};
use rsock_verbs::{RKey, RemoteAddr};

const MOST_SLOTS: u8 = 8;
const _: () = assert!(MOST_SLOTS as usize == MAX_SLOTS);
const CFG: SendConfig = SendConfig { max_message: 1000, n_slots: 2 };

fn sge(addr: u64, len: u32) -> RemoteSge {
    RemoteSge { addr: RemoteAddr(addr), key: RKey(7), len }
}

fn peer(credits: u16, data_buf: RemoteSge) -> ConnData {
    ConnData {
        version: PROTOCOL_VERSION,
        flags: ConnFlags::LOCAL,
        credits,
        target_iomap_size: 0,
        target_sgl: RemoteSge { addr: RemoteAddr(0x9000), key: RKey(9), len: 2 },
        data_buf,
    }
}

fn half(credits: u16, len: u32) -> SendHalf {
    SendHalf::new(CFG, &peer(credits, sge(0x1000, len))).unwrap()
}

/// Sends one message of at most `want` bytes and returns its address and length.
fn send(half: &mut SendHalf, want: usize) -> Result<(u64, u32), SendBlocked> {
    let write = half.peek(want)?;
    assert_eq!(write.imm, Imm::data(write.len));
    half.commit(&write);
    Ok((write.remote.0, write.len))
}

#[test]
fn a_buffer_is_filled_in_order_and_not_passed() {
    let mut half = half(10, 2500);
    assert_eq!(send(&mut half, 1), Ok((0x1000, 1)));
    assert_eq!(send(&mut half, usize::MAX), Ok((0x1001, 1000)));
    assert_eq!(send(&mut half, 5000), Ok((0x1001 + 1000, 1000)));
    assert_eq!(half.room(), 499);
    assert_eq!(send(&mut half, 500), Ok((0x1001 + 2000, 499)));
    assert_eq!(half.peek(1), Err(SendBlocked::Buffer));
    assert_eq!(half.room(), 0);
}

#[test]
fn announced_buffers_come_from_slot_1_on_in_rotation() {
    let mut half = half(100, 10);
    assert_eq!(half.next_slot(), 1);
    half.handle_slot(sge(0x2000, 20)).unwrap();
    assert_eq!(half.next_slot(), 0);
    assert_eq!(half.handle_slot(sge(0x3000, 1)), Err(PeerError::TooManyBuffers));
    assert_eq!(half.room(), 30);
    assert_eq!(send(&mut half, 10), Ok((0x1000, 10)));
    half.handle_slot(sge(0x3000, 30)).unwrap();
    assert_eq!(half.next_slot(), 1);
    assert_eq!(send(&mut half, 100), Ok((0x2000, 20)));
    assert_eq!(send(&mut half, 100), Ok((0x3000, 30)));
    half.handle_slot(sge(0x4000, 5)).unwrap();
    assert_eq!(send(&mut half, 100), Ok((0x4000, 5)));
}

#[test]
fn as_many_buffers_as_slots_are_held_and_used_in_order() {
    let cfg = SendConfig { n_slots: MOST_SLOTS, ..CFG };
    let mut half = SendHalf::new(cfg, &peer(u16::MAX, sge(0, 1))).unwrap();
    let mut announced = 1;
    for at in 0..1000 {
        while half.handle_slot(sge(announced, 1)).is_ok() {
            announced += 1;
            assert_eq!(half.next_slot() as u64, announced % MAX_SLOTS as u64);
        }
        assert_eq!(half.announced().count(), MAX_SLOTS);
        assert_eq!(send(&mut half, 9), Ok((at, 1)));
    }
}

#[test]
fn a_peer_without_a_first_buffer_announces_one_in_slot_0() {
    let mut half = half(1, 0);
    assert_eq!((half.next_slot(), half.peek(1)), (0, Err(SendBlocked::Buffer)));
    half.handle_slot(sge(0x2000, 20)).unwrap();
    assert_eq!(half.next_slot(), 1);
    assert_eq!(send(&mut half, 1), Ok((0x2000, 1)));
}

#[test]
fn the_limit_is_absolute_and_wraps() {
    let mut half = half(2, 1_000_000);
    assert!(send(&mut half, 1).is_ok() && send(&mut half, 1).is_ok());
    assert_eq!((half.peek(1), half.room()), (Err(SendBlocked::Credits), 0));
    half.handle_credit(SeqNo(3));
    half.handle_credit(SeqNo(3));
    assert_eq!(half.room(), 1000);
    assert!(send(&mut half, 1).is_ok());
    assert_eq!(half.peek(1), Err(SendBlocked::Credits));
    // All the way round, in steps of a window.
    let mut sent = 3_u16;
    for _ in 0..200 {
        half.handle_credit(SeqNo(sent.wrapping_add(384)));
        for _ in 0..384 {
            assert!(send(&mut half, 1).is_ok());
        }
        sent = sent.wrapping_add(384);
        assert_eq!(half.peek(1), Err(SendBlocked::Credits));
    }
}

#[test]
fn a_limit_behind_the_counter_opens_a_window_as_in_c() {
    let mut half = half(2, 1_000_000);
    assert!(send(&mut half, 1).is_ok());
    half.handle_credit(SeqNo(0));
    assert!(send(&mut half, 1).is_ok());
}

#[test]
fn a_reserve_of_credits_is_left_alone_and_never_blocks_for_good() {
    let mut held = half(100, 1_000_000).with_reserve(4);
    assert_eq!((0..).take_while(|_| send(&mut held, 1).is_ok()).count(), 96);
    assert_eq!((held.peek(1), held.room()), (Err(SendBlocked::Credits), 0));
    let mut tiny = half(1, 1000).with_reserve(4);
    assert!(send(&mut tiny, 1).is_ok());
}

#[test]
fn a_closed_half_sends_nothing() {
    let mut half = half(10, 10);
    half.close();
    assert!(half.is_closed());
    assert_eq!((half.peek(1), half.room()), (Err(SendBlocked::Closed), 0));
}

#[test]
fn invalid_announcements_are_refused() {
    let wraps = peer(1, sge(u64::MAX - 5, 10));
    assert_eq!(SendHalf::new(CFG, &wraps).unwrap_err(), PeerError::RangeWraps);
    let mut half = half(10, 10);
    assert_eq!(half.handle_slot(sge(0, 0)), Err(PeerError::EmptyBuffer));
    assert_eq!(half.handle_slot(sge(u64::MAX, 1)), Err(PeerError::RangeWraps));
    assert_eq!((half.next_slot(), half.room()), (1, 10));
}

#[test]
fn the_largest_announcements_do_not_overflow() {
    let cfg = SendConfig { max_message: crate::MAX_DATA_LEN, n_slots: MOST_SLOTS };
    let mut half = SendHalf::new(cfg, &peer(u16::MAX, sge(1, u32::MAX))).unwrap();
    while half.handle_slot(sge(1, u32::MAX)).is_ok() {}
    assert_eq!(half.room() as u64, 8 * u64::from(u32::MAX));
    assert_eq!(send(&mut half, usize::MAX), Ok((1, crate::MAX_DATA_LEN)));
}

#[test]
fn long_writes_start_short_and_double() {
    let mut size = TransferSize::new(2048, 65536);
    let mut left = 300_000;
    let mut sizes = Vec::new();
    while left > 0 {
        sizes.push(size.step(left));
        left -= sizes[sizes.len() - 1];
    }
    assert_eq!(sizes, [2048, 4096, 8192, 16384, 32768, 65536, 65536, 65536, 39904]);
    assert_eq!(TransferSize::new(2048, 65536).step(2048), 2048);
    assert_eq!(TransferSize::new(2048, 65536).step(100), 100);
}
