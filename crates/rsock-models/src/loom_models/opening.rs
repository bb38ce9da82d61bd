//! When the queue of a UDP socket opens, no thread and no epoll set misses what arrives in it.

#[path = "../../../rsock-core/src/datagram/kernel_udp/opening.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod opening;

use super::explore;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use opening::{ENDED, OPEN, OpenAttempt, Opening};

#[test]
fn a_queue_does_not_open_while_a_thread_sleeps_in_the_kernel() {
    explore(|| {
        let socket = Arc::new((Opening::new(), AtomicBool::new(false)));
        let opening = {
            let socket = Arc::clone(&socket);
            thread::spawn(move || {
                let (opening, has_opened) = &*socket;
                match opening.attempt(0) {
                    // From here on senders find the queue.
                    OpenAttempt::Open => has_opened.store(true, Ordering::Relaxed),
                    OpenAttempt::WouldMissWakeups => opening.give_up(),
                    OpenAttempt::AlreadyDecided => unreachable!("one thread opens"),
                }
            })
        };
        let (opening_words, has_opened) = &*socket;
        if opening_words.begin_kernel_wait() {
            // Asleep until the other thread wakes it.
            opening.join().expect("a thread");
            assert!(!has_opened.load(Ordering::Relaxed), "asleep although the queue is open");
            opening_words.end_kernel_wait();
        } else {
            opening_words.end_kernel_wait();
            opening.join().expect("a thread");
        }
    });
}

#[test]
fn a_queue_does_not_open_unknown_to_an_epoll_set_that_begins_to_watch_its_socket() {
    explore(|| {
        // The words, and whether the set watches the socket.
        let socket = Arc::new((Opening::new(), AtomicBool::new(false)));
        let opening = &socket.0;
        // Another set has watched it before.
        opening.note_epoll_change();
        let opener = {
            let socket = Arc::clone(&socket);
            thread::spawn(move || {
                let (opening, is_watched) = &*socket;
                let attempt = |_| {
                    let seen = opening.n_epoll_changes();
                    // Here the epoll proxy is added to the sets, if there are any.
                    let has_proxy = is_watched.load(Ordering::SeqCst);
                    match opening.attempt(seen) {
                        OpenAttempt::Open => Some(has_proxy),
                        _ => {
                            opening.give_up();
                            None
                        }
                    }
                };
                (0..2).find_map(attempt)
            })
        };
        opening.note_epoll_change();
        opening.begin_kernel_wait();
        // The set begins to watch. It gets the proxy of a queue that is open; one that opens later
        // adds its proxy.
        socket.1.store(true, Ordering::SeqCst);
        let adds_proxy = opening.state() == OPEN;
        opening.note_epoll_change();
        opening.end_kernel_wait();
        let opened = opener.join().expect("a thread");
        assert!(opened != Some(false) || adds_proxy, "open, and the set lacks the epoll proxy");
    });
}

#[test]
fn a_queue_that_has_ended_does_not_open_again() {
    explore(|| {
        let opening = Arc::new(Opening::new());
        let opener = {
            let opening = Arc::clone(&opening);
            thread::spawn(move || {
                if opening.attempt(0) == OpenAttempt::WouldMissWakeups {
                    opening.give_up();
                }
            })
        };
        let waiter = {
            let opening = Arc::clone(&opening);
            thread::spawn(move || {
                opening.begin_kernel_wait();
                opening.end_kernel_wait();
            })
        };
        let was_open = opening.end();
        opener.join().expect("a thread");
        waiter.join().expect("a thread");
        assert_eq!(opening.state(), ENDED, "was it open: {was_open}, and not {OPEN}");
    });
}
