//! The peer's process dies while futures of an rsockets stream wait.

use super::any;
use crate::common::{Killed, Watchdog, current_thread, in_both, is_rdma};
use rsock_tokio::rsockets::{Listener, Stream, connect};
use std::env;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// In the environment of the other process: where to connect.
const PEER: &str = "RSOCK_TEST_RSOCKETS_PEER";

/// A stream to another process, which writes a byte and then reads nothing for ever.
async fn with_peer() -> (Stream, Killed) {
    let listener = Listener::bind(any()).await.expect("bind");
    let child = Command::new(env::current_exe().expect("a test has an executable"))
        .args(["pending_reads_and_writes_end_when_the_peer_is_killed", "--exact"])
        .env(PEER, listener.local_addr().expect("address").to_string())
        .stdout(Stdio::null())
        .spawn();
    let child = Killed(child.expect("a child"));
    let (mut stream, _) = listener.accept().await.expect("accept");
    stream.read_exact(&mut [0]).await.expect("read");
    (stream, child)
}

pub(crate) fn pending_reads_and_writes_end_when_the_peer_is_killed() {
    if let Ok(addr) = env::var(PEER) {
        let _watchdog = Watchdog::new();
        current_thread().block_on(async {
            let mut stream = connect(addr).await.expect("connect");
            stream.write_all(&[1]).await.expect("write");
            std::future::pending::<()>().await;
        });
    }
    in_both(|| async {
        let (stream, child) = with_peer().await;
        let (mut reading, mut writing) = stream.into_split();
        let read = tokio::spawn(async move { reading.read(&mut [0]).await });
        let write = tokio::spawn(async move {
            let block = vec![1; 1 << 20];
            loop {
                if let Err(e) = writing.write_all(&block).await {
                    return e;
                }
            }
        });
        tokio::task::yield_now().await;
        drop(child);
        match read.await.expect("task") {
            Ok(n) => assert_eq!(n, 0),
            // A device may report the death before the end of the stream has arrived.
            Err(e) => assert_eq!((e.kind(), is_rdma()), (ErrorKind::ConnectionReset, true)),
        }
        let e = write.await.expect("task");
        assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
    });
}
