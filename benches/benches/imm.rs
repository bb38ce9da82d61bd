//! The word that travels with every message: encoding and decoding.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rsock_proto::{Ctrl, Ext, Imm, SeqNo};
use std::hint::black_box;

/// A stream's mix: mostly data, some credit, little else.
fn mix() -> Vec<Imm> {
    let data = (1..=48).map(|n| Imm::data(n * 1361));
    let credit = (0..14).map(|n| Imm::credit(SeqNo(n * 97)));
    let rest = [Imm::ctrl(Ctrl::Keepalive), Imm::ext(Ext::Up { offset26: 4711 })];
    data.chain(credit).chain(rest).collect()
}

fn codec(c: &mut Criterion) {
    let words = mix();
    let messages: Vec<_> = words.iter().filter_map(|word| word.decode().ok()).collect();
    assert_eq!(messages.len(), words.len(), "every word of the mix is a message");
    let mut group = c.benchmark_group("imm");
    group.throughput(Throughput::Elements(words.len() as u64));
    group.bench_function("decode", |b| {
        b.iter(|| {
            for word in &words {
                let _ = black_box(black_box(*word).decode());
            }
        });
    });
    group.bench_function("encode", |b| {
        b.iter(|| {
            for message in &messages {
                black_box(black_box(*message).encode());
            }
        });
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
