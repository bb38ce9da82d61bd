//! What a forked child and its parent find of connections at the listener that they share. A fork
//! concerns a whole process, so this test has one of its own.

use rsock_core::rsocket::{self, Family, PollEntry, Socket, Source, WaitSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::slice;

fn is_readable(set: &WaitSet) -> bool {
    let fd = set.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
}

/// Whether a process that accepts finds nothing, and sleeps then.
fn sleeps(listener: &Socket) -> bool {
    let none = listener.accept().is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
    none && listener.wait_set().is_ok_and(|set| !is_readable(&set))
}

/// Whether `question` holds in a child.
fn holds_in_child(question: impl FnOnce() -> bool) -> bool {
    // SAFETY: the other threads of this process only wait; the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let holds = question();
        // SAFETY: always allowed.
        unsafe { libc::_exit(i32::from(!holds)) };
    }
    let mut status = 0;
    // SAFETY: `status` is an integer to write to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(child > 0 && waited == child && libc::WIFEXITED(status), "{status}");
    libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_process_sleeps_while_connections_await_another_one() {
    let listener = Socket::new(Family::V4).expect("a socket");
    listener.bind("127.0.0.1:0".parse().expect("an address")).expect("bind");
    listener.listen(8).expect("listen");
    listener.set_nonblocking(true);
    let client = Socket::new(Family::V4).expect("a socket");
    client.connect(listener.local_addr().expect("a name"), None).expect("connect");
    // This takes the connection in.
    let source = Source::Socket(&listener);
    let mut entry = PollEntry { source, events: PollFlags::IN, revents: PollFlags::empty() };
    rsocket::poll(slice::from_mut(&mut entry), None, None).expect("poll");
    assert!(is_readable(&listener.wait_set().expect("a set")), "a connection awaits");

    assert!(holds_in_child(|| sleeps(&listener)), "the connection is the parent's");
    assert!(holds_in_child(|| {
        listener.close();
        true
    }));
    listener.accept().expect("the connection");
    assert!(sleeps(&listener), "what a child does is its own");
}
