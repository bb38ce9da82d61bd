//! Tokio's streams and rsock's beside each other: round trips, throughput, connections, and many
//! streams at once.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rsock_benches::cases::{current_thread, raise_limit, server, swallow};
use rsock_benches::net::{Net, Rsock, Tcp, settle};
use std::io;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Bytes after which a reader answers.
const TURN: usize = 4 << 20;

/// One message to the server and back.
async fn round_trip<N: Net>(stream: &mut N::Stream, message: &mut [u8]) -> io::Result<()> {
    stream.write_all(message).await?;
    stream.read_exact(message).await.map(drop)
}

fn round_trips<N: Net>(c: &mut Criterion) {
    let mut group = c.benchmark_group("tokio_latency");
    for size in [1, 64, 1 << 10, 64 << 10] {
        group.bench_function(BenchmarkId::new(N::NAME, size), |b| {
            let (_server, addr) = server::<N, _, _>(move |mut stream: N::Stream| async move {
                let mut message = vec![0; size];
                loop {
                    stream.read_exact(&mut message).await?;
                    stream.write_all(&message).await?;
                }
            })
            .expect("a server");
            let runtime = current_thread().expect("a runtime");
            let mut stream = runtime.block_on(N::connect(addr)).expect("a connection");
            let mut message = vec![1; size];
            let turn = async |stream: &mut _| round_trip::<N>(stream, &mut vec![1; size]).await;
            runtime.block_on(settle::<N>(&mut stream, turn)).expect("its own path");
            b.iter_custom(|n| {
                runtime.block_on(async {
                    let began = Instant::now();
                    for _ in 0..n {
                        round_trip::<N>(&mut stream, &mut message).await.expect("answered");
                    }
                    began.elapsed()
                })
            });
        });
    }
    group.finish();
}

fn throughput<N: Net>(c: &mut Criterion) {
    let mut group = c.benchmark_group("tokio_bandwidth");
    group.throughput(Throughput::Bytes(TURN as u64)).sample_size(20);
    for size in [64, 1 << 10, 64 << 10, 1 << 20] {
        group.bench_function(BenchmarkId::new(N::NAME, size), |b| {
            let (_server, addr) =
                server::<N, _, _>(|stream| swallow::<N>(stream, TURN)).expect("a server");
            let runtime = current_thread().expect("a runtime");
            let mut stream = runtime.block_on(N::connect(addr)).expect("a connection");
            let block = vec![1; size];
            let turn = async |stream: &mut N::Stream| {
                for _ in 0..TURN / size {
                    stream.write_all(&block).await?;
                }
                stream.read_exact(&mut [0]).await.map(drop)
            };
            runtime.block_on(settle::<N>(&mut stream, turn)).expect("its own path");
            b.iter(|| runtime.block_on(turn(&mut stream)).expect("everything arrived"));
        });
    }
    group.finish();
}

/// Short connections: rsock's are TCP to their end, by design, so this is what its own part costs.
fn connects<N: Net>(c: &mut Criterion) {
    let mut group = c.benchmark_group("tokio_connect");
    group.bench_function(N::NAME, |b| {
        let (_server, addr) = server::<N, _, _>(|mut stream: N::Stream| async move {
            stream.write_all(&[1]).await?;
            stream.read_exact(&mut [0]).await.map(drop)
        })
        .expect("a server");
        let runtime = current_thread().expect("a runtime");
        b.iter(|| {
            runtime.block_on(async {
                let mut stream = N::connect(addr).await.expect("a connection");
                stream.read_exact(&mut [0]).await.expect("a byte");
                stream.write_all(&[1]).await.expect("sent");
                // Its end, so that the next connection does not meet this one's.
                assert_eq!(stream.read(&mut [0]).await.expect("the end"), 0);
            });
        });
    });
    group.finish();
}

fn many<N: Net>(c: &mut Criterion) {
    raise_limit();
    let mut group = c.benchmark_group("tokio_streams");
    group.sample_size(10);
    for n in [1u64, 16, 128, 1024] {
        group.throughput(Throughput::Elements(n));
        group.bench_function(BenchmarkId::new(N::NAME, n), |b| {
            let (_server, addr) = server::<N, _, _>(|mut stream: N::Stream| async move {
                let mut message = [0; 64];
                loop {
                    stream.read_exact(&mut message).await?;
                    stream.write_all(&message).await?;
                }
            })
            .expect("a server");
            let runtime = current_thread().expect("a runtime");
            let mut streams = Vec::new();
            runtime.block_on(async {
                for _ in 0..n {
                    let mut stream = N::connect(addr).await.expect("a connection");
                    let turn = async |stream: &mut _| round_trip::<N>(stream, &mut [1; 64]).await;
                    settle::<N>(&mut stream, turn).await.expect("its own path");
                    streams.push(stream);
                }
            });
            // One round trip on every stream, all under way at once.
            b.iter(|| {
                runtime.block_on(async {
                    for stream in &mut streams {
                        stream.write_all(&[1; 64]).await.expect("sent");
                    }
                    for stream in &mut streams {
                        stream.read_exact(&mut [0; 64]).await.expect("answered");
                    }
                });
            });
        });
    }
    group.finish();
}

fn both(c: &mut Criterion) {
    round_trips::<Tcp>(c);
    round_trips::<Rsock>(c);
    throughput::<Tcp>(c);
    throughput::<Rsock>(c);
    connects::<Tcp>(c);
    connects::<Rsock>(c);
    many::<Tcp>(c);
    many::<Rsock>(c);
}

criterion_group!(benches, both);
criterion_main!(benches);
