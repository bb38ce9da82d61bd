//! Tables of opened buffers.

use crate::{
    ConnData, ConnFlags, Imm, IomapEntry, IomapSlots, IomapTarget, PROTOCOL_VERSION, PeerError,
    RemoteIomap, RemoteSge, checked_index, lookup,
};
use proptest::prelude::*;
use rsock_verbs::{RKey, RemoteAddr};

const ENTRY: IomapEntry =
    IomapEntry { offset: 0x100, addr: RemoteAddr(0x7000), rkey: RKey(3), len: 0x50 };

fn peer(size: u8) -> ConnData {
    ConnData {
        version: PROTOCOL_VERSION,
        flags: ConnFlags::LOCAL,
        credits: 1,
        target_iomap_size: size,
        target_sgl: RemoteSge { addr: RemoteAddr(0x9000), key: RKey(9), len: 2 },
        data_buf: RemoteSge::default(),
    }
}

fn target(remote: u64, len: u32) -> Option<IomapTarget> {
    Some(IomapTarget { remote: RemoteAddr(remote), rkey: RKey(3), len })
}

#[test]
fn a_lookup_is_clamped_to_the_entry_and_its_end_is_outside() {
    let unused = IomapEntry::default();
    let next = IomapEntry { offset: 0x150, addr: RemoteAddr(0xA000), ..ENTRY };
    let table = [unused, ENTRY, next];
    assert_eq!(lookup(&table, 0xFF, 1), None);
    assert_eq!(lookup(&table, 0x100, 1), target(0x7000, 1));
    assert_eq!(lookup(&table, 0x110, usize::MAX), target(0x7010, 0x40));
    assert_eq!(lookup(&table, 0x14F, 9), target(0x704F, 1));
    assert_eq!(lookup(&table, 0x150, 9), target(0xA000, 9));
    assert_eq!(lookup(&table, 0x1A0, 1), None);
    assert_eq!(lookup(&table, 0x100, 0), None);
    assert_eq!(lookup(&table, 0, 1), None);
}

#[test]
fn extreme_entries_of_a_peer_are_harmless() {
    let entry = IomapEntry {
        offset: u64::MAX - 1,
        addr: RemoteAddr(u64::MAX),
        rkey: RKey(0),
        len: u32::MAX,
    };
    let hit = entry.target(u64::MAX, usize::MAX).unwrap();
    assert_eq!((hit.remote, hit.len), (RemoteAddr(0), u32::MAX - 1));
    assert_eq!(entry.target(0, 1), None);
}

#[test]
fn entries_go_behind_the_table_of_buffers() {
    let table = RemoteIomap::new(&peer(4)).unwrap().unwrap();
    assert_eq!(table.n_entries(), 4);
    let write = table.write(3, ENTRY);
    assert_eq!((write.remote, write.rkey), (RemoteAddr(0x9000 + 32 + 72), RKey(9)));
    assert_eq!(write.imm, Imm::iomap(3));
    assert_eq!(IomapEntry::from_table_bytes(&write.bytes), ENTRY);
}

#[test]
fn a_peer_offers_a_table_only_with_the_flag_and_a_size() {
    assert_eq!(RemoteIomap::new(&peer(0)), Ok(None));
    let silent = ConnData { flags: ConnFlags::empty(), ..peer(4) };
    assert_eq!(RemoteIomap::new(&silent), Ok(None));
    let mut wraps = peer(255);
    wraps.target_sgl.addr = RemoteAddr(u64::MAX - 64);
    assert_eq!(RemoteIomap::new(&wraps), Err(PeerError::RangeWraps));
    wraps.target_sgl.len = u32::MAX;
    assert_eq!(RemoteIomap::new(&wraps), Err(PeerError::RangeWraps));
}

#[test]
fn the_other_byte_order_swaps_each_field() {
    let swapped = ConnData { flags: ConnFlags::LOCAL ^ ConnFlags::NET, ..peer(1) };
    let bytes = RemoteIomap::new(&swapped).unwrap().unwrap().write(0, ENTRY).bytes;
    let native = ENTRY.to_table_bytes(false);
    for field in [0..8, 8..16, 16..20, 20..24] {
        let mut reversed = native[field.clone()].to_vec();
        reversed.reverse();
        assert_eq!(bytes[field], reversed);
    }
}

#[test]
fn an_index_outside_the_local_table_is_a_violation() {
    assert_eq!(checked_index(3, 4), Ok(3));
    assert_eq!(checked_index(4, 4), Err(PeerError::IomapIndex(4)));
    assert_eq!(checked_index(0, 0), Err(PeerError::IomapIndex(0)));
    assert_eq!(checked_index(u32::MAX, 4), Err(PeerError::IomapIndex(u32::MAX)));
}

#[test]
fn slots_are_given_lowest_first_and_once() {
    let mut words = [0; IomapSlots::n_words(70)];
    let mut slots = IomapSlots::new(&mut words, 70);
    for i in 0..70 {
        assert_eq!(slots.allocate(), Some(i));
    }
    assert_eq!(slots.allocate(), None);
    assert!(slots.release(65) && slots.release(3));
    assert!(!slots.release(3) && !slots.release(1 << 40));
    assert_eq!((slots.allocate(), slots.allocate(), slots.allocate()), (Some(3), Some(65), None));
}

proptest! {
    #[test]
    fn entries_survive_the_table(offset: u64, addr: u64, key: u32, len: u32) {
        let entry = IomapEntry { offset, addr: RemoteAddr(addr), rkey: RKey(key), len };
        prop_assert_eq!(IomapEntry::from_table_bytes(&entry.to_table_bytes(false)), entry);
    }

    #[test]
    fn a_target_stays_inside_its_entry(start: u64, len: u32, skip: u32, want: usize) {
        let entry = IomapEntry { offset: start, addr: RemoteAddr(0), rkey: RKey(0), len };
        if let Some(offset) = start.checked_add(skip.into()) {
            match entry.target(offset, want) {
                Some(t) => {
                    prop_assert!(t.remote.0 + u64::from(t.len) <= u64::from(len));
                    prop_assert!(t.len > 0 && t.len as usize <= want);
                }
                None => prop_assert!(skip >= len || want == 0),
            }
        }
    }
}
