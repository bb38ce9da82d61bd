//! Programs of one host whose connections move to its RDMA device, because they are told to use
//! nothing else: programs of TCP under the preload library, and a stream of `rsock-tokio` with such
//! a program.

use super::{IPV4, free_port};
use rsock_core::metrics;
use rsock_tests::{Running, Watchdog, await_tcp_listener, preload_library, tools};
use rsock_tokio::Listener;
use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime;

/// A configuration by which the host trusts its own address.
pub(super) fn config(name: &str) -> PathBuf {
    let file = env::temp_dir().join(format!("rdma-accelerated-{name}-{}.toml", std::process::id()));
    fs::write(&file, format!("trust_fabric = [\"{IPV4}/32\"]\n")).expect("a configuration");
    file
}

/// `tests/scripts/blocks.py`, which computes and compares each byte.
fn blocks(config: &Path, what: &str, port: u16) -> Running {
    let mut command = tools::require("python3").command();
    command.env("LD_PRELOAD", preload_library());
    command.env("RSOCK_CONFIG", config).env("RSOCK_DEVICE", "rdma");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/blocks.py"));
    command.args([what, IPV4, &port.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    Running::spawn(&mut command).expect("python starts")
}

/// What it says at last. Nothing else must be waiting for its output.
fn last_line(mut process: Running) -> String {
    process.stdin.take();
    let mut said = String::new();
    process.stdout.take().expect("piped").read_to_string(&mut said).expect("its output");
    let status = process.wait().expect("its end");
    assert!(status.success(), "{status}: {said}");
    said.lines().last().unwrap_or("nothing").to_owned()
}

/// The bytes that process `pid` has sent, then received, over RDMA, in connections with this
/// address; and why one of them stays on TCP, if one does.
fn over_rdma(pid: u32) -> ([u64; 2], Option<metrics::StreamMetrics>) {
    let process = metrics::read_process(pid).expect("its table");
    let connections = process.map(|process| process.connections).unwrap_or_default();
    let rdma = metrics::Transport::Rdma as usize;
    let mut bytes = [0; 2];
    for c in connections.iter().filter(|c| c.peer.ip().to_string() == IPV4) {
        bytes[0] += c.tx.bytes[rdma];
        bytes[1] += c.rx.bytes[rdma];
    }
    (bytes, connections.into_iter().find(|c| c.tx.bytes[metrics::Transport::Soft as usize] != 0))
}

/// More than could have been on its way when the stream moved.
const ENOUGH: u64 = 4 << 20;

fn await_bytes(pid: u32, direction: usize) {
    loop {
        let (bytes, soft) = over_rdma(pid);
        assert!(soft.is_none(), "in shared memory: {soft:?}");
        if bytes[direction] >= ENOUGH {
            return;
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn programs_of_one_host_move_to_its_rdma_device_where_told_to() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let config = config("programs");
    let port = free_port(IPV4);
    let mut server = blocks(&config, "serve", port);
    await_tcp_listener(port, &mut server);
    // It says each block's number.
    let mut out = server.stdout.take().expect("piped");
    let said = thread::spawn(move || {
        let mut said = String::new();
        out.read_to_string(&mut said).map(|_| said)
    });
    let client = blocks(&config, "send", port);
    await_bytes(client.id(), 0);
    await_bytes(server.id(), 1);
    let sent = last_line(client);
    assert!(server.wait().expect("its end").success());
    let said = said.join().expect("no panic").expect("its output");
    assert!(sent.ends_with(" end"), "{sent}");
    assert_eq!(said.lines().last(), Some(&*sent));
}

/// The configuration and the choice of device are read once by a process, so this one is of its
/// own.
#[test]
fn a_stream_of_tasks_moves_to_the_rdma_device_with_a_program_of_its_host() {
    const NAME: &str =
        "rdma_accelerated::a_stream_of_tasks_moves_to_the_rdma_device_with_a_program_of_its_host";
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    if env::var_os("RSOCK_DEVICE").is_some_and(|device| device == "rdma") {
        let config = PathBuf::from(env::var_os("RSOCK_CONFIG").expect("a configuration"));
        return runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(echo(&config));
    }
    let out = Command::new(env::current_exe().expect("this program"))
        .args([NAME, "--exact", "--nocapture"])
        .env("RSOCK_DEVICE", "rdma")
        .env("RSOCK_CONFIG", config("tasks"))
        .output()
        .expect("it runs");
    let said = rsock_tests::assert_worked(NAME, &out);
    assert!(said.contains("1 passed"), "{said}");
}

/// Sends back what a program sends, until that has been enough over RDMA; nothing is lost.
async fn echo(config: &Path) {
    let listener = Listener::bind((IPV4, 0)).await.expect("listener");
    let port = listener.local_addr().expect("its port").port();
    let client = blocks(config, "echo", port);
    let watched = client.id();
    let watching = thread::spawn(move || {
        await_bytes(watched, 0);
        await_bytes(watched, 1);
        last_line(client)
    });
    let (mut stream, _) = listener.accept().await.expect("the program");
    let mut block = vec![0; 32_768];
    let mut n = 0;
    let mut channels = stream.channels();
    loop {
        match stream.read_exact(&mut block).await {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
            read => drop(read.expect("a block")),
        }
        stream.write_all(&block).await.expect("sent back");
        channels = stream.channels();
        n += 1;
    }
    assert!(channels.are_accelerated(), "{channels:?}");
    assert_eq!(watching.join().expect("no panic"), format!("{n} end"));
}
