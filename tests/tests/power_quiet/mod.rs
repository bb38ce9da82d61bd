//! Streams that are quiet when the peer's host is switched off: only keepalive notices.
//!
//! A reader, a poller and a task of each kind of stream: without TCP, and TCP first; and C programs
//! whose peer is a program over C's rsockets.

use super::Guest;
use rsock::KeepaliveSettings;
use rsock::rsockets::{self, Listener, PollEntry, Source};
use rsock_core::accelerate;
use rsock_core::metrics;
use rsock_tests::hosts::Role;
use rsock_tests::{Running, await_rdma_listener, await_that, c_library, preload_library};
use rustix::event::PollFlags;
use rustix::net::sockopt;
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

const IDLE: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);
const COUNT: u32 = 3;

/// Where listeners without TCP, those of TCP, and C's programs are.
const RSOCKETS_PORT: u16 = 7610;
const TCP: u16 = 7611;
const C: u16 = 7612;
/// Streams of each of the first two.
const STREAMS: usize = 3;

/// What guest a has, which is switched off: everything that it keeps open.
pub(super) struct Servers {
    _c: Running,
    _without_tcp: Vec<rsockets::Stream>,
    _tcp: Vec<rsock::Stream>,
}

/// Streams of guest b that wait: how each wait ended, in words.
pub(super) struct Waiting {
    ends: Receiver<(&'static str, String)>,
    c: Vec<(&'static str, BufReader<ChildStdout>, Running)>,
}

/// The first half of the test.
pub(super) enum Quiet {
    /// In guest a.
    Serves {
        /// Kept open until the guest is off.
        _servers: Servers,
    },
    /// In guest b.
    Waits(Waiting),
}

impl Quiet {
    pub(super) fn begin(guest: &Guest) -> Self {
        match guest.role {
            Role::A => Self::Serves { _servers: serve(guest) },
            Role::B => Self::Waits(wait(guest)),
        }
    }
}

/// In guest a: takes the streams of the other guest.
fn serve(guest: &Guest) -> Servers {
    // Read by the process once, before it has any stream.
    fs::write("/etc/rsock.toml", "trust_fabric = [\"10.9.0.0/24\"]\n").expect("a configuration");
    let without_tcp = Listener::bind((guest.ip(), RSOCKETS_PORT)).expect("listener");
    let tcp = rsock::Listener::bind((guest.ip(), TCP)).expect("listener");
    let mut c = program("librdmacm.so.1", "serve", &guest.ip().to_string());
    let mut c = Running::spawn(&mut c).expect("the program starts");
    await_rdma_listener(C, &mut c);
    guest.meet("quiet listeners");
    let without_tcp = (0..STREAMS).map(|_| without_tcp.accept().expect("a client").0).collect();
    let tcp: Vec<_> = (0..STREAMS).map(|_| tcp.accept().expect("a client").0).collect();
    for stream in &tcp {
        echo(stream);
    }
    guest.meet("quiet");
    Servers { _c: c, _without_tcp: without_tcp, _tcp: tcp }
}

/// In guest b: everything waits, on RDMA.
fn wait(guest: &Guest) -> Waiting {
    fs::write("/etc/rsock.toml", "trust_fabric = [\"10.9.0.0/24\"]\n").expect("a configuration");
    guest.meet("quiet listeners");
    let (tell, ends) = mpsc::channel();
    wait_without_tcp((guest.peer_ip(), RSOCKETS_PORT).into(), &tell);
    wait_beside_tcp((guest.peer_ip(), TCP).into(), &tell);
    let c = ["read", "poll"].into_iter().flat_map(|how| {
        let shim = if how == "read" { "a reader of the shim" } else { "a poller of the shim" };
        [(how, "-", shim), (how, "", how)]
    });
    let c = c.map(|(how, library, what)| {
        let ours = c_library();
        let library = if library == "-" { Path::new("-") } else { &ours };
        let mut command = program(&library.to_string_lossy(), how, &guest.peer_ip().to_string());
        let mut process = Running::spawn(&mut command).expect("the program starts");
        let mut out = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("its output");
        assert_eq!(line, "connected\n", "{what}");
        (what, out, process)
    });
    let c = c.collect();
    guest.meet("quiet");
    Waiting { ends, c }
}

impl Waiting {
    /// The second half, in guest b: what each wait came to, once the other guest is off.
    pub(super) fn all_have_timed_out(self) {
        let mut all: Vec<_> = self.ends.iter().take(2 * STREAMS).collect();
        for (what, mut out, process) in self.c {
            let mut line = String::new();
            out.read_line(&mut line).expect("its output");
            process.wait().expect("its end");
            all.push((what, line.trim_end().to_owned()));
        }
        println!("{all:?}");
        let timed_out = ["ETIMEDOUT".to_owned(), format!("{:?}", Some(libc::ETIMEDOUT))];
        assert!(all.iter().all(|(_, end)| timed_out.contains(end)), "{all:?}");
    }

    /// Waits until every stream without TCP has asked after its peer, which lives: none has ended.
    pub(super) fn all_have_probed(&self, guest: &Guest) {
        let is_probed = |port| {
            let (processes, _) = metrics::read_all().expect("the processes");
            let all = processes.into_iter().flat_map(|process| process.connections);
            let of_it: Vec<_> =
                all.filter(|c| c.peer == SocketAddr::new(guest.peer_ip(), port)).collect();
            !of_it.is_empty() && of_it.iter().all(|c| c.probes > 0)
        };
        await_that(|| [RSOCKETS_PORT, C].into_iter().all(is_probed));
        assert_eq!(self.ends.try_recv(), Err(TryRecvError::Empty));
    }
}

/// A reader, a poller and a task on streams without TCP.
fn wait_without_tcp(to: SocketAddr, tell: &Sender<(&'static str, String)>) {
    let connect = || {
        let stream = rsockets::connect(to).expect("connect");
        let times = KeepaliveSettings { idle: IDLE, interval: INTERVAL, probes: COUNT };
        stream.set_keepalive(Some(times)).expect("option");
        stream
    };
    let (mut read, polled, task) = (connect(), connect(), connect());
    spawn(tell, "a reader without TCP", move || read.read(&mut [0]));
    spawn(tell, "a poller without TCP", move || {
        let source = Source::Socket(polled.socket());
        let mut entries =
            [PollEntry { source, events: PollFlags::IN, revents: PollFlags::empty() }];
        rsockets::poll(&mut entries, None, None)?;
        (&polled).read(&mut [0])
    });
    spawn(tell, "a task without TCP", move || {
        runtime().block_on(async {
            let mut stream = rsock_tokio::rsockets::Stream::from_blocking(task.into())?;
            stream.read(&mut [0]).await
        })
    });
}

/// The same on streams that began as TCP.
fn wait_beside_tcp(to: SocketAddr, tell: &Sender<(&'static str, String)>) {
    let connect = || rsock::Stream::connect(to).expect("connect");
    let [read, polled] = [(); 2].map(|()| connect());
    let runtime = runtime();
    let task = runtime.block_on(rsock_tokio::Stream::connect(to));
    let mut task = task.expect("connect");
    for stream in [&read, &polled] {
        ask(stream);
    }
    runtime.block_on(ask_in_task(&mut task)).expect("exchanged");
    keep_alive(&read);
    keep_alive(&polled);
    keep_alive(&task);
    spawn(tell, "a reader beside TCP", move || read.recv(&mut [0]));
    spawn(tell, "a poller beside TCP", move || {
        let mut entries = [accelerate::PollDescriptor {
            fd: polled.as_raw_fd(),
            stream: polled.as_ref().accelerated().map(Into::into),
            listener: None,
            udp: None,
            set: None,
            call: None,
            is_socket: false,
            events: PollFlags::IN,
            revents: PollFlags::empty(),
        }];
        accelerate::poll(&mut entries, None, None)?;
        polled.recv(&mut [0])
    });
    spawn(tell, "a task beside TCP", move || runtime.block_on(task.read(&mut [0])));
}

fn keep_alive(stream: &impl AsFd) {
    sockopt::set_socket_keepalive(stream, true).expect("option");
    sockopt::set_tcp_keepidle(stream, IDLE).expect("option");
    sockopt::set_tcp_keepintvl(stream, INTERVAL).expect("option");
    sockopt::set_tcp_keepcnt(stream, COUNT).expect("option");
}

/// Waits for `end` in a thread of its own, and tells its errno.
fn spawn(
    tell: &Sender<(&'static str, String)>,
    what: &'static str,
    end: impl FnOnce() -> io::Result<usize> + Send + 'static,
) {
    let tell = tell.clone();
    thread::spawn(move || {
        let end = match end() {
            Ok(n) => format!("{n} bytes"),
            Err(e) => format!("{:?}", e.raw_os_error()),
        };
        let _ = tell.send((what, end));
    });
}

fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// Exchanges bytes until both directions are on RDMA, and says so to the other end.
fn ask(mut stream: &rsock::Stream) {
    let mut byte = [0];
    while !stream.channels().are_accelerated() {
        stream.write_all(b"m").expect("sent");
        stream.read_exact(&mut byte).expect("received");
    }
    stream.write_all(b"q").expect("sent");
    stream.read_exact(&mut byte).expect("received");
}

/// The same in a task.
async fn ask_in_task(stream: &mut rsock_tokio::Stream) -> io::Result<()> {
    while !stream.channels().are_accelerated() {
        stream.write_all(b"m").await?;
        stream.read_u8().await?;
    }
    stream.write_all(b"q").await?;
    stream.read_u8().await.map(drop)
}

/// The other end of [`ask`].
fn echo(mut stream: &rsock::Stream) {
    let mut byte = [0];
    while byte != *b"q" {
        stream.read_exact(&mut byte).expect("received");
        stream.write_all(&byte).expect("sent");
    }
}

/// `tests/rdma_c/keepalive.c`, over `library`.
fn program(library: &str, how: &str, ip: &str) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program: PathBuf = env::temp_dir().join("keepalive");
    if !program.exists() {
        let out = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&program, &here.join("rdma_c/keepalive.c"), Path::new("-I")])
            .arg(here.join("../crates/rsock-capi/include"))
            .output()
            .expect("a C compiler named cc");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let mut command = Command::new(program);
    match library {
        "-" => {
            let config = env::temp_dir().join("plain.toml");
            fs::write(&config, "plain_rsockets = [\"10.0.0.0/8\"]\n").expect("a configuration");
            command.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", config);
        }
        "librdmacm.so.1" => {}
        _ => _ = command.env("RSOCK_DEVICE", "rdma"),
    }
    command.args([library, how, ip, &C.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}
