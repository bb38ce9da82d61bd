//! Round trips: a message to a peer thread and back, rsock beside the kernel's sockets.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rsock_benches::transport::{Kind, Peer};

/// Message lengths in bytes.
const SIZES: [usize; 5] = [1, 64, 1 << 10, 16 << 10, 64 << 10];

fn stream_latency(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream_latency");
    for size in SIZES {
        for kind in Kind::ALL {
            group.bench_function(BenchmarkId::new(kind.name(), size), |b| {
                let (mut conn, other) = kind.pair().expect("a connection");
                let peer = Peer::spawn(other, move |conn| {
                    let mut message = vec![0; size];
                    conn.read_exact(&mut message)?;
                    conn.write_all(&message)
                });
                let request = vec![0x5a; size];
                let mut answer = vec![0; size];
                b.iter(|| {
                    conn.write_all(&request).expect("sent");
                    conn.read_exact(&mut answer).expect("answered");
                });
                assert_eq!(request, answer, "the peer sends back what it got");
                drop(conn);
                peer.join();
            });
        }
    }
    group.finish();
}

criterion_group!(benches, stream_latency);
criterion_main!(benches);
