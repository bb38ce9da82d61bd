//! `rstream` and `riostream` over librdmacm's rsockets, and Rust programs as their peers, over
//! `rsock::rsockets`: in both roles, each byte compared at both ends.

use super::{IPV4, IPV6, free_port};
use rsock::rsockets::{Builder, ExposedRegion, Family, Socket, Stream, connect};
use rsock_tests::{Running, Watchdog, assert_worked, await_rdma_listener};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// What a run transfers: so many messages of that size each way in turn, so often.
#[derive(Clone, Copy, Debug)]
struct Load {
    size: usize,
    count: usize,
    iterations: usize,
}

const LOADS: [Load; 5] = [
    Load { size: 1, count: 10, iterations: 20 },
    Load { size: 63, count: 10, iterations: 20 },
    Load { size: 70_000, count: 3, iterations: 3 },
    Load { size: (1 << 20) + 1, count: 2, iterations: 1 },
    Load { size: 4 << 20, count: 1, iterations: 1 },
];

/// What both programs send before anything else, and wait for.
const SYNC: usize = 16;

fn start(program: &str, port: u16, load: Load, args: &[&str]) -> Running {
    let Load { size, count, iterations } = load;
    let mut command = Command::new(program);
    for (option, value) in [("-S", size), ("-C", count), ("-I", iterations)] {
        command.args([option, &value.to_string()]);
    }
    command.args(["-p", &port.to_string(), "-T", "v"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("the program starts")
}

/// A Rust end with a running C program at the other one.
struct Session {
    stream: Stream,
    program: Running,
    what: String,
}

impl Session {
    /// With C's client.
    fn serve(program: &str, ip: &str, load: Load, args: &[&str]) -> Self {
        let at: IpAddr = ip.parse().expect("address");
        let listener = Builder::default().iomap_slots(1).bind((at, 0)).expect("listener");
        let port = listener.local_addr().expect("its port").port();
        let client = start(program, port, load, &[args, &["-s", ip]].concat());
        let (stream, _) = listener.accept().expect("the client");
        Self { stream, program: client, what: format!("client {program} {args:?}, {load:?}, {ip}") }
    }

    /// With C's server.
    fn call(program: &str, ip: &str, load: Load, args: &[&str]) -> Self {
        let port = free_port(ip);
        let mut server = start(program, port, load, &[args, &["-b", ip]].concat());
        await_rdma_listener(port, &mut server);
        let to = SocketAddr::new(ip.parse().expect("address"), port);
        let stream = Builder::default().iomap_slots(1).connect(to).expect("connect");
        Self { stream, program: server, what: format!("server {program} {args:?}, {load:?}, {ip}") }
    }

    /// Nothing follows, and C is content.
    fn end(self) {
        let Self { mut stream, program, what } = self;
        stream.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0, "{what}: more than it should send");
        let said = assert_worked(&what, &program.output().expect("its end"));
        assert!(
            said.lines().any(|line| line.starts_with("custom")),
            "{what}: no result in\n{said}"
        );
    }
}

/// What either program sends with `-T v`: byte `k` is `k`, counted through all messages.
#[derive(Default)]
struct Counting {
    next: usize,
}

impl Counting {
    fn take(&mut self, n: usize) -> Vec<u8> {
        let from = self.next;
        self.next += n;
        (from..self.next).map(|k| k.to_le_bytes()[0]).collect()
    }
}

/// The other end of `rstream`.
struct Talk {
    session: Session,
    sent: Counting,
    received: Counting,
}

impl Talk {
    fn new(session: Session) -> Self {
        Self { session, sent: Counting::default(), received: Counting::default() }
    }

    fn send(&mut self, n: usize) {
        self.session.stream.write_all(&self.sent.take(n)).expect("sent");
    }

    fn receive(&mut self, n: usize) {
        let mut got = vec![0; n];
        self.session.stream.read_exact(&mut got).expect("received");
        let meant = self.received.take(n);
        let differs = got.iter().zip(&meant).position(|(got, meant)| got != meant);
        assert_eq!(differs, None, "{}: a byte of this message is another", self.session.what);
    }
}

fn rstream_calls(ip: &str, mode: &[&str]) {
    for load in LOADS {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let mut talk = Talk::new(Session::serve("rstream", ip, load, mode));
        talk.receive(SYNC);
        talk.send(SYNC);
        for _ in 0..load.iterations {
            (0..load.count).for_each(|_| talk.receive(load.size));
            (0..load.count).for_each(|_| talk.send(load.size));
        }
        talk.session.end();
    }
}

fn rstream_is_called(ip: &str, mode: &[&str]) {
    for load in LOADS {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let mut talk = Talk::new(Session::call("rstream", ip, load, mode));
        talk.send(SYNC);
        talk.receive(SYNC);
        for _ in 0..load.iterations {
            (0..load.count).for_each(|_| talk.send(load.size));
            (0..load.count).for_each(|_| talk.receive(load.size));
        }
        talk.session.end();
    }
}

#[test]
fn rstream_of_c_calls_rust() {
    rstream_calls(IPV4, &["-T", "b"]);
    rstream_calls(IPV4, &["-T", "n"]);
}

#[test]
fn rstream_of_c_calls_rust_over_ipv6() {
    rstream_calls(IPV6, &["-f", "ipv6", "-T", "b"]);
    rstream_calls(IPV6, &["-f", "ipv6", "-T", "n"]);
}

#[test]
fn rust_calls_rstream_of_c() {
    rstream_is_called(IPV4, &["-T", "b"]);
    rstream_is_called(IPV4, &["-T", "n"]);
}

#[test]
fn rust_calls_rstream_of_c_over_ipv6() {
    rstream_is_called(IPV6, &["-f", "ipv6", "-T", "b"]);
    rstream_is_called(IPV6, &["-f", "ipv6", "-T", "n"]);
}

/// The other end of `riostream`, whose messages are written into open memory. The last one of a
/// turn ends with a number that goes up, and the rest of it counts as `rstream`'s messages do;
/// those before it are whatever was there.
struct Puts {
    session: Session,
    open: ExposedRegion,
    load: Load,
    sent: Counting,
    received: Counting,
    marker: u8,
}

impl Puts {
    fn new(session: Session, load: Load) -> Self {
        let open = session.stream.expose(load.size, 0).expect("an entry at the peer");
        // No number of a turn here.
        open.write_at(load.size - 1, &[0xff]);
        let (sent, received) = Default::default();
        Self { session, open, load, sent, received, marker: 0 }
    }

    fn next_marker(&mut self) -> u8 {
        self.marker += 1;
        self.marker - 1
    }

    fn put(&self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let offset = u64::try_from(at).expect("small");
            at += self.session.stream.write_remote(&bytes[at..], offset).expect("put");
        }
    }

    fn put_turn(&mut self) {
        let mut stale = vec![0xee; self.load.size];
        stale[self.load.size - 1] = 0xff;
        (1..self.load.count).for_each(|_| self.put(&stale));
        let mut message = self.sent.take(self.load.size - 1);
        message.push(self.next_marker());
        self.put(&message);
    }

    fn await_turn(&mut self) {
        let last = self.load.size - 1;
        let meant = self.next_marker();
        let mut marker = [0xff];
        while marker != [meant] {
            self.open.read_at(last, &mut marker);
            thread::yield_now();
        }
        let mut got = vec![0; last];
        self.open.read_at(0, &mut got);
        let message = self.received.take(last);
        let differs = got.iter().zip(&message).position(|(got, meant)| got != meant);
        assert_eq!(differs, None, "{}: a byte of turn {meant} is another", self.session.what);
    }
}

const PUT_LOADS: [Load; 3] = [
    Load { size: 64, count: 3, iterations: 40 },
    Load { size: 70_001, count: 3, iterations: 5 },
    Load { size: 1 << 20, count: 2, iterations: 2 },
];

#[test]
fn riostream_of_c_calls_rust_and_each_writes_into_the_others_memory() {
    for load in PUT_LOADS {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let session = Session::serve("riostream", IPV4, load, &["-T", "b"]);
        let mut puts = Puts::new(session, load);
        puts.session.stream.read_exact(&mut [0; SYNC]).expect("the start");
        puts.session.stream.write_all(&[0; SYNC]).expect("the answer");
        for _ in 0..load.iterations {
            puts.await_turn();
            puts.put_turn();
        }
        puts.session.end();
    }
}

#[test]
fn rust_calls_riostream_of_c_and_each_writes_into_the_others_memory() {
    for load in PUT_LOADS {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let session = Session::call("riostream", IPV4, load, &["-T", "b"]);
        let mut puts = Puts::new(session, load);
        puts.session.stream.write_all(&[0; SYNC]).expect("the start");
        puts.session.stream.read_exact(&mut [0; SYNC]).expect("the answer");
        for _ in 0..load.iterations {
            puts.put_turn();
            puts.await_turn();
        }
        puts.session.end();
    }
}

/// One is served at a time, and none is asked to come again.
#[test]
fn clients_beyond_the_backlog_wait_and_get_their_turn() {
    const N: u8 = 6;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let at: IpAddr = IPV4.parse().expect("address");
    let socket = Socket::new(Family::V4).expect("socket");
    socket.bind((at, 0).into()).expect("bind");
    socket.listen(1).expect("listen");
    let to = socket.local_addr().expect("its port");
    let client = move |i: u8| {
        let mut stream = connect(to)?;
        stream.write_all(&[i])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok::<_, std::io::Error>(answer[0])
    };
    let clients: Vec<_> = (0..N).map(|i| thread::spawn(move || client(i))).collect();
    for _ in 0..N {
        let mut stream = Stream::from(socket.accept().expect("a client"));
        let mut word = [0];
        stream.read_exact(&mut word).expect("its word");
        stream.write_all(&[word[0] + 100]).expect("the answer");
    }
    for (i, client) in (100..).zip(clients) {
        assert_eq!(client.join().expect("no panic").expect("served"), i);
    }
}
