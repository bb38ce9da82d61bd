//! Datagrams between two hosts: UDP first, then RDMA, whatever becomes of the peer; of threads and
//! of tasks.

use super::*;
use rsock_core::datagram::header::{UdpHeader, UdpOp};
use rsock_core::datagram::{Datagram, MessageFlags, SocketCounters};
use rsock_tests::{datagrams, run};
use rsock_verbs::{DatagramCounters, QpNum};
use std::collections::HashSet;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use tokio::runtime::{self, Runtime};
use tokio::time::timeout;

/// A socket of a thread or of a task. An answer may be lost: no caller waits for one without limit.
trait Socket {
    fn bound(ip: IpAddr, port: u16) -> Self;
    fn send(&self, to: SocketAddr, bytes: &[u8]);
    fn recv(&self) -> Option<(Vec<u8>, SocketAddr)>;
    fn counters(&self) -> SocketCounters;
}

const ANSWER_LIMIT: Duration = Duration::from_millis(200);

impl Socket for Datagram {
    fn bound(ip: IpAddr, port: u16) -> Self {
        let socket = Self::bound(SocketAddr::new(ip, port)).expect("socket");
        socket.set_recv_timeout(Some(ANSWER_LIMIT)).expect("option");
        socket
    }

    fn send(&self, to: SocketAddr, bytes: &[u8]) {
        datagrams::send(self, to, bytes);
    }

    fn recv(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut buf = [0; 4096];
        match self.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::empty()) {
            Ok(received) => Some((buf[..received.len].to_vec(), received.from)),
            Err(e) => is_nothing(&e),
        }
    }

    fn counters(&self) -> SocketCounters {
        self.counters()
    }
}

/// A socket that a task waits for, in a runtime with one thread.
struct OfTasks {
    /// Goes first.
    socket: rsock_tokio::Datagram,
    runtime: Runtime,
}

impl Socket for OfTasks {
    fn bound(ip: IpAddr, port: u16) -> Self {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let socket = rsock_tokio::Datagram::bind((ip, port));
        let socket = runtime.block_on(socket).expect("socket");
        Self { socket, runtime }
    }

    fn send(&self, to: SocketAddr, bytes: &[u8]) {
        let sent = self.runtime.block_on(self.socket.send_to(bytes, to)).expect("sent");
        assert_eq!(sent, bytes.len());
    }

    fn recv(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut buf = [0; 4096];
        let received = async { timeout(ANSWER_LIMIT, self.socket.recv_from(&mut buf)).await };
        match self.runtime.block_on(received) {
            Ok(Ok((len, from))) => Some((buf[..len].to_vec(), from)),
            Ok(Err(e)) => is_nothing(&e),
            Err(_) => None,
        }
    }

    fn counters(&self) -> SocketCounters {
        self.socket.counters()
    }
}

fn is_nothing<T>(e: &io::Error) -> Option<T> {
    let is_nothing = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused);
    assert!(is_nothing, "{e}");
    None
}

/// Answers everything with the same, until it is told that it is over.
fn echo(at: &impl Socket) {
    loop {
        match at.recv() {
            Some((bytes, from)) => {
                at.send(from, &bytes);
                if bytes == b"over" {
                    return;
                }
            }
            None => thread::yield_now(),
        }
    }
}

/// Asks until there is an answer to this very question.
fn ask(from: &impl Socket, to: SocketAddr, question: &[u8]) {
    loop {
        from.send(to, question);
        while let Some((bytes, source)) = from.recv() {
            assert_eq!(source, to);
            if bytes == question {
                return;
            }
        }
    }
}

/// Asks until questions and answers go over the device.
fn ask_until_over_rdma(from: &impl Socket, to: SocketAddr) {
    let before = from.counters().remote;
    for i in 0u32.. {
        ask(from, to, &i.to_ne_bytes());
        let after = from.counters().remote;
        if after.n_sent > before.n_sent && after.n_received > before.n_received {
            return;
        }
    }
}

/// Packets that this guest's device has received so far. One test runs at a time.
fn received_by_device() -> u64 {
    packets_received(&env::var("LAB_DEVICE").expect("the lab names its device"))
}

/// Tells the other end that it is over.
fn end(from: &impl Socket, to: SocketAddr) {
    // Each may be lost; so may the answer, and then the peer has ended and gives no other.
    for _ in 0..20 {
        from.send(to, b"over");
        while let Some((bytes, _)) = from.recv() {
            if bytes == b"over" {
                return;
            }
        }
    }
}

/// The other host's address of the same family as `ip` is.
fn second(ip: IpAddr, v6: bool) -> IpAddr {
    let IpAddr::V4(ip) = ip else { panic!("the lab's addresses") };
    if v6 { format!("fd09::{}", ip.octets()[3]).parse().expect("address") } else { ip.into() }
}

#[test]
fn the_first_datagram_arrives_and_those_after_it_go_over_the_device() {
    first::<Datagram>("datagrams-first", 7601);
}

#[test]
fn the_first_datagram_of_tasks_arrives_and_those_after_it_go_over_the_device() {
    first::<OfTasks>("datagrams-first-tasks", 7611);
}

fn first<S: Socket>(name: &'static str, port: u16) {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin(name);
    for v6 in [false, true] {
        let (own, peer) = (second(guest.ip(), v6), second(guest.peer_ip(), v6));
        let socket = S::bound(own, port);
        let to = SocketAddr::new(peer, port);
        let before = received_by_device();
        guest.meet(&format!("bound-{v6}"));
        if guest.role == Role::A {
            let first = loop {
                if let Some(first) = socket.recv() {
                    break first;
                }
            };
            assert_eq!(first, (b"first".to_vec(), to));
            assert!(socket.counters().n_received_by_udp >= 1);
            echo(&socket);
        } else {
            socket.send(to, b"first");
            assert_eq!((socket.counters().n_by_udp, socket.counters().remote.n_sent), (1, 0));
            ask_until_over_rdma(&socket, to);
            for len in [0, 1, 48, 49, 1400, 2000] {
                ask(&socket, to, &vec![9; len]);
            }
            let few = |far: DatagramCounters| far.n_sent.min(far.n_received) < 100;
            while few(socket.counters().remote) {
                ask(&socket, to, b"once more");
            }
            end(&socket, to);
        }
        guest.meet(&format!("done-{v6}"));
        let counters = socket.counters();
        assert!(counters.remote.n_sent > 50 && counters.remote.n_received > 50, "{counters:?}");
        // It says so itself.
        assert!(received_by_device() - before >= counters.remote.n_received, "{counters:?}");
        assert_eq!((counters.local.n_sent, counters.n_bad_packets, counters.n_foreign), (0, 0, 0));
    }
}

#[test]
fn a_stream_of_datagrams_arrives_once_each_and_losses_are_what_is_missing() {
    stream::<Datagram>("datagrams-stream", 7602);
}

#[test]
fn a_stream_of_datagrams_of_tasks_arrives_once_each() {
    stream::<OfTasks>("datagrams-stream-tasks", 7612);
}

/// What arrives arrives once.
fn stream<S: Socket>(name: &'static str, port: u16) {
    const N: u32 = 5000;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin(name);
    let socket = S::bound(guest.ip(), port);
    let to = SocketAddr::new(guest.peer_ip(), port);
    guest.meet("bound");
    if guest.role == Role::A {
        let mut seen = HashSet::new();
        loop {
            let Some((bytes, from)) = socket.recv() else { continue };
            if bytes == b"over" {
                break socket.send(from, &bytes);
            }
            if let Ok(number) = <[u8; 100]>::try_from(&bytes[..]) {
                let number = u32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
                assert!(seen.insert(number), "{number} twice");
            } else {
                socket.send(from, &bytes);
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
        guest.give(&seen.len().to_string());
        guest.meet("counted");
    } else {
        ask_until_over_rdma(&socket, to);
        let before = socket.counters();
        for i in 0..N {
            let mut bytes = [0; 100];
            bytes[..4].copy_from_slice(&i.to_ne_bytes());
            socket.send(to, &bytes);
        }
        let after = socket.counters();
        let sent = after.remote.n_sent - before.remote.n_sent + after.n_by_udp - before.n_by_udp;
        assert_eq!(sent, N.into());
        end(&socket, to);
        guest.meet("counted");
        let received: u64 = guest.take().parse().expect("a number");
        println!("sent {sent}, received {received}, lost {}", sent - received);
    }
}

/// Not a test of its own: what the test below runs in a process that it kills. Echoes for ever.
#[test]
fn echo_until_killed() {
    if let Ok(at) = env::var(ECHO_AT) {
        let at: SocketAddr = at.parse().expect("an address");
        let socket = <Datagram as Socket>::bound(at.ip(), at.port());
        loop {
            echo(&socket);
        }
    }
}

/// Where [`echo_until_killed`] does.
const ECHO_AT: &str = "RSOCK_TEST_ECHO_AT";

/// The number of the queue of the socket at `to`, which it tells every sender by UDP.
fn number_of(own: IpAddr, to: SocketAddr) -> QpNum {
    let udp = UdpSocket::bind((own, 0)).expect("socket");
    udp.set_read_timeout(Some(ANSWER_LIMIT)).expect("option");
    let question = UdpHeader { op: UdpOp::Data, qp_num: QpNum(0), addr: own }.encode();
    let mut buf = [0; 100];
    loop {
        udp.send_to(question.as_bytes(), to).expect("sent");
        while let Ok((len, from)) = udp.recv_from(&mut buf) {
            assert_eq!(from, to);
            let (header, _) = UdpHeader::parse(&buf[..len], false).expect("header");
            if header.op == UdpOp::Control {
                return header.qp_num;
            }
        }
    }
}

#[test]
fn a_peer_that_is_killed_and_restarts_with_another_queue_is_reached_again() {
    restart::<Datagram>("datagrams-restart", 7603);
}

#[test]
fn a_task_reaches_a_peer_again_that_was_killed_and_restarts_with_another_queue() {
    restart::<OfTasks>("datagrams-restart-tasks", 7613);
}

/// Killed, so that no peer is notified.
fn restart<S: Socket>(name: &'static str, port: u16) {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin(name);
    if guest.role == Role::A {
        let at = SocketAddr::new(guest.ip(), port);
        for life in 0..3 {
            let mut command = Command::new(env::current_exe().expect("this program"));
            command.args(["hosts_datagrams::echo_until_killed", "--exact", "--nocapture"]);
            command.env(ECHO_AT, at.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
            let mut peer = Running::spawn(&mut command).expect("it starts");
            await_udp_socket(port, &mut peer);
            guest.meet(&format!("life-{life}"));
            guest.meet(&format!("reached-{life}"));
            peer.kill().expect("alive");
            let status = peer.wait().expect("its end");
            assert_eq!(status.signal(), Some(9), "{status}");
        }
    } else {
        // One socket throughout, which is not told that its peer restarts.
        let socket = S::bound(guest.ip(), port);
        let to = SocketAddr::new(guest.peer_ip(), port);
        let mut numbers = Vec::new();
        for life in 0..3 {
            guest.meet(&format!("life-{life}"));
            ask_until_over_rdma(&socket, to);
            let number = number_of(guest.ip(), to);
            assert_ne!(number, QpNum(0));
            assert!(!numbers.contains(&number), "{number:?} again after {numbers:?}");
            numbers.push(number);
            guest.meet(&format!("reached-{life}"));
        }
    }
    guest.meet("done");
}

#[test]
fn a_peer_whose_address_moves_to_another_device_is_reached_again() {
    move_address::<Datagram>("datagrams-move", 7604);
}

#[test]
fn a_task_reaches_a_peer_again_whose_address_moves_to_another_device() {
    move_address::<OfTasks>("datagrams-move-tasks", 7614);
}

/// The address goes from one of the peer's devices to another, whose queues may have the same
/// numbers. The other device's interface lies above the first one's, so that the first one goes on
/// having the address, too.
fn move_address<S: Socket>(name: &'static str, port: u16) {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin(name);
    let moving: IpAddr = [10, 9, 0, 77].into();
    if guest.role == Role::A {
        run("ip link add link eth0 name second0 type macvlan mode bridge");
        run("ip link set second0 up");
        run("rdma link add rxe_second type rxe netdev second0");
        run("ip addr add 10.9.0.77/24 dev eth0");
        let socket = S::bound(moving, port);
        guest.meet("bound");
        echo(&socket);
        assert_eq!(packets_received("rxe_second"), 0);
        // Both interfaces are on the same network, and either would speak for the other one.
        let arp = [("arp_ignore", "1"), ("arp_announce", "2")];
        let set = |name: &str, value: &str| {
            fs::write(format!("/proc/sys/net/ipv4/conf/all/{name}"), value).expect("its setting");
        };
        arp.iter().for_each(|(name, value)| set(name, value));
        // The socket stays as it is; what it is bound to is elsewhere.
        run("ip addr del 10.9.0.77/24 dev eth0");
        run("ip addr add 10.9.0.77/32 dev second0");
        run("ip route add 10.9.0.2/32 dev second0 src 10.9.0.77 table 77");
        run("ip rule add from 10.9.0.77 lookup 77");
        guest.meet("moved");
        // What was known before is believed for a moment more.
        while !is_over_second(&socket) {}
        guest.meet("arrived");
        for _ in 0..3 {
            assert!(is_over_second(&socket), "back at the first device, or by UDP");
        }
        guest.meet("seen");
        echo(&socket);
        drop(socket);
        run("ip rule del from 10.9.0.77 lookup 77");
        arp.iter().for_each(|(name, _)| set(name, "0"));
        run("rdma link del rxe_second");
        run("ip link del second0");
    } else {
        let socket = S::bound(guest.ip(), port);
        let to = SocketAddr::new(moving, port);
        guest.meet("bound");
        // The address's former device may still be remembered.
        let forget = || run("ip neigh flush to 10.9.0.77");
        forget();
        ask_until_over_rdma(&socket, to);
        end(&socket, to);
        guest.meet("moved");
        forget();
        for point in ["arrived", "seen"] {
            thread::scope(|s| {
                let met = s.spawn(|| guest.meet(point));
                while !met.is_finished() {
                    socket.send(to, b"where are you?");
                    socket.recv();
                }
            });
        }
        ask_until_over_rdma(&socket, to);
        end(&socket, to);
    }
    guest.meet("done");
}

/// Echoes a hundred datagrams; whether they came over the second device, but for those that ask by
/// UDP, and none over the first.
fn is_over_second(socket: &impl Socket) -> bool {
    const N: u64 = 100;
    let devices = || (received_by_device(), packets_received("rxe_second"));
    let (before, (first, second)) = (socket.counters(), devices());
    let mut n = 0;
    while n < N {
        if let Some((bytes, from)) = socket.recv() {
            socket.send(from, &bytes);
            n += 1;
        }
    }
    let (after, now) = (socket.counters(), devices());
    let came = after.remote.n_received - before.remote.n_received;
    came > N / 2 && now.0 == first && now.1 > second + N / 2
}

/// Unmodified `udpong`, whose own rsockets do not connect on such devices: guest b's client, guest
/// a's server.
#[test]
fn udpong_plays_between_hosts() {
    const PORT: u16 = 7605;
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let guest = Guest::begin("udpong");
    let port = PORT.to_string();
    let start = |args: &[&str]| {
        let mut command = Command::new("udpong");
        command.env("LD_PRELOAD", c_library()).args(["-p", port.as_str()]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::spawn(&mut command).expect("udpong starts")
    };
    for (i, mode) in [&[][..], &["-T", "b"], &["-T", "a"], &["-T", "n"]].into_iter().enumerate() {
        let server = (guest.role == Role::A).then(|| {
            let ip = guest.ip().to_string();
            let mut server = start(&[mode, &["-b", ip.as_str()]].concat());
            await_udp_socket(PORT, &mut server);
            server
        });
        let before = received_by_device();
        guest.meet(&format!("listening-{i}"));
        if guest.role == Role::B {
            let ip = guest.peer_ip().to_string();
            for size in [["-S", "64", "-C", "300"], ["-S", "1400", "-C", "100"]] {
                let out = start(&[mode, &["-s", ip.as_str()], &size[..]].concat());
                let out = out.output().expect("the client ends");
                let said = assert_worked(&format!("udpong {mode:?} {size:?}"), &out);
                assert!(said.lines().count() >= 2, "no result in\n{said}");
                println!("{said}");
            }
        }
        guest.meet(&format!("done-{i}"));
        // Nearly all of 400, of which few are answered.
        let over_device = received_by_device() - before;
        assert!(guest.role == Role::B || over_device > 300, "{over_device} packets, {mode:?}");
        drop(server);
    }
}
