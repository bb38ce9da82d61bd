//! What a wait has reported, where the kernel may report it once more in the same wait.
//!
//! A wait asks the kernel again where this library's own events have taken the places of others,
//! and where a member has gone back to the kernel's set. A level is then reported again, though a
//! wait reports each watch once.

use crate::epoll_interest;
use libc::epoll_event;
use rustix::fd::RawFd;

/// What one wait has reported so far, as far as that matters.
#[derive(Default)]
pub(super) struct Reported {
    /// Events that the kernel has returned.
    by_kernel: Vec<epoll_event>,
    /// The data of members that their rings have reported, and that the kernel reports once more,
    /// because it watches them since.
    left_ring: Vec<u64>,
    /// A member has gone back to the kernel's set, which may have events of it.
    has_left_ring: bool,
}

impl Reported {
    /// A wait begins.
    pub(super) fn clear(&mut self) {
        self.by_kernel.clear();
        self.left_ring.clear();
    }

    /// The kernel watches a member again. `again` is its data if the kernel is to report what this
    /// wait has reported.
    pub(super) fn note_left_ring(&mut self, again: Option<u64>) {
        self.has_left_ring = true;
        self.left_ring.extend(again);
    }

    /// Whether a member has gone back to the kernel's set since the last call.
    pub(super) fn take_left_ring(&mut self) -> bool {
        std::mem::take(&mut self.has_left_ring)
    }

    /// Moves those of `events`, which the kernel of `set` has returned together, to the front that
    /// this wait has not reported yet; returns how many there are.
    pub(super) fn keep_new(&mut self, set: RawFd, events: &mut [epoll_event]) -> usize {
        let n_before = self.by_kernel.len();
        let mut left_ring = self.left_ring.clone();
        let mut n = 0;
        for i in 0..events.len() {
            let event = events[i];
            let data = event.u64;
            if let Some(at) = left_ring.iter().position(|left| *left == data) {
                left_ring.swap_remove(at);
                continue;
            }
            let mut before = self.by_kernel[..n_before].iter().filter(|other| other.u64 == data);
            // A level comes again at once, but several watches may have the same data.
            let is_again = before.any(|other| other.events == event.events)
                && !epoll_interest::have_several(set, data);
            if !is_again {
                self.by_kernel.push(event);
                events[n] = event;
                n += 1;
            }
        }
        n
    }
}
