//! When the queue of a UDP socket opens, no thread and no epoll set misses what arrives in it.

#[path = "../../../rsock-core/src/datagram/kernel_udp/opening.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod opening;

use super::explore;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use opening::{OPEN, OVER, Opening, Tried};

#[test]
fn a_socket_does_not_open_past_a_thread_that_sleeps_in_the_kernel() {
    explore(|| {
        let socket = Arc::new((Opening::new(), AtomicBool::new(false)));
        let opening = {
            let socket = Arc::clone(&socket);
            thread::spawn(move || {
                let (opening, has_opened) = &*socket;
                match opening.attempt(false) {
                    // From here on senders find it.
                    Tried::Open => has_opened.store(true, Ordering::Relaxed),
                    Tried::Unheard => opening.give_up(),
                    Tried::NotShut => unreachable!("one thread opens"),
                }
            })
        };
        let (opening_words, has_opened) = &*socket;
        if opening_words.deafen() {
            // Asleep until the other thread wakes it.
            opening.join().expect("a thread");
            assert!(!has_opened.load(Ordering::Relaxed), "asleep although the queue is open");
            opening_words.hear();
        } else {
            opening_words.hear();
            opening.join().expect("a thread");
        }
    });
}

#[test]
fn a_socket_does_not_open_past_an_epoll_set_that_begins_to_watch_it() {
    explore(|| {
        let opening = Arc::new(Opening::new());
        let opener = {
            let opening = Arc::clone(&opening);
            thread::spawn(move || {
                let was_watched = opening.is_watched();
                // Here the epoll sets get their second descriptor, if there are any.
                match opening.attempt(was_watched) {
                    Tried::Open => Some(was_watched),
                    _ => {
                        opening.give_up();
                        None
                    }
                }
            })
        };
        opening.note_watched();
        let is_shut = opening.deafen();
        // Here the set begins to watch; what opens later puts itself into it.
        opening.hear();
        let opened = opener.join().expect("a thread");
        if is_shut {
            assert_ne!(opened, Some(false), "open, and a set does not know");
        }
    });
}

#[test]
fn a_closed_socket_does_not_open_again() {
    explore(|| {
        let opening = Arc::new(Opening::new());
        let opener = {
            let opening = Arc::clone(&opening);
            thread::spawn(move || {
                if opening.attempt(false) == Tried::Unheard {
                    opening.give_up();
                }
            })
        };
        let deaf = {
            let opening = Arc::clone(&opening);
            thread::spawn(move || {
                opening.deafen();
                opening.hear();
            })
        };
        let was_open = opening.end();
        opener.join().expect("a thread");
        deaf.join().expect("a thread");
        assert_eq!(opening.state(), OVER, "was it open: {was_open}, and not {OPEN}");
    });
}
