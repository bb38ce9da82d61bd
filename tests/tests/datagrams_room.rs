//! Datagram sockets whose kernel UDP socket has no room: packets get stuck on their way out.

use rsock_core::datagram::{Datagram, MessageFlags};
use rsock_core::rsocket::{PollEntry, Source, poll};
use rsock_tests::{StuckNetwork, Watchdog};
use rustix::event::PollFlags;
use rustix::net::sockopt;
use std::future::Future;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

fn watchdog() -> Watchdog {
    Watchdog::new(Duration::from_secs(60))
}

/// A socket with little room.
fn socket(network: &StuckNetwork) -> Datagram {
    let socket = Datagram::bound((network.ip, 0).into()).expect("a socket");
    sockopt::set_socket_send_buffer_size(&socket, 1).expect("the least room");
    socket
}

/// Sends to `to` until there is no room.
fn fill(socket: &Datagram, to: SocketAddr) {
    loop {
        match socket.send_to(&[IoSlice::new(&[0; 1000])], Some(to), MessageFlags::DONT_WAIT) {
            Ok(n) => assert_eq!(n, 1000),
            Err(e) => break assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// Polls `socket` for room.
fn poll_for_room(socket: &Datagram, limit: Option<Duration>) -> PollFlags {
    let events = PollFlags::OUT | PollFlags::IN;
    let source = Source::Datagram(socket);
    let mut entries = [PollEntry { source, events, revents: PollFlags::empty() }];
    poll(&mut entries, limit, None).expect("poll");
    entries[0].revents
}

#[test]
fn poll_waits_for_room() {
    let _dog = watchdog();
    StuckNetwork::run("poll_waits_for_room", |network| {
        let socket = socket(network);
        assert_eq!(poll_for_room(&socket, Some(Duration::ZERO)), PollFlags::OUT);
        fill(&socket, network.unreached);
        for limit in [Duration::ZERO, Duration::from_millis(10)] {
            assert_eq!(poll_for_room(&socket, Some(limit)), PollFlags::empty());
        }
        thread::scope(|threads| {
            threads.spawn(|| network.let_go());
            assert_eq!(poll_for_room(&socket, None), PollFlags::OUT);
        });
        let sent = socket.try_send_to(&[0; 1000], Some(network.unreached));
        assert_eq!(sent.expect("there is room"), 1000);
    });
}

#[test]
fn a_send_waits_for_room_as_long_as_its_time_limit() {
    let _dog = watchdog();
    StuckNetwork::run("a_send_waits_for_room_as_long_as_its_time_limit", |network| {
        let socket = socket(network);
        fill(&socket, network.unreached);
        let send = || {
            let packet = [IoSlice::new(&[0; 1000])];
            socket.send_to(&packet, Some(network.unreached), MessageFlags::empty())
        };
        let limit = |limit| sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, limit);
        limit(Some(Duration::from_millis(10))).expect("a limit");
        for _ in 0..2 {
            assert_eq!(send().expect_err("no room").kind(), ErrorKind::WouldBlock);
        }
        limit(None).expect("no limit");
        thread::scope(|threads| {
            threads.spawn(|| network.let_go());
            assert_eq!(send().expect("room at last"), 1000);
        });
    });
}

#[test]
fn tasks_wait_for_room() {
    let _dog = watchdog();
    StuckNetwork::run("tasks_wait_for_room", |network| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let socket = rsock_tokio::Datagram::from_blocking(socket(network)).expect("a socket");
            socket.writable().await.expect("there is room");
            while socket.try_send_to(&[0; 1000], network.unreached).is_ok() {}
            let mut writable = pin!(socket.writable());
            for _ in 0..10 {
                let mut context = Context::from_waker(Waker::noop());
                assert!(matches!(writable.as_mut().poll(&mut context), Poll::Pending));
                tokio::task::yield_now().await;
            }
            network.let_go();
            writable.await.expect("there is room");
            let sent = socket.try_send_to(&[0; 1000], network.unreached);
            assert_eq!(sent.expect("there is room"), 1000);
        });
    });
}
