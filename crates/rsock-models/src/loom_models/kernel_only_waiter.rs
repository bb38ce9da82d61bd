//! The invitation to the ring against threads that sleep in the kernel: none of them sleeps through
//! what the peer then writes to the ring.

#[path = "../../../rsock-core/src/accelerate/kernel_only_waiter.rs"]
mod kernel_only_waiter;

use super::explore;
use kernel_only_waiter::{KernelOnlyWaiter, is_any};
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// One direction of a stream and its peer's writer.
#[derive(Default)]
struct Direction {
    /// What the lock of the direction guards: whether the peer has been invited.
    rx: Mutex<bool>,
    waiters: AtomicU32,
    peer: Mutex<Peer>,
    wake: Condvar,
}

#[derive(Default)]
struct Peer {
    /// The invitation has arrived.
    is_ready: bool,
    on_tcp: u32,
    on_ring: u32,
}

impl Direction {
    /// A read of one byte, which either way may bring.
    fn read(&self) {
        loop {
            let rx = self.rx.lock().expect("lock");
            let is_invited = *rx;
            let mut peer = self.peer.lock().expect("lock");
            if peer.on_tcp != 0 {
                peer.on_tcp -= 1;
                return;
            }
            if is_invited && peer.on_ring != 0 {
                peer.on_ring -= 1;
                return;
            }
            drop(peer);
            let waiters = (!is_invited).then(|| KernelOnlyWaiter::new(&self.waiters, &*rx));
            drop(rx);
            let mut peer = self.peer.lock().expect("lock");
            // A kernel-only waiter wakes for TCP alone.
            while peer.on_tcp == 0 && (waiters.is_some() || peer.on_ring == 0) {
                peer = self.wake.wait(peer).expect("lock");
            }
        }
    }

    /// What each call does first.
    fn invite(&self) {
        let mut rx = self.rx.lock().expect("lock");
        if !*rx && !is_any(&self.waiters, &*rx) {
            *rx = true;
            self.peer.lock().expect("lock").is_ready = true;
        }
    }

    fn write(&self) {
        let mut peer = self.peer.lock().expect("lock");
        if peer.is_ready {
            peer.on_ring += 1;
        } else {
            peer.on_tcp += 1;
        }
        self.wake.notify_all();
    }
}

#[test]
fn no_reader_sleeps_in_the_kernel_for_what_comes_on_the_ring() {
    explore(|| {
        let direction = Arc::new(Direction::default());
        let reader = {
            let direction = Arc::clone(&direction);
            thread::spawn(move || direction.read())
        };
        let peer = {
            let direction = Arc::clone(&direction);
            thread::spawn(move || direction.write())
        };
        direction.invite();
        peer.join().expect("the peer");
        reader.join().expect("a reader");
        // Awake again, it is in the way no more.
        assert!(!is_any(&direction.waiters, &*direction.rx.lock().expect("lock")));
    });
}
