//! Putting into a peer's open memory, beside sending the same bytes over kernel TCP to a peer that
//! reads them into its own: what the writer waits for until they are there.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rsock::rsockets::{Builder, Listener};
use rsock_benches::transport::{Kind, Peer};
use std::net::Ipv4Addr;
use std::thread;

/// Bytes put at once.
const SIZES: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// The name of the open memory.
const HERE: u64 = 1 << 32;

fn iomap_put(c: &mut Criterion) {
    let mut group = c.benchmark_group("iomap_put");
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        let bytes = vec![0x5a; size];
        group.bench_function(BenchmarkId::new("tcp", size), |b| {
            let (mut conn, other) = Kind::Tcp.pair().expect("a connection");
            let peer = Peer::spawn(other, move |conn| {
                let mut there = vec![0; size];
                conn.read_exact(&mut there)?;
                conn.write_all(&[1])
            });
            b.iter(|| {
                conn.write_all(&bytes).expect("sent");
                conn.read_exact(&mut [0]).expect("there");
            });
            drop(conn);
            peer.join();
        });
        group.bench_function(BenchmarkId::new("rsock", size), |b| {
            let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
            let to = listener.local_addr().expect("an address");
            let connecting = thread::spawn(move || Builder::default().iomap_slots(1).connect(to));
            let (owner, _) = listener.accept().expect("a connection");
            let writer = connecting.join().expect("a thread").expect("a connection");
            let memory = owner.expose(size, HERE).expect("exposed memory");
            // It is there when `put` returns: no answer is needed.
            b.iter(|| assert_eq!(writer.write_remote(&bytes, HERE).expect("written"), size));
            let mut there = vec![0; size];
            memory.read_at(0, &mut there);
            assert_eq!(there, bytes);
        });
    }
    group.finish();
}

criterion_group!(benches, iomap_put);
criterion_main!(benches);
