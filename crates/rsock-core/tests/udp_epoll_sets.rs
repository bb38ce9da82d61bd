//! The epoll proxy of a UDP socket's queue leaves the sets that it has joined, if the queue does
//! not open after all. The function that changes the sets is one for a process, so this test has
//! one of its own.

use rsock_core::accelerate::FallbackReason;
use rsock_core::closing::Descriptor;
use rsock_core::datagram::kernel_udp::{
    AcceleratedUdp, EpollTrigger, ProxyChange, register_epoll_sets,
};
use rustix::net::RecvFlags;
use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::{AsFd, RawFd};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

#[derive(Default)]
struct Round {
    udp: Option<Arc<AcceleratedUdp>>,
    pins: Option<JoinHandle<()>>,
    n_joined: u32,
    n_left: u32,
}

static ROUND: Mutex<Option<Round>> = Mutex::new(None);

/// While the proxy joins the sets, another thread pins the socket.
fn update_sets(_: u64, _: RawFd, change: ProxyChange) -> Option<EpollTrigger> {
    let mut round = ROUND.lock().expect("no panic");
    let round = round.as_mut().expect("a round");
    match change {
        ProxyChange::Remove => round.n_left += 1,
        ProxyChange::Add => {
            round.n_joined += 1;
            let udp = Arc::clone(round.udp.as_ref().expect("a socket"));
            let pinned = Arc::clone(&udp);
            round.pins = Some(thread::spawn(move || pinned.pin(FallbackReason::Option)));
            while udp.pin_reason() == FallbackReason::None {
                thread::yield_now();
            }
            // The state of the queue changes a moment later.
            for _ in 0..50 {
                thread::yield_now();
            }
        }
    }
    Some(EpollTrigger::Level)
}

#[test]
fn the_proxy_of_a_socket_that_is_pinned_meanwhile_leaves_the_sets() {
    // SAFETY: the other threads of this process only wait.
    unsafe { std::env::set_var("RSOCK_DGRAM", "on") };
    register_epoll_sets(update_sets);
    for _ in 0..50 {
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let udp = Arc::new(AcceleratedUdp::adopt(socket.as_fd()).expect("a UDP socket"));
        udp.note_in_epoll_set();
        let udp_of_round = Some(Arc::clone(&udp));
        *ROUND.lock().expect("no panic") = Some(Round { udp: udp_of_round, ..Round::default() });
        for _ in 0..8 {
            sender.send_to(b"there", socket.local_addr().expect("address")).expect("sent");
            let descriptor = Descriptor::new(socket.as_fd(), udp.closings().count());
            let mut buf = [0; 16];
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            let received = udp.recv(descriptor, bufs, RecvFlags::empty(), |fd, bufs, flags| {
                let (n, _, from) = rustix::net::recvfrom(fd, &mut *bufs[0], flags)?;
                Ok((n, from.and_then(|from| from.try_into().ok())))
            });
            received.expect("received");
        }
        let round = ROUND.lock().expect("no panic").take().expect("a round");
        round.pins.expect("the queue would have opened").join().expect("no panic");
        assert_eq!((round.n_joined, round.n_left), (1, 1));
    }
}
