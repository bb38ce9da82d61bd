//! The descriptors of a process, by slot: which end of which connection each is, and which threads
//! are in a call on it.
//!
//! A number that is closed or replaced under a thread means something to the kernel only if that
//! thread is in its call already. So a thread says that it is about to make a call, and a thread
//! that closes waits until it sleeps.

use super::{SHARED_FD, Worker};
use crate::schedule::Kind;
use crate::shared::{EMPTY, End, OPEN, RESERVED, SLOTS, Slot, Thread};
use crate::sys::{self, DONTWAIT};
use std::fs;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;

/// A call on a slot's descriptor, from before it is made until after it has returned.
pub(super) struct Call {
    pub(super) fd: RawFd,
    pub(super) end: End,
}

impl Worker {
    pub(super) fn slot(&self, slot: usize) -> &'static Slot {
        &self.process().slots[slot]
    }

    /// The first open slot from `from` on, around.
    pub(super) fn some_slot(&self, from: u32) -> Option<usize> {
        let from = from as usize % SLOTS;
        (from..SLOTS).chain(0..from).find(|&slot| self.slot(slot).state.load(SeqCst) == OPEN)
    }

    /// Takes an empty slot.
    pub(super) fn reserve(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| {
            self.slot(slot).state.compare_exchange(EMPTY, RESERVED, SeqCst, SeqCst).is_ok()
        })
    }

    /// Puts a descriptor of `end` into a reserved slot, which others may use from then on.
    pub(super) fn publish(&self, slot: usize, fd: RawFd, end: End) {
        let slot = self.slot(slot);
        slot.fd.store(fd, SeqCst);
        slot.end.store(end.index(), SeqCst);
        slot.state.store(OPEN, SeqCst);
    }

    pub(super) fn give_back(&self, slot: usize) {
        self.slot(slot).state.store(EMPTY, SeqCst);
    }

    /// A descriptor of `end` is about to be made.
    pub(super) fn maybe_opened(&self, end: End) {
        self.shared.state(end).n_maybe_open[self.me].fetch_add(1, SeqCst);
    }

    /// It has been made.
    pub(super) fn opened(&self, end: End) {
        self.shared.state(end).n_open[self.me].fetch_add(1, SeqCst);
    }

    /// It is about to be closed.
    pub(super) fn closes(&self, end: End) {
        self.shared.state(end).n_open[self.me].fetch_sub(1, SeqCst);
    }

    /// It has been closed, or a call on it has returned.
    pub(super) fn closed(&self, end: End) {
        self.shared.state(end).n_maybe_open[self.me].fetch_sub(1, SeqCst);
    }

    pub(super) fn lock(&self, slot: usize) {
        let lock = &self.slot(slot).lock;
        while lock.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            sys::pause(20);
        }
    }

    pub(super) fn try_lock(&self, slot: usize) -> bool {
        self.slot(slot).lock.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()
    }

    pub(super) fn unlock(&self, slot: usize) {
        self.slot(slot).lock.store(0, SeqCst);
    }

    /// Says that a call of `kind` on `slot`, with the flags `how`, is about to be made, which may
    /// return once `least` bytes are there.
    pub(super) fn enter(&self, slot: usize, kind: Kind, least: u64, how: u32) -> Option<Call> {
        self.lock(slot);
        let place = self.slot(slot);
        if place.state.load(SeqCst) != OPEN {
            self.unlock(slot);
            return None;
        }
        let end = End::of_index(place.end.load(SeqCst));
        let call = Call { fd: place.fd.load(SeqCst), end };
        self.maybe_opened(end);
        let own = self.own();
        own.fd.store(call.fd, SeqCst);
        own.slots.store(1 << slot, SeqCst);
        let is_brief = how & DONTWAIT != 0 || self.is_nonblocking(end);
        own.is_brief.store(u32::from(is_brief), SeqCst);
        self.unlock(slot);
        self.begin(kind, end, least);
        Some(call)
    }

    /// The call has returned.
    pub(super) fn leave_call(&self, call: &Call) {
        self.own().call.store(0, SeqCst);
        self.own().slots.store(0, SeqCst);
        self.closed(call.end);
    }

    /// Says that a call that may block begins now.
    pub(super) fn begin(&self, kind: Kind, end: End, least: u64) {
        let own = self.own();
        own.end.store(end.index(), SeqCst);
        own.least.store(least, SeqCst);
        own.since.store(sys::now(), SeqCst);
        own.call.store(kind as u32 + 1, SeqCst);
    }

    /// With the slot locked: waits until each thread that is in a call on it sleeps there, so that
    /// the number may mean something else. False if one does not.
    pub(super) fn are_all_inside(&self, slot: usize) -> bool {
        self.process().threads.iter().enumerate().all(|(i, thread)| {
            i == self.thread
                || (0..100).any(|tried| {
                    if tried > 0 {
                        sys::pause(50);
                    }
                    if self.schedule.settings.is_gentle != 0 {
                        thread.slots.load(SeqCst) & 1 << slot == 0
                    } else {
                        is_inside(thread, slot)
                    }
                })
        })
    }

    /// All numbers of the process that no slot, and nothing else of its, accounts for: left by
    /// calls that a fork or an exec has cut off.
    pub(super) fn unknown_descriptors(&self) -> Vec<RawFd> {
        let entries = fs::read_dir("/proc/self/fd").expect("its own descriptors");
        let names = entries.flatten().map(|entry| entry.file_name());
        let fds: Vec<RawFd> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
        let is_known = |fd: &RawFd| {
            let mut slots = self.process().slots.iter();
            *fd == self.process().listener.load(SeqCst) - 1
                || slots.any(|s| s.state.load(SeqCst) == OPEN && s.fd.load(SeqCst) == *fd)
        };
        fds.into_iter()
            .filter(|fd| (3..super::OWN_FDS.min(SHARED_FD)).contains(fd) && !is_known(fd))
            .collect()
    }
}

/// Whether `thread` has no call on `slot` that it has still to begin.
fn is_inside(thread: &Thread, slot: usize) -> bool {
    if thread.slots.load(SeqCst) & 1 << slot == 0 {
        return true;
    }
    // The kernel looks at a number again whenever it wakes up in `poll` or `select`. A call that
    // does not wait has no business to sleep: if it does, it may not have looked at the number yet.
    if thread.call.load(SeqCst) == Kind::Poll as u32 + 1 || thread.is_brief.load(SeqCst) != 0 {
        return false;
    }
    let handled = thread.n_signals_handled.load(SeqCst);
    let tid = thread.tid.load(SeqCst);
    let about = |what| fs::read_to_string(format!("/proc/self/task/{tid}/{what}"));
    let (Ok(stat), Ok(syscall)) = (about("stat"), about("syscall")) else { return false };
    thread.n_signals_sent.load(SeqCst) == handled
        && stat.rsplit(')').next().is_some_and(|state| state.starts_with(" S"))
        && !waits_for_private_lock(&syscall)
}

/// Whether a thread, as its file `syscall` in `/proc` shows it, sleeps on a word that no other
/// process can wake it by. Calls on sockets do not end that way: it waits for a lock of the
/// process, and may not have looked at its descriptor yet.
fn waits_for_private_lock(syscall: &str) -> bool {
    let mut fields = syscall.split_whitespace();
    let is_futex = fields.next().and_then(|n| n.parse().ok()) == Some(libc::SYS_futex);
    let op = fields.nth(1).and_then(|op| i32::from_str_radix(op.strip_prefix("0x")?, 16).ok());
    is_futex && op.is_some_and(|op| op & libc::FUTEX_PRIVATE_FLAG != 0)
}
