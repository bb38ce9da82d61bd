//! The soft device's lock-free algorithms, which are generic over the kind of their atomics.
//!
//! Sleeping is modelled by a mutex and a condition variable, so loom reports a lost wake-up as a
//! deadlock. It also reports any access to memory that another thread still uses.

mod bells;
mod owner;
mod parking;
mod ready_set;
#[expect(dead_code, reason = "the models use what their algorithms need")]
#[path = "../../../rsock-verbs/src/sync/mod.rs"]
mod sync;

use super::{ModelFutex, explore};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::atomic::Ordering;
use sync::copy_guard::CopyGuard;
use sync::lane_users::LaneUsers;
use sync::primitive::{Loom, Platform};
use sync::room_request::RoomRequest;
use sync::slot::Slot;
use sync::versioned_words::{Copied, VersionedWords};
use sync::waiter::{BELL, BellName, FUTEX, WaitLine};

/// A peer that publishes the first entry of `slot`, and wakes a thread that has parked on `line`.
fn publisher(
    line: &Arc<WaitLine<Loom>>,
    slot: &Arc<Slot<Loom>>,
    futex: &Arc<ModelFutex>,
) -> thread::JoinHandle<()> {
    let (line, slot, futex) = (Arc::clone(line), Arc::clone(slot), Arc::clone(futex));
    thread::spawn(move || {
        slot.publish(0, 1, 2, &[0; 6]);
        if line.ring() & FUTEX != 0 {
            futex.wake();
        }
    })
}

/// Parks on `line` until the first entry of `slot` is published.
fn await_published(line: &WaitLine<Loom>, slot: &Slot<Loom>, futex: &ModelFutex) {
    while !slot.is_published(0) {
        let expected = line.arm(FUTEX);
        if slot.is_published(0) {
            break;
        }
        futex.futex_wait(line.word(), expected);
    }
}

#[test]
fn slots_carry_messages_and_the_memory_beside_them() {
    const SLOTS: usize = 2;
    const MESSAGES: u32 = 3;
    struct Lane {
        slots: [Slot<Loom>; SLOTS],
        region: [UnsafeCell<u32>; SLOTS],
        head: AtomicU32,
    }
    // SAFETY: the cells are handed over by the slots and the head; that is what is tested.
    unsafe impl Sync for Lane {}
    // SAFETY: as for `Sync`.
    unsafe impl Send for Lane {}
    explore(|| {
        let lane = Arc::new(Lane {
            slots: [Slot::fresh(), Slot::fresh()],
            region: [UnsafeCell::new(0), UnsafeCell::new(0)],
            head: AtomicU32::new(0),
        });
        let sender = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                for i in 0..MESSAGES {
                    while i.wrapping_sub(lane.head.load(Ordering::Acquire)) >= SLOTS as u32 {
                        thread::yield_now();
                    }
                    let place = i as usize % SLOTS;
                    // SAFETY: the receiver's head says that it has finished with the slot.
                    lane.region[place].with_mut(|p| unsafe { *p = i + 10 });
                    lane.slots[place].publish(i, i + 20, u64::from(i) + 30, &[i.into(); 6]);
                }
            })
        };
        for i in 0..MESSAGES {
            let place = i as usize % SLOTS;
            while !lane.slots[place].is_published(i) {
                thread::yield_now();
            }
            assert_eq!(lane.slots[place].read(), (i + 20, u64::from(i) + 30));
            assert_eq!(lane.slots[place].payload(), [u64::from(i); 6]);
            // SAFETY: the slot says that the sender has written it.
            assert_eq!(lane.region[place].with(|p| unsafe { *p }), i + 10);
            lane.head.store(i + 1, Ordering::Release);
        }
        sender.join().expect("sender");
    });
}

#[test]
fn a_parked_thread_is_woken_by_a_published_entry() {
    explore(|| {
        let line = Arc::new(WaitLine::<Loom>::fresh());
        let slot = Arc::new(Slot::<Loom>::fresh());
        let futex = Arc::new(ModelFutex::new());
        let sender = publisher(&line, &slot, &futex);
        await_published(&line, &slot, &futex);
        sender.join().expect("sender");
    });
}

#[test]
fn a_second_thread_that_parks_does_not_hide_the_wake_up_of_the_first() {
    explore(|| {
        let line = Arc::new(WaitLine::<Loom>::fresh());
        let slot = Arc::new(Slot::<Loom>::fresh());
        let futex = Arc::new(ModelFutex::new());
        let sender = publisher(&line, &slot, &futex);
        let other = {
            let line = Arc::clone(&line);
            // It waits for another event, which never happens.
            thread::spawn(move || line.arm(FUTEX))
        };
        await_published(&line, &slot, &futex);
        sender.join().expect("sender");
        other.join().expect("other");
    });
}

#[test]
fn a_parked_thread_and_a_bell_are_both_woken() {
    explore(|| {
        let line = Arc::new(WaitLine::<Loom>::fresh());
        let slot = Arc::new(Slot::<Loom>::fresh());
        let (futex, bell) = (Arc::new(ModelFutex::new()), Arc::new(ModelFutex::new()));
        let sleeper = {
            let (line, slot, futex) = (Arc::clone(&line), Arc::clone(&slot), Arc::clone(&futex));
            thread::spawn(move || await_published(&line, &slot, &futex))
        };
        let sender = {
            let (line, slot) = (Arc::clone(&line), Arc::clone(&slot));
            let (futex, bell) = (Arc::clone(&futex), Arc::clone(&bell));
            thread::spawn(move || {
                slot.publish(0, 1, 2, &[0; 6]);
                let bits = line.ring();
                if bits & FUTEX != 0 {
                    futex.wake();
                }
                if bits & BELL != 0 && line.bell(0).id == 77 {
                    bell.bell_ring();
                }
            })
        };
        line.set_bell(0, BellName { id: 77, pipe: 0 });
        line.arm(BELL);
        if !slot.is_published(0) {
            bell.bell_wait();
            assert!(slot.is_published(0));
        }
        sleeper.join().expect("sleeper");
        sender.join().expect("sender");
    });
}

#[test]
fn a_request_for_room_is_granted() {
    explore(|| {
        let request = Arc::new(RoomRequest::<Loom>::fresh());
        let posted = Arc::new(AtomicU32::new(0));
        let bell = Arc::new(ModelFutex::new());
        let receiver = {
            let (request, posted) = (Arc::clone(&request), Arc::clone(&posted));
            let bell = Arc::clone(&bell);
            thread::spawn(move || {
                for n in 1..=2 {
                    posted.store(n, Ordering::Release);
                    if request.grant(Loom::fence) {
                        bell.bell_ring();
                    }
                }
            })
        };
        for used in 0..2 {
            while posted.load(Ordering::Acquire) == used {
                request.ask(Loom::fence);
                if posted.load(Ordering::Acquire) != used {
                    request.withdraw();
                    break;
                }
                bell.bell_wait();
            }
        }
        receiver.join().expect("receiver");
    });
}

#[test]
fn memory_is_taken_back_only_when_no_copy_is_under_way() {
    struct Region {
        key: AtomicU32,
        guard: CopyGuard<Loom>,
        memory: UnsafeCell<u32>,
    }
    // SAFETY: the key and the copy guard hand the cell over; that is what is tested.
    unsafe impl Sync for Region {}
    // SAFETY: as for `Sync`.
    unsafe impl Send for Region {}
    explore(|| {
        let region = Arc::new(Region {
            key: AtomicU32::new(5),
            guard: CopyGuard::fresh(),
            memory: UnsafeCell::new(0),
        });
        let sender = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                let mut count = 0;
                for i in 0..2 {
                    let may_write = region.guard.begin(&mut count, Loom::fence);
                    if may_write && region.key.load(Ordering::Acquire) == 5 {
                        // SAFETY: the guard is begun, and the key is there.
                        region.memory.with_mut(|p| unsafe { *p = i });
                    }
                    region.guard.end(&mut count);
                }
            })
        };
        region.key.store(0, Ordering::Release);
        Loom::fence();
        if region.guard.is_quiet() {
            // SAFETY: the key is gone, and no copy was under way.
            region.memory.with_mut(|p| unsafe { *p = 99 });
        }
        sender.join().expect("sender");
    });
}

/// Two threads ring for room, and one fails the queue pair: the lane is detached from once, and is
/// not used after that.
#[test]
fn a_lane_is_detached_from_once_and_after_its_last_use() {
    struct Lane {
        users: LaneUsers<Loom>,
        has_failed: AtomicU32,
        line: UnsafeCell<u32>,
        n_given_up: AtomicU32,
    }
    // SAFETY: the cell is read by its users, and written by the thread that detaches.
    unsafe impl Sync for Lane {}
    // SAFETY: as for `Sync`.
    unsafe impl Send for Lane {}
    impl Lane {
        fn leave(&self) {
            if self.users.leave() {
                // SAFETY: the test is that no thread uses it any more.
                self.line.with_mut(|line| unsafe { *line = 1 });
                self.n_given_up.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    explore(|| {
        let lane = Arc::new(Lane {
            users: LaneUsers::new(),
            has_failed: AtomicU32::new(0),
            line: UnsafeCell::new(0),
            n_given_up: AtomicU32::new(0),
        });
        let ring = || {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.users.enter();
                if lane.has_failed.load(Ordering::Acquire) == 0 {
                    // SAFETY: as above.
                    lane.line.with(|line| assert_eq!(unsafe { *line }, 0));
                }
                lane.leave();
            })
        };
        let ringers = [ring(), ring()];
        lane.users.enter();
        lane.has_failed.store(1, Ordering::Release);
        lane.users.retire();
        lane.leave();
        for ringer in ringers {
            ringer.join().expect("ringer");
        }
        assert_eq!(lane.n_given_up.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn words_that_are_replaced_together_are_copied_together_or_not_at_all() {
    explore(|| {
        let words = Arc::new(VersionedWords::<2, Loom>::fresh());
        let reader = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut latest = 0;
                for _ in 0..2 {
                    if let Copied::Words(copy) = words.copy() {
                        assert!(copy == [copy[0]; 2] && copy[0] >= latest, "{copy:?}");
                        latest = copy[0];
                    }
                    thread::yield_now();
                }
            })
        };
        for n in 1..=2 {
            words.replace(&[n; 2]);
        }
        reader.join().expect("reader");
        assert_eq!(words.copy(), Copied::Words([2; 2]));
    });
}

/// An exchange over a link: the finder takes its request back while the publisher answers it. Both
/// write what they are about to do, and then read what the other has written.
#[test]
fn a_request_is_taken_back_or_answered() {
    const PUBLISHED: u64 = 1;
    const ANSWERING: u64 = 2;
    const REPLY: u64 = 3;
    const REQUEST: u64 = 4;
    const WITHDRAWN: u64 = 5;
    type Note = VersionedWords<1, Loom>;
    let says = |note: &Note, word| note.copy() == Copied::Words([word]);
    let set = |note: &Note, word| {
        note.replace(&[word]);
        Loom::fence();
    };
    explore(move || {
        let (publisher, finder) = (Arc::new(Note::fresh()), Arc::new(Note::fresh()));
        set(&publisher, PUBLISHED);
        set(&finder, REQUEST);
        let answering = {
            let (publisher, finder) = (Arc::clone(&publisher), Arc::clone(&finder));
            thread::spawn(move || {
                if !says(&finder, REQUEST) {
                    return false;
                }
                set(&publisher, ANSWERING);
                let answers = says(&finder, REQUEST);
                set(&publisher, if answers { REPLY } else { PUBLISHED });
                answers
            })
        };
        set(&finder, WITHDRAWN);
        let is_taken_back = says(&publisher, PUBLISHED);
        let is_answered = answering.join().expect("publisher");
        assert!(!(is_taken_back && is_answered));
        assert_eq!(is_answered, says(&publisher, REPLY));
    });
}
