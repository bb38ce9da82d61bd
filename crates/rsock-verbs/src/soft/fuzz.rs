//! Entry points for fuzzers: what a process at the other end of a link may send and write.

use super::Link;
use super::SoftContext;
use super::hello::{HELLO_LEN, Hello};
use super::layout::{DATA, QP_TABLE, QPS, QpEntry, REGION_TABLE, REGIONS, RegionEntry};
use super::qp::lane::LaneProducer;
use super::regions::{RemoteRegion, Target};
use super::testing::linked_pair;
use crate::cred::PeerCred;
use crate::{QpNum, RKey};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The handshake of a link: an honest offer with changes in its hello, and descriptors that the
/// fuzzer chooses. The first byte selects the descriptors; the others come in pairs: the position
/// of a byte to change, and the change.
///
/// # Panics
/// If the parsed message differs from the sent one.
pub fn hello(data: &[u8]) {
    let Some((&choice, changes)) = data.split_first() else { return };
    let Ok(ctx) = SoftContext::open() else { return };
    let Ok(offer) = ctx.offer() else { return };
    let (mut bytes, honest) = offer.hello();
    for change in changes.chunks_exact(2) {
        bytes[usize::from(change[0]) % HELLO_LEN] ^= change[1];
    }
    if let Ok(hello) = Hello::parse(&bytes) {
        assert_eq!(hello.to_bytes(), bytes);
    }
    let copy = |i: usize| honest[i].try_clone_to_owned();
    let fds: std::io::Result<Vec<OwnedFd>> = match choice % 8 {
        0 => [copy(0), copy(1)].into_iter().collect(),
        1 => [copy(1), copy(0)].into_iter().collect(),
        2 => [copy(0), copy(0)].into_iter().collect(),
        3 => [copy(0)].into_iter().collect(),
        4 => [copy(0), copy(1), copy(1)].into_iter().collect(),
        5 => [memory(SealFlags::empty()), copy(1)].into_iter().collect(),
        6 => [memory(SealFlags::SHRINK), copy(1)].into_iter().collect(),
        _ => [memory(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), copy(1)]
            .into_iter()
            .collect(),
    };
    let Ok(fds) = fds else { return };
    let me = PeerCred::own();
    let Ok((link, reply, file)) = ctx.accept(&bytes, fds, me) else { return };
    assert!(matches!(choice % 8, 0 | 7), "a link of other descriptors than an offer's");
    assert_eq!(Hello::parse(&reply).map(|reply| reply.link).ok(), Some(link.id().0));
    // The offering end, with the link id that the accepting end returned.
    let completed = offer.complete(&reply, vec![file], me);
    assert!(completed.is_err() || completed.is_ok_and(|other| other.id() == link.id()));
    link.probe();
}

/// A memory file with these seals that is no segment.
fn memory(seals: SealFlags) -> std::io::Result<OwnedFd> {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(fd.as_fd(), 1 << 20)?;
    fcntl_add_seals(fd.as_fd(), seals)?;
    Ok(fd)
}

/// Looks up entries of regions and queue pairs while the peer keeps changing them. Each change is
/// eight bytes: which word of which table, and its value.
///
/// # Panics
/// If a lookup finds something outside of the peer's segment.
pub fn entries(data: &[u8]) {
    static PAIR: OnceLock<Option<(Arc<Link>, Arc<Link>)>> = OnceLock::new();
    let pair = || SoftContext::open().and_then(|ctx| linked_pair(&ctx)).ok();
    let Some((victim, peer)) = PAIR.get_or_init(pair) else { return };
    let words: Vec<(u64, u32)> = data.chunks_exact(8).map(change).collect();
    let is_over = AtomicBool::new(false);
    let scribble = || {
        for &(at, value) in &words {
            if let Some(word) = peer.own_segment().at::<AtomicU32>(at) {
                word.store(value, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            scribble();
            while !is_over.load(Ordering::Relaxed) {
                scribble();
            }
        });
        for round in 0..20 {
            for &(_, value) in &words {
                let key = RKey(value);
                if let Ok(remote) = RemoteRegion::look_up(victim.peer_segment(), key) {
                    let (addr, len) = (u64::from(value) << (round % 32), u64::from(value >> 7));
                    if let Some(Target::Segment(at)) = remote.target(addr, len) {
                        assert!(victim.peer_segment().covers(at, len));
                    }
                    remote.is_current(victim.peer_segment(), key);
                }
                if let Ok(send_lane) = LaneProducer::connect(victim, QpNum(1), QpNum(value)) {
                    send_lane.consumed();
                    send_lane.ring();
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        // The end of the scope does not wait until the thread's memory is freed, which a leak
        // checker would report; `join` does.
        peer.join().expect("it only stores");
    });
    // Claims may lie anywhere in the segment: its pages are given back.
    peer.own_segment().punch(DATA, peer.own_segment().len() - DATA);
}

/// Decodes a change: its offset in the segment, and its value.
fn change(bytes: &[u8]) -> (u64, u32) {
    let number = |at: usize| bytes.get(at).copied().map_or(0, u64::from);
    let (table, entries, size) = match number(0) & 1 {
        0 => (REGION_TABLE, REGIONS, size_of::<RegionEntry>()),
        _ => (QP_TABLE, QPS, size_of::<QpEntry>()),
    };
    // Few entries, so that several changes hit the same one; the last entry is among them.
    let entry = if number(1) == 0xff { u64::from(entries) - 1 } else { number(1) % 8 };
    let value =
        bytes.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    (table + entry * size as u64 + number(2) * 4 % size as u64, value)
}

#[cfg(test)]
#[path = "../../../../fuzz/driver.rs"]
mod driver;

#[cfg(test)]
mod tests {
    use super::driver;

    #[test]
    fn altered_offers_pass() {
        driver::run("hello", 300, super::hello);
    }

    #[test]
    fn changing_entries_pass() {
        driver::run("entries", 200, super::entries);
    }
}
