//! Copies into a peer's memory: an RDMA WRITE on the shared-memory device, beside an ordinary copy
//! of the same bytes. One CPU does both ends, so this shows what the writer pays; what the reader
//! saves, `rsock compare` shows.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rsock_benches::device::{self, End};
use rsock_verbs::{MemoryRegion, QueuePair, SendFlags, SendOp, WrId};
use std::hint::black_box;
use std::io::IoSlice;

const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Writes go round a ring of this length, as a stream's do.
const RING: usize = 768 << 10;

fn copy(c: &mut Criterion) {
    let (here, there) = device::pair(RING).expect("a device");
    write(&here, &there, 0, &[0x5a; 100]);
    let mut arrived = [0; 100];
    there.region.copy_out(0, &mut arrived);
    assert_eq!(arrived, [0x5a; 100], "what was written is there");

    let mut group = c.benchmark_group("copy");
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        let source = vec![0x5a; size];
        group.bench_function(BenchmarkId::new("write", size), |b| {
            let mut at = 0;
            b.iter(|| {
                write(&here, &there, at, black_box(&source));
                at = (at + size as u64) % RING as u64;
            });
        });
        group.bench_function(BenchmarkId::new("plain", size), |b| {
            let mut ring = vec![0; RING];
            let mut at = 0;
            b.iter(|| {
                ring[at..at + size].copy_from_slice(black_box(&source));
                black_box(&mut ring);
                at = (at + size) % RING;
            });
        });
    }
    group.finish();
}

fn write(here: &End, there: &End, at: u64, bytes: &[u8]) {
    let remote = there.region.addr().wrapping_add(at);
    let op = SendOp::Write { remote, rkey: there.region.rkey() };
    let posted = here.qp.post_copy(WrId(0), op, &[IoSlice::new(bytes)], SendFlags::empty());
    posted.expect("a write needs no room");
}

criterion_group!(benches, copy);
criterion_main!(benches);
