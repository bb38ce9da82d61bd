//! Giving back the pages of a receive ring: no byte that the peer has written is lost.

#[path = "../../../rsock-verbs/src/sync/copy_guard.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod copy_guard;
#[path = "../../../rsock-verbs/src/sync/primitive.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod primitive;
#[path = "../../../rsock-core/src/engine/buffers/release.rs"]
mod release;
#[path = "../../../rsock-verbs/src/sync/slot.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod slot;

use super::explore;
use copy_guard::CopyGuard;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use primitive::{Loom, Platform};
use slot::Slot;

struct Ring {
    guard: CopyGuard<Loom>,
    slot: Slot<Loom>,
    memory: UnsafeCell<u32>,
}

// SAFETY: the memory is handed over by guard and slot; that is what is tested.
unsafe impl Sync for Ring {}
// SAFETY: as for `Sync`.
unsafe impl Send for Ring {}

#[test]
fn released_pages_hold_no_byte_that_the_peer_has_written() {
    explore(|| {
        let ring = Arc::new(Ring {
            guard: CopyGuard::fresh(),
            slot: Slot::fresh(),
            memory: UnsafeCell::new(0),
        });
        let sender = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut count = 0;
                let mut is_sent = false;
                // A paused sender tries again once; by then the owner is done, or it gives up.
                for _ in 0..2 {
                    if ring.guard.begin(&mut count, Loom::fence) {
                        // SAFETY: the guard is begun, and not paused.
                        ring.memory.with_mut(|memory| unsafe { *memory = 7 });
                        ring.slot.publish(0, 0, 0, &[0; 6]);
                        is_sent = true;
                    }
                    ring.guard.end(&mut count);
                    if is_sent {
                        break;
                    }
                    thread::yield_now();
                }
                is_sent
            })
        };
        release::release_pages(
            false,
            || ring.slot.is_published(0),
            |punch| {
                ring.guard.pause();
                Loom::fence();
                if ring.guard.is_quiet() {
                    punch();
                }
                ring.guard.resume();
            },
            // SAFETY: the sender is kept out.
            || ring.memory.with_mut(|memory| unsafe { *memory = 0 }),
        );
        if sender.join().expect("a sender") {
            assert!(ring.slot.is_published(0));
            // SAFETY: the sender has ended.
            assert_eq!(ring.memory.with(|memory| unsafe { *memory }), 7);
        }
    });
}
