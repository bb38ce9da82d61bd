//! Listeners and connectors in one process, well-behaved and hostile; tests that need several
//! processes are in the sibling `processes` module. Time is an argument everywhere, so no test
//! waits for a clock, except where a timer descriptor is what is tested.

mod hostile;
mod processes;

use super::wire::Kind;
use super::*;
use crate::conformance::{self, Fixture, Watchdog, once_free};
use crate::manager::{Connected, Connecting, Listening};
use crate::{Error, Port, PortSpace, PrivateData};
use rsock_verbs::QpNum;
use rsock_verbs::soft::SoftContext;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Error as IoError, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This host, over shared memory.
struct ThisHost;

impl Fixture for ThisHost {
    type Manager = SoftManager;

    fn manager(&self) -> SoftManager {
        SoftManager::new(ctx())
    }

    fn addresses(&self) -> Vec<std::net::IpAddr> {
        vec![std::net::Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into()]
    }

    fn free_port(&self) -> u16 {
        rsock_test_ports::reserved()
    }
}

mod suite {
    crate::cm_conformance_tests!(super::ThisHost);
}

fn watchdog() -> Watchdog {
    Watchdog::new("a test")
}

fn ctx() -> SoftContext {
    SoftContext::open().expect("soft device")
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("address")
}

fn port(at: &str) -> Arc<Port> {
    let port = Port::open(at.starts_with('[')).expect("socket");
    port.bind(addr(at)).expect("bind");
    Arc::new(port)
}

fn listen(at: &str, backlog: u32) -> SoftListener {
    SoftListener::listen(&ctx(), PortSpace::Tcp, port(at), backlog).expect("listen")
}

fn try_connect(to: SocketAddr) -> Result<SoftConnecting, Error> {
    let port = Arc::new(Port::open(to.is_ipv6()).expect("socket"));
    let now = Instant::now();
    SoftConnecting::start(&ctx(), PortSpace::Tcp, port, to, now, now + Duration::from_secs(3600))
}

fn connect(to: SocketAddr) -> SoftConnecting {
    try_connect(to).expect("connect")
}

fn errno(e: Error) -> Option<i32> {
    IoError::from(e).raw_os_error()
}

type Either = conformance::Either<SoftManager>;

fn drive(listener: &mut SoftListener, client: &mut SoftConnecting) -> Either {
    conformance::drive::<SoftManager>(listener, client)
}

/// Runs a whole handshake; the server answers with `b"yes"`.
fn establish(
    listener: &mut SoftListener,
    client: SoftConnecting,
) -> (SoftConnection, SoftConnection, SoftRequest) {
    let mut client = Some(client);
    let (mut request, mut client_end) = (None, None);
    loop {
        if let Some(waiting) = &mut client {
            match drive(listener, waiting) {
                Either::Client(Ok(SoftProgress::Path(..))) => {
                    waiting.send_request(QpNum(0x11), b"please").expect("request");
                }
                Either::Client(Ok(SoftProgress::Accepted(answer))) => {
                    assert_eq!(answer.qp_num, QpNum(0x22));
                    assert_eq!(&answer.private_data.as_bytes()[..4], b"yes\0");
                    assert_eq!(answer.private_data.as_bytes().len(), PrivateData::REPLY);
                    client_end = Some(waiting.establish().expect("ready"));
                    client = None;
                }
                Either::Server(SoftEvent::Request(r)) => {
                    listener.accept(r.id, QpNum(0x22), b"yes").expect("accept");
                    request = Some(r);
                }
                Either::Client(other) => panic!("{other:?}"),
                Either::Server(other) => panic!("{other:?}"),
            }
        } else {
            match listener.try_next(Instant::now()).expect("listener") {
                Some(SoftEvent::Established { connection, id }) => {
                    let request = request.expect("request");
                    assert_eq!(request.id, id);
                    return (connection, client_end.expect("client end"), request);
                }
                Some(other) => panic!("{other:?}"),
                None => {
                    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], None);
                }
            }
        }
    }
}

#[test]
fn a_second_connection_between_two_processes_uses_the_same_link() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    let first = connect(listener.local_addr());
    let (first_server, first_client, _) = establish(&mut listener, first);
    let second = connect(listener.local_addr());
    let (second_server, second_client, _) = establish(&mut listener, second);
    assert!(Arc::ptr_eq(first_server.path(), second_server.path()));
    assert!(Arc::ptr_eq(first_client.path(), second_client.path()));
}

#[test]
fn an_address_of_another_host_is_unreachable_even_if_a_wildcard_listener_has_the_port() {
    let _watchdog = watchdog();
    let listener = listen("0.0.0.0:0", 4);
    let mut remote = addr("192.0.2.1:0");
    remote.set_port(listener.local_addr().port());
    assert!(matches!(try_connect(remote), Err(Error::Unreachable(_))));
}

#[test]
fn a_dropped_listener_refuses_waiting_clients() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    let unseen = connect(listener.local_addr());
    let mut seen = connect(listener.local_addr());
    let Either::Client(Ok(SoftProgress::Path(..))) = drive(&mut listener, &mut seen) else {
        panic!("path first");
    };
    drop(listener);
    for mut client in [unseen, seen] {
        let result = match client.progress(Instant::now()) {
            Ok(SoftProgress::Pending) => client.progress(Instant::now()).map(|_| ()),
            Ok(SoftProgress::Path(..)) => client.send_request(QpNum(1), &[]),
            other => other.map(|_| ()),
        };
        let result = result.and_then(|()| client.send_request(QpNum(1), &[]));
        assert_eq!(errno(result.expect_err("refused")), Some(libc::ECONNREFUSED));
    }
}

#[test]
fn a_listener_that_never_answers_times_the_client_out() {
    let _watchdog = watchdog();
    let listener = listen("127.0.0.1:0", 4);
    let mut client = connect(listener.local_addr());
    let deadline = client.next_timeout();
    let before = deadline - Duration::from_nanos(1);
    assert!(matches!(client.progress(before), Ok(SoftProgress::Pending)));
    let late = client.progress(deadline).expect_err("too late");
    assert_eq!(errno(late), Some(libc::ETIMEDOUT));
}

#[test]
fn clients_beyond_the_backlog_wait_and_get_their_turn() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 1);
    let first = connect(listener.local_addr());
    let mut second = connect(listener.local_addr());
    let before = Instant::now();
    assert!(matches!(second.progress(before), Ok(SoftProgress::Pending)));
    assert_eq!(second.interest(), PollFlags::empty(), "only time helps");
    assert!(second.next_timeout() < before + Duration::from_secs(3600));
    let _ = establish(&mut listener, first);
    let later = second.next_timeout();
    assert!(matches!(second.progress(later), Ok(SoftProgress::Pending)));
    assert_eq!(second.interest(), PollFlags::IN, "the listener has taken it");
    let _ = establish(&mut listener, second);
}

#[test]
fn a_full_backlog_times_out_too() {
    let _watchdog = watchdog();
    let listener = listen("127.0.0.1:0", 1);
    let first = connect(listener.local_addr());
    let mut second = connect(listener.local_addr());
    let deadline = Instant::now() + Duration::from_secs(4000);
    assert!(matches!(second.progress(deadline), Err(Error::TimedOut)));
    drop(first);
}

#[test]
fn wildcard_listeners_serve_the_addresses_that_they_cover() {
    let _watchdog = watchdog();
    let reach = |at: &str, v6_only: bool, to: &str| {
        let port = Port::open(at.starts_with('[')).expect("socket");
        if v6_only {
            port.set_v6_only(true).expect("option");
        }
        port.bind(addr(at)).expect("bind");
        let mut listener =
            SoftListener::listen(&ctx(), PortSpace::Tcp, Arc::new(port), 4).expect("listen");
        let mut to = addr(to);
        to.set_port(listener.local_addr().port());
        match try_connect(to) {
            Ok(client) => {
                let (server_end, _, _) = establish(&mut listener, client);
                // The address that the client connected to, not the wildcard.
                assert_eq!(server_end.local_addr(), crate::addr::destination(to));
                true
            }
            Err(Error::Refused) => false,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(reach("0.0.0.0:0", false, "127.0.0.1:1"));
    assert!(reach("0.0.0.0:0", false, "127.9.8.7:1"));
    assert!(reach("0.0.0.0:0", false, "0.0.0.0:1"));
    assert!(reach("0.0.0.0:0", false, "[::ffff:127.0.0.1]:1"));
    assert!(!reach("0.0.0.0:0", false, "[::1]:1"));
    assert!(!reach("127.0.0.1:0", false, "127.0.0.2:1"));
    assert!(reach("[::]:0", false, "[::1]:1"));
    assert!(reach("[::]:0", false, "127.0.0.1:1"));
    assert!(reach("[::]:0", true, "[::1]:1"));
    assert!(!reach("[::]:0", true, "127.0.0.1:1"));
    assert!(reach("[::ffff:127.0.0.1]:0", false, "127.0.0.1:1"));
}

#[test]
fn the_specific_listener_is_found_before_the_wildcard() {
    let _watchdog = watchdog();
    let reusable = |at: SocketAddr| {
        let port = Port::open(false).expect("socket");
        port.set_reuse_address(true).expect("option");
        port.bind(at).expect("bind");
        Arc::new(port)
    };
    let wildcard = reusable(addr("0.0.0.0:0"));
    let mut at = wildcard.local_addr().expect("name");
    at.set_ip(addr("127.0.0.1:0").ip());
    let specific = reusable(at);
    let mut wildcard = SoftListener::listen(&ctx(), PortSpace::Tcp, wildcard, 4).expect("listen");
    let mut specific = SoftListener::listen(&ctx(), PortSpace::Tcp, specific, 4).expect("listen");
    let _ = establish(&mut specific, connect(at));
    at.set_ip(addr("127.0.0.2:0").ip());
    let _ = establish(&mut wildcard, connect(at));
}

#[test]
fn two_listeners_do_not_share_an_address() {
    let _watchdog = watchdog();
    let reusable = |at: SocketAddr| {
        let port = Port::open(false).expect("socket");
        port.set_reuse_address(true).expect("option");
        port.bind(at).expect("bind");
        Arc::new(port)
    };
    let first = reusable(addr("127.0.0.1:0"));
    let second = reusable(first.local_addr().expect("name"));
    let listening = SoftListener::listen(&ctx(), PortSpace::Tcp, first, 4).expect("listen");
    let taken = SoftListener::listen(&ctx(), PortSpace::Tcp, Arc::clone(&second), 4);
    assert_eq!(errno(taken.expect_err("taken")), Some(libc::EADDRINUSE));
    drop(listening);
    once_free(|| Ok(SoftListener::listen(&ctx(), PortSpace::Tcp, Arc::clone(&second), 4)?));
}

#[test]
fn an_unbound_listener_and_an_unbound_connector_get_ports_of_their_own() {
    let _watchdog = watchdog();
    let unbound = Arc::new(Port::open(true).expect("socket"));
    let mut listener = SoftListener::listen(&ctx(), PortSpace::Tcp, unbound, 4).expect("listen");
    let at = listener.local_addr();
    assert!(at.port() != 0 && at.ip().is_unspecified());
    let client = connect(addr(&format!("127.0.0.1:{}", at.port())));
    let own = client.local_addr();
    // Held: no other socket gets it, not even one of kernel TCP.
    let taken = std::net::TcpListener::bind(own);
    assert_eq!(taken.expect_err("held").kind(), ErrorKind::AddrInUse);
    let (server_end, client_end, _) = establish(&mut listener, client);
    assert_eq!((server_end.peer_addr(), client_end.local_addr()), (own, own));
    drop(client_end);
    once_free(|| std::net::TcpListener::bind(own));
}

#[test]
fn a_connector_bound_to_one_family_does_not_reach_the_other() {
    let _watchdog = watchdog();
    let listener = listen("[::1]:0", 4);
    let now = Instant::now();
    let to = listener.local_addr();
    let wrong = SoftConnecting::start(&ctx(), PortSpace::Tcp, port("127.0.0.1:0"), to, now, now)
        .map(|_| ());
    assert_eq!(errno(wrong.expect_err("family")), Some(libc::ENETUNREACH));
}

#[test]
fn disconnect_reset_and_exit_hang_up_and_are_distinguished() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    let hangs_up = |connection: &SoftConnection| {
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let _ = poll(&mut fds, None);
        fds[0].revents().contains(PollFlags::HUP)
    };
    let client = connect(listener.local_addr());
    let (server_end, client_end, _) = establish(&mut listener, client);
    client_end.disconnect();
    client_end.disconnect();
    assert!(hangs_up(&server_end));
    assert_eq!([server_end.status(), server_end.status()], [Status::Disconnected; 2]);

    let client = connect(listener.local_addr());
    let (server_end, client_end, _) = establish(&mut listener, client);
    server_end.reset();
    server_end.disconnect();
    assert!(hangs_up(&client_end));
    assert_eq!([client_end.status(), client_end.status()], [Status::Reset; 2]);

    let client = connect(listener.local_addr());
    let (server_end, client_end, _) = establish(&mut listener, client);
    drop(server_end);
    assert!(hangs_up(&client_end));
    assert_eq!([client_end.status(), client_end.status()], [Status::Gone; 2]);
}

#[test]
fn a_client_that_vanishes_before_its_answer_is_abandoned() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    // Once before accept, once after.
    for accept in [false, true] {
        let mut client = connect(listener.local_addr());
        let request = loop {
            match drive(&mut listener, &mut client) {
                Either::Client(Ok(SoftProgress::Path(..))) => {
                    client.send_request(QpNum(1), &[]).expect("request");
                }
                Either::Server(SoftEvent::Request(r)) => break r,
                _ => panic!("unexpected"),
            }
        };
        if accept {
            listener.accept(request.id, QpNum(2), &[]).expect("accept");
        }
        drop(client);
        let event = listener.try_next(Instant::now()).expect("listener");
        let Some(SoftEvent::Abandoned { id, error: Error::PeerGone }) = event else {
            panic!("{event:?}");
        };
        assert_eq!(id, request.id);
        assert_eq!(listener.n_pending(), 0);
    }
}
