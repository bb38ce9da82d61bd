//! Runtimes that end while streams are open and tasks wait for them: nothing hangs and nothing is
//! leaked.
//!
//! One test, alone in its process: it counts the process's descriptors, threads and shared
//! mappings.

mod common;

use common::{Watchdog, accelerated_pair, connect, connect_with};
use rsock_tokio::{Builder, rsockets};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

/// Descriptors, threads and shared mappings of this process.
fn held() -> [usize; 3] {
    let count = |dir| std::fs::read_dir(dir).expect("proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let shared = maps.lines().filter(|line| line.contains("/memfd:"));
    [count("/proc/self/fd"), count("/proc/self/task"), shared.count()]
}

/// Waits until this process has no more than `n` threads: one that has been joined is listed for a
/// moment more.
fn await_threads(n: usize) {
    while held()[1] > n {
        std::thread::yield_now();
    }
}

/// Makes streams in every state, and tasks that own them.
async fn leave_open(round: u32) {
    // A reader that waits for shared memory, and one that waits for TCP.
    let (a, b) = accelerated_pair().await;
    tokio::spawn(async move { a.recv(10).await });
    let (c, d) = connect().await;
    tokio::spawn(async move { c.recv(10).await });
    // Writers that wait for a reader.
    let (mut e, f) = accelerated_pair().await;
    tokio::spawn(async move { while e.write_all(&[1; 100_000]).await.is_ok() {} });
    // Several waits for one stream; a search that the peer does not answer; exposed memory.
    let (g, h) = connect_with(Builder::new().iomap_slots(1)).await;
    let (g, h) = (Arc::new(g), Arc::new(h));
    for stream in [&g, &h] {
        for _ in 0..2 {
            let stream = Arc::clone(stream);
            tokio::spawn(async move { stream.readable().await });
        }
    }
    let opening = Arc::clone(&g);
    tokio::spawn(async move {
        if opening.accelerated().await.is_ok() {
            let _memory = opening.expose(100, 1).await;
            std::future::pending::<()>().await;
        }
    });
    if round.is_multiple_of(2) {
        tokio::spawn(async move { h.accelerated().await.map(|()| h) });
    }
    // rsockets: a reader, a writer, a connect that is not accepted, and a listener without clients.
    let listener = rsockets::Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    let (i, j) = tokio::join!(rsockets::connect(to), listener.accept());
    let (mut i, (j, _)) = (i.expect("connect"), j.expect("accept"));
    let reading = Arc::new(j);
    let reader = Arc::clone(&reading);
    tokio::spawn(async move { reader.recv(10).await });
    if round.is_multiple_of(3) {
        tokio::spawn(async move { while i.write_all(&[1; 100_000]).await.is_ok() {} });
    }
    tokio::spawn(async move { rsockets::connect(to).await });
    if round.is_multiple_of(2) {
        tokio::spawn(async move { listener.accept().await });
    }
    // The other ends belong to a task that does nothing with them until the runtime ends.
    tokio::spawn(async move {
        let _held = (b, d, f, g, reading);
        std::future::pending::<()>().await;
    });
    for _ in 0..round {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_runtime_that_ends_leaks_nothing() {
    let _watchdog = Watchdog::new();
    let run = |make: fn() -> Runtime, round| {
        let runtime = make();
        runtime.block_on(leave_open(round));
        drop(runtime);
    };
    let rounds = || {
        for round in 0..8 {
            run(common::current_thread, round);
            run(common::multi_thread, round);
        }
    };
    let [_, n_threads, _] = held();
    // What a process makes once stays open, such as its link to itself.
    rounds();
    await_threads(n_threads);
    let before = held();
    rounds();
    rounds();
    await_threads(n_threads);
    assert_eq!(held(), before);
}
