//! The other process dies while futures of the pure mode wait.

use super::any;
use crate::common::{Killed, Watchdog, current_thread, in_both, is_rdma};
use rsock_tokio::Stream;
use rsock_tokio::rsockets::{Listener, connect};
use std::env;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// In the environment of the other process: where to connect.
const PEER: &str = "RSOCK_TEST_PURE_PEER";

/// A stream to another process, which says a word and then reads nothing for ever.
async fn with_peer() -> (Stream, Killed) {
    let listener = Listener::bind(any()).await.expect("bind");
    let child = Command::new(env::current_exe().expect("a test has an executable"))
        .args(["what_waits_ends_with_a_killed_peer", "--exact"])
        .env(PEER, listener.local_addr().expect("address").to_string())
        .stdout(Stdio::null())
        .spawn();
    let child = Killed(child.expect("a child"));
    let (mut stream, _) = listener.accept().await.expect("accept");
    stream.read_exact(&mut [0]).await.expect("read");
    (stream, child)
}

pub(crate) fn what_waits_ends_with_a_killed_peer() {
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
            // A device may tell of the death before the peer's end is known.
            Err(e) => assert_eq!((e.kind(), is_rdma()), (ErrorKind::ConnectionReset, true)),
        }
        let e = write.await.expect("task");
        assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
    });
}
