//! The peer of a queue that opens, and the epoll proxy of one that is open.

use super::*;
use rsock_verbs::Bell;

#[test]
fn a_queue_that_could_not_open_before_a_connect_opens_for_the_peer_alone() {
    let (a, b, stranger) = (End::new(), End::new(), End::new());
    // A thread that waits in the kernel keeps the queue from opening.
    let wait = b.udp.begin_kernel_wait().expect("not open");
    for _ in 0..8 {
        a.socket.send_to(b"before", b.addr()).expect("sent");
        b.recv(RecvFlags::empty()).expect("received");
    }
    assert_eq!(b.udp.state(), NOT_OPEN);
    drop(wait);
    b.socket.connect(a.addr()).expect("connected");
    b.udp.note_connected(b.socket.as_fd());
    while b.udp.state() == NOT_OPEN {
        a.socket.send_to(b"after", b.addr()).expect("sent");
        b.recv(RecvFlags::empty()).expect("received");
    }
    assert_eq!(b.udp.open_peer.get(), Some(&Some(a.addr())));
    for _ in 0..100 {
        // The kernel may report that it refused one of these.
        let to = b.addr();
        if !stranger.udp.send(stranger.socket.as_fd(), &[IoSlice::new(b"lie")], Some(to)) {
            let _ = stranger.socket.send_to(b"lie", to);
        }
        assert!(b.recv(RecvFlags::DONTWAIT).is_err());
    }
}

#[test]
fn a_late_ring_shows_in_an_epoll_set_twice_at_most() {
    let (a, b) = accelerated_pair();
    let proxy = b.udp.epoll_proxy().expect("a descriptor").expect("a queue");
    let shows = || {
        // SAFETY: the socket keeps it open.
        let proxy = unsafe { BorrowedFd::borrow_raw(proxy) };
        let mut fds = [PollFd::new(&proxy, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
    };
    assert!(a.send(b"one", b.addr()));
    assert_eq!(b.recv(RecvFlags::DONTWAIT).expect("received").1, b"one");
    assert!(b.recv(RecvFlags::DONTWAIT).is_err());
    // The sender rings only now.
    b.udp.epoll_proxy.lock().expect("a proxy").as_ref().expect("a bell").ring();
    assert!(shows());
    let n = (0..10).take_while(|_| shows() && b.recv(RecvFlags::DONTWAIT).is_err()).count();
    assert!(n <= 2 && !shows(), "{n} times");
    assert!(a.send(b"two", b.addr()));
    assert!(shows());
    assert_eq!(b.recv(RecvFlags::DONTWAIT).expect("received").1, b"two");
}
