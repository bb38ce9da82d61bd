//! The device's ring: posting a WRITE WITH IMMEDIATE, and polling it at the other end. One CPU does
//! both, so no line moves between caches: this is what the code itself costs.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rsock_benches::device;
use rsock_verbs::{
    Completion, CompletionQueue, MemoryRegion, QueuePair, SendFlags, SendOp, WcOp, WrId,
};
use std::hint::black_box;
use std::io::IoSlice;

/// Payload lengths in bytes: none, inside the entry, and beside it.
const SIZES: [usize; 4] = [0, 48, 64, 4 << 10];
const REGION: usize = 64 << 10;

fn ring(c: &mut Criterion) {
    let (here, there) = device::pair(REGION).expect("a device");
    let mut group = c.benchmark_group("ring");
    group.throughput(Throughput::Elements(1));
    for size in SIZES {
        let source = vec![0x5a; size];
        there.qp.post_recv_empty(WrId(1)).expect("room for a receive");
        let mut n = 0u32;
        group.bench_function(BenchmarkId::new("post_poll", size), |b| {
            let op = |imm| SendOp::WriteImm {
                remote: there.region.addr(),
                rkey: there.region.rkey(),
                imm,
            };
            let mut done = [Completion::BLANK; 4];
            b.iter(|| {
                let piece = [IoSlice::new(black_box(&source))];
                here.qp.post_copy(WrId(0), op(n), &piece, SendFlags::empty()).expect("posted");
                assert_eq!(there.cq.poll(&mut done), 1);
                assert_eq!((done[0].op, done[0].imm), (WcOp::RecvWriteImm, n));
                there.qp.post_recv_empty(WrId(1)).expect("room for a receive");
                n = n.wrapping_add(1);
            });
        });
        let before = there.cq.poll(&mut [Completion::BLANK]);
        assert_eq!(before, 0, "nothing comes that was not posted");
    }
    group.finish();
}

criterion_group!(benches, ring);
criterion_main!(benches);
