//! Adoption of UDP sockets: when it is due, and the threads and epoll sets that it waits for.

use super::adopt::FIRST_CALLS;
use super::kernel_waiters::POLLERS;
use super::*;
use crate::fdtable::word::{ADOPTING, Word};
use rsock_core::accelerate::FallbackReason;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Runs the test `name` again, in a process where UDP sockets may have queues.
fn with_queues(name: &str, test: impl FnOnce()) {
    if kernel_udp::is_enabled() {
        return test();
    }
    let name = format!("fdtable::datagrams::tests::{name}");
    let mut child = Command::new(std::env::current_exe().expect("a test has an executable"));
    child.args(["--exact", &name]).env("RSOCK_DGRAM", "on").env_remove("RSOCK_DEVICE");
    let out = child.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
}

/// A socket that the table knows as a candidate.
fn candidate() -> (UdpSocket, c_int) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let fd = socket.as_raw_fd();
    note_made(fd);
    assert!(is_candidate(fd));
    (socket, fd)
}

/// As many calls as a busy thread makes.
fn use_often(fd: c_int) {
    for _ in 0..4 * FIRST_CALLS {
        drop(begin_call(fd, Direction::Recv));
    }
}

/// Removes the entry before the number is closed and given to another test's socket.
fn close(socket: UdpSocket) {
    super::super::note_closing(socket.as_raw_fd(), || false);
    drop(socket);
}

#[test]
fn no_socket_is_adopted_while_a_thread_polls() {
    with_queues("no_socket_is_adopted_while_a_thread_polls", || {
        let (socket, fd) = candidate();
        assert!(begin_kernel_poll([fd].into_iter()));
        use_often(fd);
        assert!(is_candidate(fd));
        end_kernel_poll(true);
        use_often(fd);
        assert!(!is_candidate(fd));
        assert!(!begin_kernel_poll([fd].into_iter()));
        close(socket);
    });
}

/// An adoption that has not seen the count ends before the thread loads the table.
#[test]
fn a_poll_waits_for_an_adoption_under_way() {
    with_queues("a_poll_waits_for_an_adoption_under_way", || {
        let (socket, fd) = candidate();
        let entry = entry(fd).expect("in the table");
        let claim = Word(UDP).with_kind(ADOPTING);
        entry.store(claim.0, Ordering::Release);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while POLLERS.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                for _ in 0..1000 {
                    thread::yield_now();
                }
                is_over.store(true, Ordering::SeqCst);
                entry.store(UDP, Ordering::Release);
            });
            assert!(begin_kernel_poll([fd].into_iter()));
            assert!(is_over.load(Ordering::SeqCst));
        });
        end_kernel_poll(true);
        close(socket);
    });
}

#[test]
fn no_socket_is_adopted_while_a_thread_receives_from_the_kernel() {
    with_queues("no_socket_is_adopted_while_a_thread_receives_from_the_kernel", || {
        let (socket, fd) = candidate();
        let received = receive(
            fd,
            || None,
            || {
                use_often(fd);
                is_candidate(fd)
            },
        );
        assert!(received);
        use_often(fd);
        assert!(!is_candidate(fd));
        close(socket);
    });
}

#[test]
fn no_poll_is_counted_where_datagrams_have_no_queues() {
    if kernel_udp::is_enabled() {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let fd = socket.as_raw_fd();
    entry_or_map(fd).expect("a place").store(UDP, Ordering::Release);
    assert!(!begin_kernel_poll([fd].into_iter()));
    close(socket);
}

/// A call that a longjmp has left never ends: the queue closes with the last descriptor, not with
/// the last call.
#[test]
fn a_queue_closes_with_the_last_descriptor() {
    with_queues("a_queue_closes_with_the_last_descriptor", || {
        let (socket, fd) = candidate();
        use_often(fd);
        let inside = find(fd, Direction::Recv).expect("adopted");
        let reason = || inside.udp().expect("a UDP socket").pin_reason();
        assert_eq!(reason(), FallbackReason::None);
        close(socket);
        assert_eq!(reason(), FallbackReason::Passed);
    });
}

/// A started program inherits standard input, and must not miss datagrams in a queue.
#[test]
fn standard_input_of_a_started_program_is_pinned() {
    with_queues("standard_input_of_a_started_program_is_pinned", || {
        // SAFETY: the test has a process of its own, which does not read it.
        unsafe { rustix::io::close(0) };
        let (socket, fd) = candidate();
        assert_eq!(fd, 0);
        use_often(fd);
        crate::handoff::before_spawn().expect("nothing in the way");
        let handle = find(fd, Direction::Send).expect("adopted");
        assert_eq!(handle.udp().map(AcceleratedUdp::pin_reason), Some(FallbackReason::Passed));
        drop(handle);
        close(socket);
    });
}

/// Another thread adopts between the check of the table and the kernel's call, which would then
/// miss datagrams in the queue.
#[test]
fn a_receive_checks_again_after_an_adoption() {
    with_queues("a_receive_checks_again_after_an_adoption", || {
        let (socket, fd) = candidate();
        let mut n = 0;
        let by_hook = || {
            n += 1;
            use_often(fd);
            (n == 2).then_some("the hook's")
        };
        assert_eq!(receive(fd, by_hook, || "the kernel's"), "the hook's");
        // A call that the hook leaves to the kernel is the kernel's.
        assert_eq!(receive(fd, || None, || "the kernel's"), "the kernel's");
        close(socket);
    });
}
