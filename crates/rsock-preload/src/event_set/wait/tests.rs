//! A wait with room for fewer events than the kernel has, some of which are this library's own.

use super::*;
use crate::own_fds::OwnFds;
use crate::raw_epoll;
use rsock_verbs::Bell as _;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::AsRawFd;
use rustix::io::write;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;

const IN: u32 = libc::EPOLLIN.cast_unsigned();

/// The library's own descriptors in `set`, with a pipe beside the doorbell.
fn own_fds_with_pipe(set: RawFd) -> OwnFds {
    let own_fds = OwnFds::new(set).expect("descriptors");
    for _ in 0..100 {
        own_fds.ready.ring();
        own_fds.ready.drain();
        own_fds.add_pipe_if_busy(set);
    }
    own_fds
}

#[test]
fn a_wait_with_room_for_one_event_finds_it_behind_all_of_this_librarys_own() {
    const OF_PROGRAM: u64 = 77;
    let fd = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set");
    let own_fds = own_fds_with_pipe(fd.as_raw_fd());
    let (member, peer) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("sockets");
    own_fds.watch_socket(member.as_raw_fd(), 5).expect("watched");
    let mut state = State { fd: fd.as_raw_fd(), ..State::default() };
    let own_fds = state.own_fds.insert(Arc::new(own_fds));
    let mut room = [epoll_event { events: 0, u64: 0 }; OwnEvent::COUNT];
    // Those of the doorbell's rings so far, and of a socket that can be written to.
    own_fds.take_socket_events(drop);
    raw_epoll::take(fd.as_raw_fd(), &mut room).expect("the set");
    assert_eq!(raw_epoll::take(fd.as_raw_fd(), &mut room).expect("the set"), 0);

    // First the pipe: a wait that finds the doorbell's event empties the pipe as well.
    let pipe = own_fds.ready.bell().pipe().expect("a doorbell that has rung so often has one");
    write(pipe, &[1]).expect("its pipe");
    own_fds.ready.ring();
    write(&peer, &[1]).expect("a socket");
    let event = eventfd(1, EventfdFlags::CLOEXEC).expect("a counter");
    raw_epoll::add(fd.as_raw_fd(), event.as_raw_fd(), IN, OF_PROGRAM).expect("watched");

    let set = EventSet::new(0);
    let n = state.take_from_kernel(&set, &mut room[..1], 0);
    assert_eq!((n, { room[0].u64 }), (1, OF_PROGRAM));
}
