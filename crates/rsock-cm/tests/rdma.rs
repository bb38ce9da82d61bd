//! The connection manager's suite on a real device. `cargo xtask test` runs this in the lab.

use rsock_cm::conformance::{Fixture, Watchdog};
use rsock_cm::manager::{Connected, Connecting, Listening, Manager, Status};
use rsock_cm::rdma::{RdmaConnection, RdmaEvent, RdmaListener, RdmaManager, RdmaProgress};
use rsock_cm::{Error, Port, knows_neighbour};
use rsock_verbs::rdma::{Rdma, RdmaContext, RdmaPath};
use rsock_verbs::{
    Access, Backend, Completion, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QpCap,
    QpNum, QueuePair, RecvWr, SendFlags, SendOp, Sge, WcOp, WcStatus, WrId,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The lab's device, over the lab's addresses.
struct Lab;

impl Fixture for Lab {
    type Manager = RdmaManager;

    fn manager(&self) -> RdmaManager {
        RdmaManager
    }

    fn addresses(&self) -> Vec<IpAddr> {
        ["10.9.0.1", "fd09::1"].map(|ip| ip.parse().expect("address")).into()
    }

    fn free_port(&self) -> u16 {
        rsock_test_ports::reserved()
    }
}

rsock_cm::cm_conformance_tests!(Lab);

/// No route at all, or a route to an address that no host has.
#[test]
fn an_address_that_no_device_reaches_is_unreachable() {
    let _dog = Watchdog::new("unreachable");
    let now = Instant::now();
    let port = Arc::new(Port::open(false).expect("socket"));
    let to = "192.0.2.1:7".parse().expect("address");
    let error = RdmaManager.connect(port, to, now, now + Duration::from_secs(60));
    assert!(matches!(error, Err(Error::Unreachable(_))), "{error:?}");
}

/// A queue pair with what it needs, in the order in which it must go.
struct End {
    qp: <Rdma as Backend>::Qp,
    mr: <Rdma as Backend>::Mr,
    cq: Arc<<Rdma as Backend>::Cq>,
    path: RdmaPath,
}

impl End {
    fn new(ctx: &RdmaContext, path: &RdmaPath) -> Self {
        let pd = ctx.alloc_pd(path).expect("pd");
        let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE).expect("mr");
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            has_recv_ids: true,
            max_inline: 64,
        };
        let (cq, qp) = pd.create_qp(ctx, cap).expect("qp");
        qp.init(Access::REMOTE_WRITE).expect("init");
        Self { qp, mr, cq, path: path.clone() }
    }

    fn connect(&self, dest: QpNum) {
        self.qp.ready_to_receive(&self.path, dest).expect("rtr");
        self.qp.ready_to_send().expect("rts");
    }

    fn post_recv(&self) {
        let sges = [Sge { addr: self.mr.addr().0, len: 64, lkey: self.mr.lkey() }];
        // SAFETY: the region outlives the queue pair: fields are dropped in order.
        unsafe { self.qp.post_recv(&RecvWr { id: WrId(1), sges: &sges }) }.expect("receive");
    }

    fn send(&self, bytes: &[u8]) {
        let pieces = [IoSlice::new(bytes)];
        self.qp.post_copy(WrId(2), SendOp::Send, &pieces, SendFlags::SIGNALED).expect("send");
    }

    fn next(&self) -> (WcOp, WcStatus) {
        let nothing = Completion { status: WcStatus::GENERAL, ..Completion::BLANK };
        let mut out = [nothing];
        while self.cq.poll(&mut out) == 0 {
            self.cq.park(None);
        }
        (out[0].op, out[0].status)
    }
}

fn listen(at: &str) -> RdmaListener {
    let at: SocketAddr = at.parse().expect("address");
    let port = Port::open(at.is_ipv6()).expect("socket");
    port.bind(at).expect("bind");
    RdmaManager.listen(Arc::new(port), 16).expect("listen")
}

/// Connects two queue pairs over `listener`: the client's end, then the server's.
fn pair(listener: &mut RdmaListener) -> [(End, RdmaConnection); 2] {
    let to = listener.local_addr();
    let port = Arc::new(Port::open(to.is_ipv6()).expect("socket"));
    let now = Instant::now();
    let mut connecting =
        RdmaManager.connect(port, to, now, now + Duration::from_secs(3600)).expect("connect");
    let (mut client, mut server) = (None, None);
    let (mut client_end, mut server_end) = (None, None);
    loop {
        match connecting.progress(Instant::now()).expect("client") {
            RdmaProgress::Pending => {}
            RdmaProgress::Path(ctx, path) => {
                let end = End::new(&ctx, &path);
                connecting.send_request(end.qp.qp_num(), b"hello").expect("request");
                client = Some(end);
            }
            RdmaProgress::Accepted(answer) => {
                client.as_ref().expect("queue pair").connect(answer.qp_num);
                client_end = Some(connecting.establish().expect("ready"));
            }
            other @ RdmaProgress::Rejected(_) => panic!("{other:?}"),
        }
        match listener.try_next(Instant::now()).expect("listener") {
            None => {}
            Some(RdmaEvent::Request(request)) => {
                let end = End::new(&request.ctx, &request.path);
                end.connect(request.qp_num);
                listener.accept(request.id, end.qp.qp_num(), b"hi").expect("accept");
                server = Some(end);
            }
            Some(RdmaEvent::Established { connection, .. }) => server_end = Some(connection),
            Some(other) => panic!("{other:?}"),
        }
        if matches!((&client_end, &server_end), (Some(_), Some(_))) {
            break;
        }
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(connecting.as_fd(), connecting.interest()),
        ];
        let _ = poll(&mut fds, None);
    }
    let client = (client.expect("end"), client_end.expect("connection"));
    [client, (server.expect("end"), server_end.expect("connection"))]
}

fn ending(connection: &RdmaConnection) -> Status {
    while connection.status() == Status::Connected {
        let _ = poll(&mut [PollFd::new(connection, connection.interest())], None);
    }
    connection.status()
}

/// The numbers that the kernel negotiated fit, many times over, though those of earlier connections
/// linger; a message that finds no receive waits for one, and not for long.
#[test]
fn queue_pairs_of_a_connection_exchange_messages() {
    let _dog = Watchdog::new("messages");
    for at in ["10.9.0.1:0", "[fd09::1]:0"] {
        let mut listener = listen(at);
        for round in 0..40u8 {
            let [(a, client), (b, server)] = pair(&mut listener);
            for (from, to) in [(&a, &b), (&b, &a)] {
                let message = [round; 40];
                from.send(&message);
                to.post_recv();
                assert_eq!(to.next(), (WcOp::Recv, WcStatus::SUCCESS));
                assert_eq!(from.next(), (WcOp::Send, WcStatus::SUCCESS));
                let mut seen = [0; 40];
                to.mr.copy_out(0, &mut seen);
                assert_eq!(seen, message);
            }
            client.disconnect();
            assert_eq!(ending(&server), Status::Disconnected);
            assert_eq!(ending(&client), Status::Disconnected);
        }
    }
}

/// Connects with the queue pair number that `number` gives for each path that is offered, to a peer
/// that accepts whatever comes. Returns how many were used, and the connection's two ends.
fn connect_as(
    listener: &mut RdmaListener,
    mut number: impl FnMut(usize) -> QpNum,
) -> (usize, Option<[RdmaConnection; 2]>) {
    let to = listener.local_addr();
    let port = Arc::new(Port::open(to.is_ipv6()).expect("socket"));
    let now = Instant::now();
    let mut connecting =
        RdmaManager.connect(port, to, now, now + Duration::from_secs(3600)).expect("connect");
    let (mut n, mut client, mut server) = (0, None, None);
    loop {
        match connecting.progress(Instant::now()) {
            Ok(RdmaProgress::Pending) => {}
            Ok(RdmaProgress::Path(..)) => {
                connecting.send_request(number(n), b"hello").expect("request");
                n += 1;
            }
            Ok(RdmaProgress::Accepted(_)) => client = Some(connecting.establish().expect("ready")),
            Err(Error::Refused) => return (n, None),
            other => panic!("{other:?}"),
        }
        match listener.try_next(Instant::now()).expect("listener") {
            None => {}
            Some(RdmaEvent::Request(request)) => {
                // In this host each end has numbers of its own.
                let answer = QpNum(request.qp_num.0 ^ 0x8_0000);
                listener.accept(request.id, answer, b"hi").expect("accept");
            }
            Some(RdmaEvent::Established { connection, .. }) => server = Some(connection),
            Some(other) => panic!("{other:?}"),
        }
        if client.is_some() && server.is_some() {
            return (n, client.zip(server).map(<[RdmaConnection; 2]>::from));
        }
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(connecting.as_fd(), connecting.interest()),
        ];
        let _ = poll(&mut fds, None);
    }
}

/// The peer's kernel refuses a queue pair that it has listed as connected: another one is accepted,
/// and if none is, the connect is refused.
#[test]
fn a_number_that_the_peer_still_knows_is_exchanged_for_another() {
    let _dog = Watchdog::new("stale numbers");
    let mut listener = listen("10.9.0.1:0");
    // Connections that live: a number that only lingers is forgotten some day.
    let known: Vec<QpNum> =
        (0..=TRIES).map(|n| QpNum(0x70_0000 + u32::try_from(n).expect("few"))).collect();
    let connections: Vec<_> = known
        .iter()
        .map(|known| match connect_as(&mut listener, |_| *known) {
            (1, Some(connection)) => connection,
            (n, _) => panic!("{n} requests"),
        })
        .collect();
    let number = |n| if n == 0 { known[TRIES] } else { QpNum(0x71_0000) };
    let (n, other) = connect_as(&mut listener, number);
    assert_eq!((n, other.is_some()), (2, true));
    let (n, none) = connect_as(&mut listener, |n| known[n]);
    assert_eq!((n, none.is_some()), (TRIES, false));
    drop(connections);
}

/// Queue pairs that a connect tries.
const TRIES: usize = 17;

fn run(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("program"));
    command.args(words);
    command
}

#[test]
fn a_neighbour_is_known_once_it_has_an_address() {
    let id = std::process::id();
    let (dev, net) = (format!("near{id}"), format!("10.9.{}", 20 + id % 200));
    let ip = |line: &str| {
        assert!(run(&format!("ip {line}")).status().expect("ip").success(), "{line}");
    };
    ip(&format!("link add {dev} type dummy"));
    ip(&format!("link set {dev} arp on up"));
    ip(&format!("addr add {net}.1/24 dev {dev}"));
    let knows = |last: &str| knows_neighbour(format!("{net}.{last}").parse().expect("an IP"));
    assert!(knows("1"), "the local address");
    assert!(!knows("77"), "no packet was sent there");
    for (state, is_known) in [("permanent", true), ("failed", false), ("stale", true)] {
        ip(&format!("neigh replace {net}.77 lladdr 52:54:00:12:34:56 dev {dev} nud {state}"));
        assert_eq!(knows("77"), is_known, "{state}");
    }
    assert!(!knows("78"));
    ip(&format!("link set {dev} arp off"));
    assert!(knows("78"), "no address resolution there");
    ip(&format!("link del {dev}"));
}

/// On a device of its own, so that other tests are not affected. Soft RoCE is removed completely
/// only when the process is gone, because librdmacm keeps it open; its event comes before.
#[test]
fn the_end_of_the_device_ends_its_connections_and_listeners() {
    let dog = Watchdog::new("device removal");
    let id = std::process::id();
    let ip = format!("10.9.{}.1", 20 + id % 200);
    for line in [
        format!("ip link add gone{id} type dummy"),
        format!("ip link set gone{id} up"),
        format!("ip addr add {ip}/24 dev gone{id}"),
        format!("rdma link add rxe_gone{id} type rxe netdev gone{id}"),
    ] {
        assert!(run(&line).status().expect("run").success(), "{line}");
    }
    let mut listener = listen(&format!("{ip}:0"));
    let [(a, client), (b, server)] = pair(&mut listener);
    let mut removal = run(&format!("rdma link del rxe_gone{id}"));
    drop((dog, removal.spawn().expect("run")));
    let dog = Watchdog::new("connections of a removed device");
    let ends = [ending(&client), ending(&server)];
    // The end of the first one may reach the other before the event of the device.
    assert!(ends.contains(&Status::Gone), "{ends:?}");
    drop(dog);
    let _dog = Watchdog::new("a listener of a removed device");
    let error = loop {
        match listener.try_next(Instant::now()) {
            Ok(None) => drop(poll(&mut [PollFd::new(&listener, PollFlags::IN)], None)),
            Ok(other) => panic!("{other:?}"),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::Device(rsock_verbs::Error::NoDevice)), "{error}");
    drop((a, b, client, server, listener));
}

/// However small the backlog is, this many requests are accepted; further ones the device refuses
/// at once.
#[test]
fn a_full_backlog_refuses_and_has_room_again() {
    const MOST: u32 = 16;
    let _dog = Watchdog::new("full backlog");
    let at: SocketAddr = "10.9.0.1:0".parse().expect("address");
    let port = Port::open(false).expect("socket");
    port.bind(at).expect("bind");
    let mut listener = RdmaManager.listen(Arc::new(port), 1).expect("listen");
    let to = listener.local_addr();
    // A number that neither this device nor the conformance suite used recently.
    let number = |n| QpNum(0x80_0000 | (std::process::id() & 0x7ff) << 12 | n);
    let ask = |n: u32| {
        let port = Arc::new(Port::open(false).expect("socket"));
        let now = Instant::now();
        let mut client =
            RdmaManager.connect(port, to, now, now + Duration::from_secs(3600)).expect("connect");
        loop {
            match client.progress(Instant::now()).expect("client") {
                RdmaProgress::Pending => {
                    let entry = PollFd::from_borrowed_fd(client.as_fd(), client.interest());
                    let _ = poll(&mut [entry], None);
                }
                RdmaProgress::Path(..) => {
                    client.send_request(number(n), &[]).expect("request");
                    return client;
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let next = |listener: &mut RdmaListener| loop {
        if let Some(event) = listener.try_next(Instant::now()).expect("listener") {
            return event;
        }
        let _ = poll(&mut [PollFd::new(&*listener, PollFlags::IN)], None);
    };
    let mut clients = Vec::new();
    let mut requests = Vec::new();
    for n in 0..MOST {
        clients.push(ask(n));
        let RdmaEvent::Request(request) = next(&mut listener) else { panic!("no request") };
        requests.push(request.id);
    }
    assert_eq!(listener.n_pending(), requests.len());
    let mut late = ask(100);
    assert!(matches!(next(&mut listener), RdmaEvent::Refused(_)));
    let answer = loop {
        match late.progress(Instant::now()) {
            Ok(RdmaProgress::Pending) => {
                let entry = PollFd::from_borrowed_fd(late.as_fd(), late.interest());
                let _ = poll(&mut [entry], None);
            }
            other => break other,
        }
    };
    assert!(matches!(answer, Ok(RdmaProgress::Rejected(_)) | Err(Error::Refused)), "{answer:?}");
    listener.reject(requests[0], &[]).expect("reject");
    let _again = ask(101);
    assert!(matches!(next(&mut listener), RdmaEvent::Request(_)), "there is room");
}
