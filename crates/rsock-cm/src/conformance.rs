//! One test suite for the connection managers of all devices: what the sockets above rely on.
//!
//! A device's tests implement [`Fixture`] and call
//! [`cm_conformance_tests!`](crate::cm_conformance_tests). Queue pairs are mere numbers here: no
//! test makes one. Time is an argument, so no test waits for a clock.

#![expect(clippy::missing_panics_doc, reason = "a test that fails panics")]

use crate::manager::{
    Connected, Connecting, Event, Listening, Manager, Progress, Request, RequestId, Status,
};
use crate::{Error, Port, PrivateData};
use rsock_verbs::QpNum;

pub use rsock_verbs::conformance::Watchdog;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What a device under test provides.
pub trait Fixture {
    /// Its connection manager.
    type Manager: Manager;
    /// The manager, ready for use.
    fn manager(&self) -> Self::Manager;
    /// Addresses of this host that the device reaches, of both families.
    fn addresses(&self) -> Vec<IpAddr>;
    /// A port that no other program takes, and no other test.
    fn free_port(&self) -> u16;
}

/// Runs the whole suite on a fixture: one test function for each of its tests.
#[macro_export]
macro_rules! cm_conformance_tests {
    ($fixture:expr) => {
        $crate::cm_conformance_tests! { @each $fixture;
            a_connection_carries_addresses_queue_pairs_and_padded_private_data
            a_rejected_client_gets_the_listeners_private_data
            private_data_that_does_not_fit_is_refused_and_may_be_sent_again_shorter
            a_connect_without_a_listener_is_refused
            a_dropped_listener_refuses_waiting_clients
            a_client_that_gives_up_is_abandoned
            a_connect_gives_up_at_its_deadline
            the_peer_sees_the_end_of_a_connection
            a_wildcard_listener_serves_every_address
            an_ipv6_wildcard_serves_ipv4_unless_it_is_v6_only
            a_port_is_not_given_twice
            many_clients_connect_at_once
            connections_come_and_go_and_leave_no_descriptor
        }
    };
    (@each $fixture:expr; $($name:ident)*) => {
        $($crate::cm_conformance_tests! { @one $fixture; $name })*
    };
    (@one $fixture:expr; $name:ident) => {
        #[test]
        fn $name() {
            $crate::conformance::$name(&$fixture);
        }
    };
}

/// A timeout that is longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// A number that no queue pair has had lately: a connection manager remembers those of connections
/// that have ended.
fn fresh() -> QpNum {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    QpNum(((std::process::id() & 0x7ff) << 12 | n & 0xfff) + 1)
}

fn port(at: SocketAddr) -> Arc<Port> {
    let port = Port::open(at.is_ipv6()).expect("socket");
    port.bind(at).expect("bind");
    Arc::new(port)
}

fn listen<F: Fixture>(f: &F, at: IpAddr) -> <F::Manager as Manager>::Listener {
    f.manager().listen(port((at, 0).into()), 128).expect("listen")
}

/// The result of `take` for an address that was just released. A process that another test starts
/// has its descriptors, too, until it runs a program or ends, so `take` is repeated until the
/// address is free or the watchdog ends the test.
pub(crate) fn once_free<T>(take: impl Fn() -> io::Result<T>) -> T {
    loop {
        match take() {
            Ok(taken) => return taken,
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::AddrInUse, "{e}"),
        }
        thread::yield_now();
    }
}

fn try_connect<F: Fixture>(
    f: &F,
    to: SocketAddr,
) -> Result<<F::Manager as Manager>::Connecting, Error> {
    let port = Arc::new(Port::open(to.is_ipv6()).expect("socket"));
    let now = Instant::now();
    f.manager().connect(port, to, now, now + HOUR)
}

fn connect<F: Fixture>(f: &F, to: SocketAddr) -> <F::Manager as Manager>::Connecting {
    try_connect(f, to).expect("connect")
}

fn errno(e: Error) -> Option<i32> {
    io::Error::from(e).raw_os_error()
}

/// An event of either end.
pub(crate) enum Either<M: Manager> {
    Client(Result<Progress<M>, Error>),
    Server(Event<M>),
}

/// Lets both ends run until one of them has an event.
pub(crate) fn drive<M: Manager>(
    listener: &mut M::Listener,
    client: &mut M::Connecting,
) -> Either<M> {
    loop {
        let now = Instant::now();
        if let Some(event) = listener.try_next(now).expect("listener") {
            return Either::Server(event);
        }
        match client.progress(now) {
            Ok(Progress::Pending) => {}
            other => return Either::Client(other),
        }
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(client.as_fd(), client.interest()),
        ];
        let _ = poll(&mut fds, None);
    }
}

/// Waits for an event of the client.
fn wait<M: Manager>(client: &mut M::Connecting) -> Result<Progress<M>, Error> {
    loop {
        match client.progress(Instant::now()) {
            Ok(Progress::Pending) => {}
            other => return other,
        }
        let _ = poll(&mut [PollFd::from_borrowed_fd(client.as_fd(), client.interest())], None);
    }
}

/// Both ends of a connection, and the request that made it.
struct Made<M: Manager> {
    client_qp: QpNum,
    server: M::Connection,
    client: M::Connection,
    request: Request<M>,
}

/// Runs a whole handshake; the server answers with `b"yes"`.
fn establish<M: Manager>(listener: &mut M::Listener, client: M::Connecting) -> Made<M> {
    let mut waiting = client;
    let (mut request, mut client) = (None, None);
    let (client_qp, server_qp) = (fresh(), fresh());
    let accept = |listener: &mut M::Listener, r: Request<M>| {
        listener.accept(r.id, server_qp, b"yes").expect("accept");
        r
    };
    while client.is_none() {
        match drive::<M>(listener, &mut waiting) {
            Either::Client(Ok(Progress::Path(..))) => {
                waiting.send_request(client_qp, b"please").expect("request");
            }
            Either::Client(Ok(Progress::Accepted(answer))) => {
                assert_eq!(answer.qp_num, server_qp);
                assert_eq!(&answer.private_data.as_bytes()[..4], b"yes\0");
                assert_eq!(answer.private_data.as_bytes().len(), PrivateData::REPLY);
                client = Some(waiting.establish().expect("ready"));
            }
            Either::Server(Event::Request(r)) => request = Some(accept(listener, r)),
            Either::Client(other) => panic!("{other:?}"),
            Either::Server(other) => panic!("{other:?}"),
        }
    }
    loop {
        match listener.try_next(Instant::now()).expect("listener") {
            Some(Event::Established { connection, id }) => {
                let request = request.expect("request");
                assert_eq!(request.id, id);
                let client = client.expect("client");
                return Made { client_qp, server: connection, client, request };
            }
            Some(other) => panic!("{other:?}"),
            None => {
                let _ = poll(&mut [PollFd::new(&*listener, PollFlags::IN)], None);
            }
        }
    }
}

/// The first status of the connection that is not `Connected`.
fn ending<M: Manager>(connection: &M::Connection) -> Status {
    loop {
        let status = connection.status();
        if status != Status::Connected {
            return status;
        }
        let interest = connection.interest();
        let _ = poll(&mut [PollFd::from_borrowed_fd(connection.as_fd(), interest)], None);
    }
}

/// All data of a handshake arrives as it was sent, padded with zeroes.
pub fn a_connection_carries_addresses_queue_pairs_and_padded_private_data<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("handshake");
    for at in f.addresses() {
        let mut listener = listen(f, at);
        assert_eq!(listener.local_addr().ip(), at);
        let connecting = connect(f, listener.local_addr());
        let made = establish::<F::Manager>(&mut listener, connecting);
        let Made { client_qp, server, client, request } = made;
        assert_eq!(request.qp_num, client_qp);
        assert_eq!(&request.private_data.as_bytes()[..7], b"please\0");
        assert_eq!(request.private_data.as_bytes().len(), PrivateData::REQUEST);
        assert_eq!(request.local_addr, listener.local_addr());
        assert_eq!(request.peer_addr, client.local_addr());
        assert_eq!(server.local_addr(), listener.local_addr());
        assert_eq!(server.peer_addr(), client.local_addr());
        assert_eq!(server.local_addr(), client.peer_addr());
        assert_eq!(client.local_addr().ip(), at);
        assert_eq!((server.status(), client.status()), (Status::Connected, Status::Connected));
        assert_eq!(listener.n_pending(), 0);
    }
}

/// A rejection carries private data, too, and is sent once.
pub fn a_rejected_client_gets_the_listeners_private_data<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("rejection");
    let mut listener = listen(f, f.addresses()[0]);
    let mut client = connect(f, listener.local_addr());
    loop {
        match drive::<F::Manager>(&mut listener, &mut client) {
            Either::Client(Ok(Progress::Path(..))) => {
                client.send_request(fresh(), &[]).expect("request");
            }
            Either::Server(Event::Request(r)) => {
                let long = [1; PrivateData::REJECT + 1];
                let refused = listener.reject(r.id, &long).expect_err("too long");
                assert_eq!(errno(refused), Some(libc::EINVAL));
                listener.reject(r.id, b"no").expect("reject");
                let again = listener.reject(r.id, b"no").expect_err("gone");
                assert_eq!(errno(again), Some(libc::EINVAL));
            }
            Either::Client(Ok(Progress::Rejected(data))) => {
                assert_eq!(&data.as_bytes()[..3], b"no\0");
                assert_eq!(data.as_bytes().len(), PrivateData::REJECT);
                assert_eq!(listener.n_pending(), 0);
                return;
            }
            Either::Client(other) => panic!("{other:?}"),
            Either::Server(other) => panic!("{other:?}"),
        }
    }
}

/// A request that is too long is not sent; one that fits may follow, once.
pub fn private_data_that_does_not_fit_is_refused_and_may_be_sent_again_shorter<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("private data");
    let mut listener = listen(f, f.addresses()[0]);
    let mut client = connect(f, listener.local_addr());
    let early = client.establish().expect_err("not accepted");
    assert_eq!(errno(early), Some(libc::EINVAL));
    let Either::Client(Ok(Progress::Path(..))) = drive::<F::Manager>(&mut listener, &mut client)
    else {
        panic!("path first");
    };
    let long = [1; PrivateData::REQUEST + 1];
    let refused = client.send_request(fresh(), &long).expect_err("too long");
    assert_eq!(errno(refused), Some(libc::EINVAL));
    client.send_request(fresh(), &long[1..]).expect("fits");
    let again = client.send_request(fresh(), &[]).expect_err("sent already");
    assert_eq!(errno(again), Some(libc::EINVAL));
    let Either::Server(Event::Request(request)) = drive::<F::Manager>(&mut listener, &mut client)
    else {
        panic!("the request");
    };
    assert_eq!(request.private_data.as_bytes(), &long[1..]);
    let long = [1; PrivateData::REPLY + 1];
    let refused = listener.accept(request.id, QpNum(1), &long).expect_err("too long");
    assert_eq!(errno(refused), Some(libc::EINVAL));
    let unknown = listener.accept(RequestId(u64::MAX), QpNum(1), &[]).expect_err("no request");
    assert_eq!(errno(unknown), Some(libc::EINVAL));
}

/// Runs a connect to its failure.
fn failure<F: Fixture>(f: &F, to: SocketAddr) -> io::Error {
    let mut client = match try_connect(f, to) {
        Ok(client) => client,
        Err(e) => return e.into(),
    };
    loop {
        match wait::<F::Manager>(&mut client) {
            Ok(Progress::Path(..)) => client.send_request(fresh(), &[]).expect("request"),
            Ok(Progress::Rejected(_)) => return Error::Refused.into(),
            Ok(other) => panic!("{other:?}"),
            Err(e) => return e.into(),
        }
    }
}

/// A free port, one that kernel TCP listens on, and port 0.
pub fn a_connect_without_a_listener_is_refused<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("no listener");
    for at in f.addresses() {
        let free = port((at, 0).into()).local_addr().expect("name");
        let tcp = std::net::TcpListener::bind((at, 0)).expect("tcp");
        for to in [free, tcp.local_addr().expect("name"), (at, 0).into()] {
            assert_eq!(failure(f, to).kind(), io::ErrorKind::ConnectionRefused, "{to}");
        }
    }
}

/// Before and after the listener has received the request.
pub fn a_dropped_listener_refuses_waiting_clients<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("listener gone");
    for is_seen in [false, true] {
        let mut listener = listen(f, f.addresses()[0]);
        let mut client = connect(f, listener.local_addr());
        let Either::Client(Ok(Progress::Path(..))) =
            drive::<F::Manager>(&mut listener, &mut client)
        else {
            panic!("path first");
        };
        client.send_request(fresh(), &[]).expect("request");
        if is_seen {
            let Either::Server(Event::Request(_)) = drive::<F::Manager>(&mut listener, &mut client)
            else {
                panic!("the request");
            };
        }
        drop(listener);
        match wait::<F::Manager>(&mut client) {
            Ok(Progress::Rejected(_)) | Err(Error::Refused) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The listener learns that a client which has asked is gone, at the latest when it accepts.
pub fn a_client_that_gives_up_is_abandoned<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("client gone");
    for is_accepted in [false, true] {
        let mut listener = listen(f, f.addresses()[0]);
        let mut client = connect(f, listener.local_addr());
        let request = loop {
            match drive::<F::Manager>(&mut listener, &mut client) {
                Either::Client(Ok(Progress::Path(..))) => {
                    client.send_request(fresh(), &[]).expect("request");
                }
                Either::Server(Event::Request(request)) => break request,
                Either::Client(other) => panic!("{other:?}"),
                Either::Server(other) => panic!("{other:?}"),
            }
        };
        if is_accepted {
            listener.accept(request.id, fresh(), &[]).expect("accept");
        }
        drop(client);
        // A device may report it only with the next call.
        if !is_accepted && listener.accept(request.id, fresh(), &[]).is_err() {
            let _ = listener.reject(request.id, &[]);
            assert_eq!(listener.n_pending(), 0);
            continue;
        }
        loop {
            match listener.try_next(Instant::now()).expect("listener") {
                Some(Event::Abandoned { id, .. }) => break assert_eq!(id, request.id),
                Some(other) => panic!("{other:?}"),
                None => {
                    let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], None);
                }
            }
        }
        assert_eq!(listener.n_pending(), 0);
    }
}

/// At each stage of the handshake.
pub fn a_connect_gives_up_at_its_deadline<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("deadline");
    let mut listener = listen(f, f.addresses()[0]);
    let mut client = connect(f, listener.local_addr());
    let Either::Client(Ok(Progress::Path(..))) = drive::<F::Manager>(&mut listener, &mut client)
    else {
        panic!("path first");
    };
    client.send_request(fresh(), &[]).expect("request");
    let deadline = client.next_timeout();
    let soon = deadline - Duration::from_secs(1);
    assert!(matches!(client.progress(soon), Ok(Progress::Pending)));
    let late = client.progress(deadline).expect_err("too late");
    assert_eq!(errno(late), Some(libc::ETIMEDOUT));
}

/// Whichever end closes it, and whether in good order or not.
pub fn the_peer_sees_the_end_of_a_connection<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("end");
    let mut listener = listen(f, f.addresses()[0]);
    for way in 0..6 {
        let connecting = connect(f, listener.local_addr());
        let Made { server, client, .. } = establish::<F::Manager>(&mut listener, connecting);
        let (ends, sees) = if way % 2 == 0 { (server, client) } else { (client, server) };
        match way / 2 {
            0 => {
                ends.disconnect();
                ends.disconnect();
                assert_eq!(ending::<F::Manager>(&sees), Status::Disconnected);
                // An ended connection stays ended.
                drop(ends);
                assert_eq!(ending::<F::Manager>(&sees), Status::Disconnected);
            }
            1 => {
                ends.reset();
                assert_ne!(ending::<F::Manager>(&sees), Status::Connected);
            }
            _ => {
                drop(ends);
                assert_ne!(ending::<F::Manager>(&sees), Status::Connected);
            }
        }
    }
}

/// Connections to a wildcard listener have the address that the client connected to.
pub fn a_wildcard_listener_serves_every_address<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("wildcard");
    for at in f.addresses() {
        let any: IpAddr = match at {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut listener = listen(f, any);
        let to = SocketAddr::from((at, listener.local_addr().port()));
        let connecting = connect(f, to);
        let made = establish::<F::Manager>(&mut listener, connecting);
        assert_eq!((made.server.local_addr(), made.client.peer_addr()), (to, to));
    }
}

/// As on TCP.
pub fn an_ipv6_wildcard_serves_ipv4_unless_it_is_v6_only<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("IPv6 wildcard");
    let v4 = f.addresses().into_iter().find(IpAddr::is_ipv4).expect("an IPv4 address");
    for v6_only in [false, true] {
        let port = Port::open(true).expect("socket");
        port.set_v6_only(v6_only).expect("option");
        port.bind((Ipv6Addr::UNSPECIFIED, 0).into()).expect("bind");
        let mut listener = f.manager().listen(Arc::new(port), 8).expect("listen");
        let to = SocketAddr::from((v4, listener.local_addr().port()));
        if v6_only {
            assert_eq!(failure(f, to).kind(), io::ErrorKind::ConnectionRefused);
        } else {
            let connecting = connect(f, to);
            let made = establish::<F::Manager>(&mut listener, connecting);
            assert_eq!((made.server.local_addr(), made.request.local_addr), (to, to));
        }
    }
}

/// Neither the kernel nor the device gives it twice, and it is free once the listener is gone.
pub fn a_port_is_not_given_twice<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("port");
    let held = SocketAddr::new(f.addresses()[0], f.free_port());
    let bind = || -> io::Result<_> {
        let port = Port::open(held.is_ipv6())?;
        port.bind(held)?;
        Ok(Arc::new(port))
    };
    // The search for a free port has just released this one.
    let listener = f.manager().listen(once_free(bind), 128).expect("listen");
    let taken = std::net::TcpListener::bind(held).expect_err("held");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(listener);
    once_free(|| Ok(f.manager().listen(bind()?, 8)?));
}

/// Each of them is established with its own peer.
pub fn many_clients_connect_at_once<F: Fixture>(f: &F) {
    const CLIENTS: usize = 40;
    let _dog = Watchdog::new("many clients");
    let mut listener = listen(f, f.addresses()[0]);
    let mut waiting: Vec<_> =
        (0..CLIENTS).map(|_| Some((fresh(), connect(f, listener.local_addr())))).collect();
    let (mut clients, mut servers) = (HashMap::new(), HashMap::new());
    let mut asked = HashMap::new();
    while clients.len() < CLIENTS || servers.len() < CLIENTS {
        while let Some(event) = listener.try_next(Instant::now()).expect("listener") {
            match event {
                Event::Request(r) => {
                    asked.insert(r.id, r.qp_num);
                    let echo = r.qp_num.0.to_le_bytes();
                    listener.accept(r.id, fresh(), &echo).expect("accept");
                }
                Event::Established { id, connection } => {
                    servers.insert(asked[&id], connection);
                }
                other => panic!("{other:?}"),
            }
        }
        for place in &mut waiting {
            let Some((number, client)) = place else { continue };
            match client.progress(Instant::now()).expect("client") {
                Progress::Pending => {}
                Progress::Path(..) => client.send_request(*number, &[]).expect("request"),
                Progress::Accepted(answer) => {
                    assert_eq!(answer.private_data.as_bytes()[..4], number.0.to_le_bytes());
                    clients.insert(*number, client.establish().expect("ready"));
                    *place = None;
                }
                other @ Progress::Rejected(_) => panic!("{other:?}"),
            }
        }
        let mut fds = vec![PollFd::new(&listener, PollFlags::IN)];
        let open = waiting.iter().flatten();
        fds.extend(open.map(|(_, c)| PollFd::from_borrowed_fd(c.as_fd(), c.interest())));
        // A client may make progress by a timeout alone.
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut fds, Some(&pause));
    }
    for (number, client) in &clients {
        assert_eq!(servers[number].peer_addr(), client.local_addr());
    }
}

/// One after the other.
pub fn connections_come_and_go_and_leave_no_descriptor<F: Fixture>(f: &F) {
    let _dog = Watchdog::new("descriptors");
    let mut listener = listen(f, f.addresses()[0]);
    // Descriptors of other tests come and go, too; these are recognized by their targets.
    let mut numbers = Vec::new();
    for _ in 0..30 {
        let connecting = connect(f, listener.local_addr());
        let Made { server, client, .. } = establish::<F::Manager>(&mut listener, connecting);
        use std::os::fd::AsRawFd;
        numbers.push(server.as_fd().as_raw_fd().max(client.as_fd().as_raw_fd()));
        client.disconnect();
        assert_eq!(ending::<F::Manager>(&server), Status::Disconnected);
    }
    // With a leak each number would be larger than the one before.
    assert!(numbers.windows(2).any(|pair| pair[1] <= pair[0]), "{numbers:?}");
}
