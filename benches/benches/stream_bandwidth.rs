//! Throughput: writes of one length to a reading peer thread, rsock beside the kernel's sockets.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rsock_benches::transport::{Kind, Peer};
use std::io;

/// Lengths of one write in bytes.
const SIZES: [usize; 5] = [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// Bytes after which the peer says that it has them all.
const TURN: usize = 4 << 20;

fn stream_bandwidth(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream_bandwidth");
    group.throughput(Throughput::Bytes(TURN as u64)).sample_size(20);
    for size in SIZES {
        for kind in Kind::ALL {
            group.bench_function(BenchmarkId::new(kind.name(), size), |b| {
                let (mut conn, other) = kind.pair().expect("a connection");
                let peer = Peer::spawn(other, move |conn| {
                    let mut buf = vec![0; size.max(64 << 10)];
                    let mut left = TURN;
                    while left > 0 {
                        let most = buf.len().min(left);
                        match conn.read(&mut buf[..most])? {
                            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                            n => left -= n,
                        }
                    }
                    conn.write_all(&[1])
                });
                let message = vec![0x5a; size];
                let mut done = [0];
                b.iter(|| {
                    for _ in 0..TURN / size {
                        conn.write_all(&message).expect("sent");
                    }
                    conn.read_exact(&mut done).expect("everything arrived");
                });
                drop(conn);
                peer.join();
            });
        }
    }
    group.finish();
}

criterion_group!(benches, stream_bandwidth);
criterion_main!(benches);
