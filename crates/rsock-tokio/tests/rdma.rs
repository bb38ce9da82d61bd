//! Rsockets streams and datagram sockets on an RDMA device, with C programs over librdmacm's
//! rsockets as further peers. `cargo xtask test` runs this in the lab.

mod common;
mod datagram;
mod dropped_futures;
mod rsockets_streams;

use common::{Watchdog, current_thread, is_rdma};
use rsock_tokio::rsockets::{Listener, connect};
use std::env;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The lab's address.
const IP: &str = "10.9.0.1";

rsockets_streams::rsockets_tests!(on_rdma);
datagram::datagram_tests!(on_rdma);
dropped_futures::device_rows!(on_rdma);

/// Runs `test` in a process that uses nothing but RDMA devices.
fn on_rdma(name: &str, test: fn()) {
    if is_rdma() {
        return test();
    }
    let out = Command::new(env::current_exe().expect("a test has an executable"))
        .args([name, "--exact", "--nocapture"])
        .env("RSOCK_DEVICE", "rdma")
        .output()
        .expect("it runs");
    let said = assert_worked(name, &out);
    assert!(said.contains("1 passed"), "{said}");
}

/// What a program said that must have succeeded.
fn assert_worked(name: &str, out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let status = out.status;
    assert!(status.success(), "{name}: {status}\n{said}{}", String::from_utf8_lossy(&out.stderr));
    said
}

/// The C program's arguments: transfers of a thousand bytes, ten each way at a time, 20 times.
const SIZES: [&str; 8] = ["-T", "b", "-S", "1000", "-C", "10", "-I", "20"];
/// What it sends and receives first, and then so often.
const TRANSFERS: (usize, usize, usize) = (16, 10_000, 20);

fn rstream(port: u16, args: &[&str]) -> Child {
    let mut command = Command::new("rstream");
    command.args(["-p", &port.to_string()]).args(SIZES).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("rstream starts")
}

#[test]
fn a_c_client_reads_and_verifies_what_it_sent() {
    on_rdma("a_c_client_reads_and_verifies_what_it_sent", || {
        let _watchdog = Watchdog::new();
        current_thread().block_on(async {
            let listener = Listener::bind((IP, 0)).await.expect("bind");
            let port = listener.local_addr().expect("address").port();
            let client = rstream(port, &["-T", "v", "-s", IP]);
            let (stream, _) = listener.accept().await.expect("accept");
            let (mut reading, mut writing) = stream.into_split();
            let (first, each, times) = TRANSFERS;
            let echoed = tokio::io::copy(&mut reading, &mut writing).await.expect("echo");
            assert_eq!(usize::try_from(echoed).expect("few"), first + each * times);
            let ended = tokio::task::spawn_blocking(|| client.wait_with_output().expect("it ends"));
            assert_worked("rstream", &ended.await.expect("no panic"));
        });
    });
}

#[test]
fn a_c_server_gets_what_it_waits_for_and_answers() {
    on_rdma("a_c_server_gets_what_it_waits_for_and_answers", || {
        let _watchdog = Watchdog::new();
        let free = TcpListener::bind((IP, 0)).expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        let mut server = rstream(port, &["-b", IP]);
        current_thread().block_on(async {
            let mut stream = loop {
                match connect((IP, port)).await {
                    Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                        assert!(server.try_wait().expect("its state").is_none(), "it ended");
                    }
                    other => break other.expect("connect"),
                }
            };
            let (first, each, times) = TRANSFERS;
            for size in std::iter::once(first).chain(std::iter::repeat_n(each, times)) {
                let mut bytes = vec![7; size];
                stream.write_all(&bytes).await.expect("write");
                stream.read_exact(&mut bytes).await.expect("read");
            }
            stream.shutdown().await.expect("shutdown");
            assert_eq!(stream.read(&mut [0]).await.expect("the end"), 0);
        });
        assert_worked("rstream", &server.wait_with_output().expect("it ends"));
    });
}
