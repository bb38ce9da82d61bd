//! Addresses, listening, connecting, and what can go wrong with them.

use crate::rsocket::tests::*;
use rsock_cm::manager::{Connecting as _, Listening as _};
use rsock_cm::soft::{
    SoftConnecting as Connecting, SoftEvent as Event, SoftListener as Listener,
    SoftProgress as Progress,
};
use rsock_cm::{Port, PortSpace};
use rsock_verbs::QpNum;
use rsock_verbs::soft::SoftContext;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[test]
fn both_ends_know_both_addresses() {
    let _watchdog = watchdog();
    for (listen, connect) in
        [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")]
    {
        let listener = listening(listen);
        let port = listener.local_addr().expect("name").port();
        let to = addr(&format!("{connect}:{port}"));
        let client = Socket::new(Family::of(&to)).expect("socket");
        client.connect(to, None).expect("connect");
        let server = listener.accept().expect("accept");
        assert_eq!(client.peer_addr().expect("peer"), to);
        let plain = |a: io::Result<SocketAddr>| rsock_cm::canonical(a.expect("address"));
        assert_eq!(plain(server.peer_addr()), plain(client.local_addr()));
        assert_eq!(plain(server.local_addr()), to);
        // An IPv6 socket shows IPv4 addresses mapped.
        assert_eq!(server.peer_addr().expect("peer").is_ipv6(), listen.starts_with('['));
    }
}

#[test]
fn a_socket_that_is_not_connected_says_so() {
    let socket = Socket::new(Family::V4).expect("socket");
    assert_eq!(errno(send(&socket, b"x")), libc::ENOTCONN);
    assert_eq!(errno(recv(&socket, 1)), libc::ENOTCONN);
    assert_eq!(errno(socket.shutdown(Shutdown::Both)), libc::ENOTCONN);
    assert_eq!(errno(socket.peer_addr()), libc::ENOTCONN);
    assert_eq!(errno(socket.accept()), libc::EINVAL);
    assert!(socket.local_addr().expect("name").ip().is_unspecified());
    assert!(socket.take_error().is_none());
}

#[test]
fn a_refused_socket_can_try_again() {
    let _watchdog = watchdog();
    let at = SocketAddr::from(([127, 0, 0, 1], rsock_test_ports::reserved()));
    let listener = listening(&at.to_string());
    listener.close();
    drop(listener);
    let client = Socket::new(Family::V4).expect("socket");
    assert_eq!(errno(client.connect(at, None)), libc::ECONNREFUSED);
    assert!(client.take_error().is_none(), "told already");
    let listener = listening(&at.to_string());
    client.connect(at, None).expect("connect");
    assert_eq!(errno(client.connect(at, None)), libc::EISCONN);
    assert_eq!(errno(client.listen(1)), libc::EINVAL);
    assert_eq!(errno(client.bind(at)), libc::EINVAL);
    listener.accept().expect("accept");
}

#[test]
fn wrong_addresses_have_the_errno_of_the_kernel() {
    let bound = listening("127.0.0.1:0");
    let at = bound.local_addr().expect("name");
    let socket = Socket::new(Family::V4).expect("socket");
    assert_eq!(errno(socket.bind(at)), libc::EADDRINUSE);
    assert_eq!(errno(socket.bind(addr("192.0.2.1:0"))), libc::EADDRNOTAVAIL);
    assert_eq!(errno(socket.connect(addr("[::1]:1"), None)), libc::EAFNOSUPPORT);
    let remote = errno(socket.connect(addr("192.0.2.1:1"), None));
    assert!([libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&remote), "{remote}");
}

#[test]
fn a_connect_without_an_answer_times_out() {
    let _watchdog = watchdog();
    let listener = silent_listener();
    let client = Socket::new(Family::V4).expect("socket");
    let short = Some(Duration::from_millis(30));
    assert_eq!(errno(client.connect(listener.local_addr(), short)), libc::ETIMEDOUT);
    // The same in the background: the error waits to be asked for.
    client.set_nonblocking(true);
    assert_eq!(errno(client.connect(listener.local_addr(), short)), libc::EINPROGRESS);
    assert_eq!(errno(client.connect(listener.local_addr(), short)), libc::EALREADY);
    assert_eq!(errno(send(&client, b"x")), libc::EAGAIN);
    let events = poll_one(&client, PollFlags::OUT, None);
    assert!(events.contains(PollFlags::ERR | PollFlags::OUT), "{events:?}");
    let error = client.take_error().and_then(|e| e.raw_os_error());
    assert_eq!(error, Some(libc::ETIMEDOUT));
    assert!(client.take_error().is_none(), "told once");
}

/// A listener of the connection manager that answers only where the test makes it.
fn silent_listener() -> Listener {
    let ctx = SoftContext::open().expect("device");
    let port = Arc::new(Port::open(false).expect("port"));
    port.bind(addr("127.0.0.1:0")).expect("bind");
    Listener::listen(&ctx, PortSpace::Tcp, port, 1).expect("listen")
}

#[test]
fn closing_a_socket_ends_its_connect_in_another_thread() {
    let _watchdog = watchdog();
    let listener = silent_listener();
    let client = Socket::new(Family::V4).expect("socket");
    std::thread::scope(|threads| {
        let connects = threads.spawn(|| client.connect(listener.local_addr(), None));
        while !client.is_connecting() {
            std::thread::yield_now();
        }
        client.close();
        assert_eq!(errno(connects.join().expect("thread")), libc::EBADF);
    });
}

fn nonblocking() -> Socket {
    let socket = Socket::new(Family::V4).expect("socket");
    socket.set_nonblocking(true);
    socket
}

#[test]
fn a_connect_in_the_background_ends_writable() {
    let _watchdog = watchdog();
    let listener = listening("127.0.0.1:0");
    let client = nonblocking();
    match client.connect(listener.local_addr().expect("name"), None) {
        Ok(()) => {}
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EINPROGRESS)),
    }
    let server = std::thread::scope(|s| {
        let accepting = s.spawn(|| listener.accept().expect("accept"));
        assert_eq!(poll_one(&client, PollFlags::OUT, None), PollFlags::OUT);
        accepting.join().expect("thread")
    });
    assert!(client.take_error().is_none());
    assert_eq!(send(&client, b"x").expect("send"), 1);
    assert_eq!(recv(&server, 9).expect("recv"), b"x");
}

#[test]
fn a_task_can_wait_for_its_connect_while_other_threads_close_their_listeners() {
    let _watchdog = watchdog();
    let listener = listening("127.0.0.1:0");
    let client = nonblocking();
    let started = client.connect(listener.local_addr().expect("name"), None);
    assert_eq!(errno(started), libc::EINPROGRESS);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut open: VecDeque<_> = (0..8).map(|_| listening("127.0.0.1:0")).collect();
            while !is_over.load(Ordering::Relaxed) {
                open.pop_front();
                open.push_back(listening("127.0.0.1:0"));
            }
        });
        let sets: io::Result<Vec<_>> = (0..3000).map(|_| client.wait_set().map(drop)).collect();
        is_over.store(true, Ordering::Relaxed);
        sets.expect("each set has what was open when it was made");
    });
}

#[test]
fn accepting_without_waiting_is_eagain_and_with_a_limit_too() {
    let _watchdog = watchdog();
    let listener = listening("127.0.0.1:0");
    listener.set_nonblocking(true);
    assert_eq!(errno(listener.accept()), libc::EAGAIN);
    listener.set_nonblocking(false);
    let limit = [0i64.to_ne_bytes(), 20_000i64.to_ne_bytes()].concat();
    listener.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit).expect("option");
    assert_eq!(errno(listener.accept()), libc::EAGAIN);
}

#[test]
fn an_accepted_socket_inherits_options_and_mode() {
    let _watchdog = watchdog();
    let listener = listening("127.0.0.1:0");
    set(&listener, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    set(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 40_000);
    listener.set_nonblocking(true);
    let client = Socket::new(Family::V4).expect("socket");
    client.connect(listener.local_addr().expect("name"), None).expect("connect");
    poll_one(&listener, PollFlags::IN, None);
    let server = listener.accept().expect("accept");
    assert!(server.is_nonblocking());
    let int = |level, name| server.option(level, name).expect("option");
    assert_eq!(int(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1i32.to_ne_bytes());
    assert_eq!(int(libc::SOL_SOCKET, libc::SO_RCVBUF), 80_000i32.to_ne_bytes());
}

#[test]
fn shutting_a_listener_down_ends_a_waiting_accept() {
    let _watchdog = watchdog();
    let listener = listening("127.0.0.1:0");
    let at = listener.local_addr().expect("name");
    std::thread::scope(|s| {
        let waiting = s.spawn(|| errno(listener.accept()));
        listener.shutdown(Shutdown::Read).expect("shutdown");
        assert_eq!(waiting.join().expect("thread"), libc::EINVAL);
    });
    let client = Socket::new(Family::V4).expect("socket");
    assert_eq!(errno(client.connect(at, None)), libc::ECONNREFUSED);
}

#[test]
fn many_threads_accept_and_connect_at_once() {
    let _watchdog = watchdog();
    const EACH: usize = 8;
    let listener = listening("127.0.0.1:0");
    let at = listener.local_addr().expect("name");
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..EACH {
                    let server = listener.accept().expect("accept");
                    let word = recv_with(&server, 4, RecvFlags::WAITALL).expect("recv");
                    send(&server, &word).expect("send");
                }
            });
            s.spawn(|| {
                for i in 0..EACH {
                    let client = Socket::new(Family::V4).expect("socket");
                    client.connect(at, None).expect("connect");
                    let word = u32::try_from(i).expect("small").to_ne_bytes();
                    send(&client, &word).expect("send");
                    let back = recv_with(&client, 4, RecvFlags::WAITALL).expect("recv");
                    assert_eq!(back, word);
                }
            });
        }
    });
}

/// Version 9 of the connection data, from either side.
#[test]
fn a_peer_of_another_protocol_version_is_turned_away() {
    let _watchdog = watchdog();
    let ctx = SoftContext::open().expect("device");
    let mut data = [0; 40];
    data[0] = 9;

    // A client that speaks it is rejected.
    let listener = listening("127.0.0.1:0");
    let to = listener.local_addr().expect("name");
    let now = Instant::now();
    let port = Arc::new(Port::open(false).expect("port"));
    let deadline = now + Duration::from_secs(3600);
    let mut client =
        Connecting::start(&ctx, PortSpace::Tcp, port, to, now, deadline).expect("connect");
    loop {
        poll_one(&listener, PollFlags::IN, Some(Duration::ZERO));
        match client.progress(now).expect("progress") {
            Progress::Path(..) => client.send_request(QpNum(1), &data).expect("request"),
            Progress::Rejected(_) => break,
            Progress::Accepted(_) => panic!("accepted"),
            Progress::Pending => {}
        }
    }

    // A server that speaks it is not connected to.
    let port = Arc::new(Port::open(false).expect("port"));
    let mut listener = Listener::listen(&ctx, PortSpace::Tcp, port, 4).expect("listen");
    let to = addr(&format!("127.0.0.1:{}", listener.local_addr().port()));
    let client = nonblocking();
    assert_eq!(errno(client.connect(to, None)), libc::EINPROGRESS);
    while poll_one(&client, PollFlags::OUT, Some(Duration::ZERO)).is_empty() {
        if let Some(Event::Request(r)) = listener.try_next(now).expect("listener") {
            listener.accept(r.id, QpNum(1), &data).expect("accept");
        }
    }
    assert_eq!(client.take_error().and_then(|e| e.raw_os_error()), Some(libc::ENOTSUP));
}

/// Connection data of every shape: the listener turns it away or makes a stream that fails, and
/// serves the next honest client.
#[test]
fn garbage_as_connection_data_leaves_other_connections_alone() {
    let _watchdog = watchdog();
    let ctx = SoftContext::open().expect("device");
    let listener = listening("127.0.0.1:0");
    let to = listener.local_addr().expect("name");
    let mut state = 0x1234_5678_9ABC_DEF0u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[3]
    };
    let mut rejected = 0;
    for round in 0..60 {
        let mut data = [0u8; 40];
        data.fill_with(&mut random);
        // Most of them get past the version.
        data[0] = if round % 4 == 0 { data[0] } else { 1 };
        // Some have small numbers: a table of one entry, a buffer of no bytes.
        if round % 3 == 0 {
            data[16..].iter_mut().for_each(|b| *b &= 1);
        }
        let now = Instant::now();
        let port = Arc::new(Port::open(false).expect("port"));
        let deadline = now + Duration::from_secs(3600);
        let mut client =
            Connecting::start(&ctx, PortSpace::Tcp, port, to, now, deadline).expect("connect");
        let accepted = loop {
            poll_one(&listener, PollFlags::IN, Some(Duration::ZERO));
            match client.progress(now).expect("progress") {
                Progress::Path(..) => client.send_request(QpNum(1), &data).expect("request"),
                Progress::Rejected(_) => break false,
                Progress::Accepted(_) => break true,
                Progress::Pending => {}
            }
        };
        if accepted {
            let _connection = client.establish().expect("established");
            let server = listener.accept().expect("accept");
            server.set_nonblocking(true);
            // Whatever these answer, they answer.
            let _ = (send(&server, &[1; 5000]), recv(&server, 10), send(&server, b"x"));
        } else {
            rejected += 1;
        }
    }
    assert!(rejected > 0, "some of it must be recognised");
    let client = Socket::new(Family::V4).expect("socket");
    client.connect(to, None).expect("connect");
    let server = listener.accept().expect("accept");
    send(&client, b"fine").expect("send");
    assert_eq!(recv(&server, 9).expect("recv"), b"fine");
}
