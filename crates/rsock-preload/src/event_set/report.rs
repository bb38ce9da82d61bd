//! How the events of a wait reach the program's memory.

use super::{EventSet, in_core};
use crate::{arg, errno};
use libc::{c_int, epoll_event};
use rsock_core::interrupt::Section;
use rsock_verbs::fault;

/// The smallest page that memory is mapped by.
const PAGE: usize = 4096;

/// How many of `n` places for events, at most a page of them, are memory that is there. The first
/// is. The kernel reports as many events, and keeps the others.
///
/// # Safety
/// `at` is memory of the program, or an address where there is none.
pub(super) unsafe fn places(at: *const epoll_event, n: usize) -> usize {
    let in_first_page = PAGE - at.addr() % PAGE;
    if n * size_of::<epoll_event>() <= in_first_page {
        return n;
    }
    let next_page = at.cast::<u8>().wrapping_add(in_first_page);
    // SAFETY: the caller's promise; an integer.
    let is_there = unsafe { arg::load(next_page) }.is_ok();
    if is_there { n } else { (in_first_page / size_of::<epoll_event>()).clamp(1, n) }
}

/// Copies events to the program, and returns their number as `epoll_wait` does: of those that fit
/// where the program may not write behind some of them. The others stay due, as far as they are of
/// members that the library watches.
///
/// # Safety
/// As [`places`], of the memory that they go `to`.
pub(super) unsafe fn hand_over(
    set: &EventSet,
    events: &mut [epoll_event],
    to: *mut epoll_event,
) -> c_int {
    let mut n = events.len();
    if n > 1 && set.has_proxies() {
        let _section = Section::enter();
        let state = set.lock();
        n = merge(events, |data| state.proxied.values().any(|&other| other == data));
    }
    let events = &events[..n];
    // SAFETY: the caller's promise.
    if n == 0 || unsafe { fault::copy(events.as_ptr().cast(), to.cast(), size_of_val(events)) } {
        return c_int::try_from(n).unwrap_or(c_int::MAX);
    }
    let mut n_copied = 0;
    for (i, event) in events.iter().enumerate() {
        // SAFETY: as above.
        if unsafe { arg::store(event, to.wrapping_add(i)) }.is_err() {
            break;
        }
        n_copied = i + 1;
    }
    let others = &events[n_copied..];
    in_core(|| {
        let mut state = set.lock();
        let is_due = |data: u64| others.iter().any(|event| { event.u64 } == data);
        let watched: Vec<u32> = state.members.watched().collect();
        for number in watched {
            if state.members.get(number).is_some_and(|member| is_due(member.data)) {
                state.begin_anew(number);
                state.is_rings_turn = true;
            }
        }
        0
    });
    if n_copied == 0 {
        return errno::fail_int(libc::EFAULT);
    }
    c_int::try_from(n_copied).unwrap_or(c_int::MAX)
}

/// Makes one event of those of a descriptor and of its proxy, which have the same data. Returns how
/// many events are left.
fn merge(events: &mut [epoll_event], has_proxy: impl Fn(u64) -> bool) -> usize {
    let mut kept = 0;
    for i in 0..events.len() {
        let event = events[i];
        let same = events[..kept].iter_mut().find(|other| { other.u64 } == event.u64);
        match same {
            Some(other) if has_proxy(event.u64) => other.events |= event.events,
            _ => {
                events[kept] = event;
                kept += 1;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(events: u32, u64: u64) -> epoll_event {
        epoll_event { events, u64 }
    }

    #[test]
    fn events_of_several_watches_with_the_same_data_stay_apart() {
        let mut events = [event(1, 7), event(4, 9), event(4, 7), event(1, 9)];
        let kept = merge(&mut events, |data| data == 9);
        let kept = events[..kept].iter().map(|event| ({ event.events }, { event.u64 }));
        assert_eq!(kept.collect::<Vec<_>>(), [(1, 7), (5, 9), (4, 7)]);
    }

    #[test]
    fn places_end_with_the_memory() {
        let len = 2 * PAGE;
        let flags = rustix::mm::MapFlags::PRIVATE;
        let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: fresh memory at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
        let at = at.expect("memory").cast::<u8>();
        let places_before_end = |n_before: usize, n: usize| {
            let offset = PAGE - n_before * size_of::<epoll_event>();
            // SAFETY: two pages, both of which are there.
            unsafe { places(at.wrapping_add(offset).cast(), n) }
        };
        for n in [1, 2, 5, 128] {
            assert_eq!(places_before_end(2, n), n, "all are there");
        }
        // SAFETY: the mapping of this test.
        unsafe { rustix::mm::munmap(at.cast(), len) }.expect("unmapped");
    }
}
