//! The fuzzers' committed inputs through the fuzzers' own functions.

use crate::dgram::header;
use crate::proto::sim::bytes;
use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut n = 0;
    for entry in fs::read_dir(&dir).expect("the corpus is part of the repository") {
        run(&fs::read(entry.unwrap().path()).unwrap());
        n += 1;
    }
    assert!(n > 0, "no input in {}", dir.display());
}

#[test]
fn the_corpus_of_words_passes() {
    replay("imm", bytes::imm);
}

#[test]
fn the_corpus_of_connection_data_passes() {
    replay("conn_data", bytes::conn_data);
}

#[test]
fn the_corpus_of_schedules_passes() {
    replay("proto_ops", bytes::proto_ops);
}

#[test]
fn the_corpus_of_datagrams_passes() {
    replay("dgram", header::check_any);
}
