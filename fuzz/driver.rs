//! Runs a fuzz target without a fuzzer: on its committed corpus, and on changes of it.
//!
//! Included by the tests of the crates that have targets. The changes are the same each time, so a
//! failure comes again; `RSOCK_FUZZ_RUNS` multiplies their number, and then begins elsewhere.

use std::fs;
use std::path::Path;

/// Runs `target` on each input of its corpus, and on `n` inputs made from those.
pub(crate) fn run(target: &str, n: u64, f: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(&dir).expect("the corpus is part of the repository");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let corpus: Vec<_> = paths.iter().map(|path| fs::read(path).expect("a file")).collect();
    assert!(!corpus.is_empty(), "no input in {}", dir.display());
    corpus.iter().for_each(|input| call(input, f));
    let times = std::env::var("RSOCK_FUZZ_RUNS").ok().and_then(|times| times.parse().ok());
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ times.unwrap_or(0));
    for _ in 0..n * times.unwrap_or(1) {
        let mut input = random.of(&corpus).clone();
        for _ in 0..=random.below(8) {
            change(&mut input, &mut random, &corpus);
        }
        call(&input, f);
    }
}

/// Longest input.
const MOST: usize = 4096;

fn change(input: &mut Vec<u8>, random: &mut Random, corpus: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    match random.below(8) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next().to_le_bytes()[0],
        2 => put(input, at, &EDGES[random.below(EDGES.len())].to_le_bytes()[..4]),
        3 => put(input, at, &EDGES[random.below(EDGES.len())].to_le_bytes()),
        4 => input.truncate(at),
        5 if input.len() < MOST => input.insert(at, random.next().to_le_bytes()[0]),
        6 if at < input.len() => _ = input.remove(at),
        _ => {
            let other = random.of(corpus);
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
            input.truncate(MOST);
        }
    }
}

fn put(input: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in input[at..].iter_mut().zip(value) {
        *to = *from;
    }
}

/// Values at which code decides.
const EDGES: [u64; 12] = [
    0,
    1,
    3,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x00ff_ffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Calls `f`; an input that makes it panic is printed.
fn call(input: &[u8], f: fn(&[u8])) {
    struct Shown<'a>(&'a [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
                eprintln!("the input was {hex}");
            }
        }
    }
    let shown = Shown(input);
    f(input);
    drop(shown);
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or(0) % n.max(1)
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}
