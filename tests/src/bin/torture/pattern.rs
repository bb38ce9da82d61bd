//! The bytes of streams: each is known from the run, the connection, the direction and the
//! position, and eight of them in a row tell all of these.

use crate::shared::{End, Shared};
use std::sync::atomic::Ordering::SeqCst;

/// Makes the bytes of the stream that `writer` writes in the run of `nonce`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    tag: u64,
}

impl Pattern {
    pub(crate) fn new(nonce: u64, writer: End) -> Self {
        Self { tag: (nonce & 0xff) << 8 | u64::from(writer.index() & 0xff) }
    }

    fn word(self, k: u64) -> u64 {
        mixed(self.tag << 48 | (k & POSITION))
    }

    /// Writes the bytes from position `at` on.
    pub(crate) fn fill(self, to: &mut [u8], at: u64) {
        let head = (usize::try_from(at.wrapping_neg() % 8).expect("below 8")).min(to.len());
        let (head, rest) = to.split_at_mut(head);
        for (i, byte) in (at..).zip(head) {
            *byte = self.byte(i);
        }
        let mut k = at.div_ceil(8);
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.word(k).to_le_bytes());
            k += 1;
        }
        for (i, byte) in (k * 8..).zip(words.into_remainder()) {
            *byte = self.byte(i);
        }
    }

    fn byte(self, at: u64) -> u8 {
        let shift = u32::try_from(at % 8 * 8).expect("below 64");
        (self.word(at / 8) >> shift).to_le_bytes()[0]
    }

    /// Where `got`, read at position `at`, differs first.
    pub(crate) fn difference(self, got: &[u8], at: u64) -> Option<usize> {
        let mut expected = [0; 4096];
        for (i, piece) in got.chunks(expected.len()).enumerate() {
            let begin = i * expected.len();
            let expected = &mut expected[..piece.len()];
            self.fill(expected, at + begin as u64);
            if piece != expected {
                let differs = piece.iter().zip(expected).position(|(a, b)| *a != *b);
                return differs.map(|i| begin + i);
            }
        }
        None
    }
}

/// What the wrong bytes `got` are, if the run has such bytes somewhere.
pub(crate) fn recognised(shared: &Shared, nonce: u64, got: &[u8]) -> String {
    for skipped in 0..8 {
        let Some(word) = got.get(skipped..skipped + 8) else { break };
        let word = unmixed(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let index = u32::try_from(word >> 48 & 0xff).expect("a byte");
        let end = End::of_index(index);
        if word >> 56 != nonce & 0xff || end.connection >= shared.connections.len() {
            continue;
        }
        let at = (word & POSITION) * 8;
        if at <= shared.written_by(end).attempted.load(SeqCst) {
            let at = at.wrapping_sub(skipped as u64);
            return format!("they are those at {at} of what the {end} writes");
        }
    }
    format!("they are {:02x?}", &got[..got.len().min(16)])
}

/// Bits of a word that hold its position.
const POSITION: u64 = (1 << 48) - 1;
/// An odd number, and its inverse modulo 2^64.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const INVERSE: u64 = 0xf1de_83e1_9937_733d;

fn mixed(x: u64) -> u64 {
    let x = x.wrapping_mul(FACTOR);
    x ^ x >> 32
}

fn unmixed(x: u64) -> u64 {
    (x ^ x >> 32).wrapping_mul(INVERSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: End = End { connection: 5, side: 1 };

    #[test]
    fn mixing_a_word_can_be_undone() {
        for x in [0, 1, 77, u64::MAX, 1 << 63] {
            assert_eq!(unmixed(mixed(x)), x);
        }
    }

    #[test]
    fn a_difference_is_found_wherever_it_is() {
        let pattern = Pattern::new(3, WRITER);
        let mut bytes = vec![0; 10_000];
        for at in [0, 1, 7, 8, 4099] {
            pattern.fill(&mut bytes, at);
            assert_eq!(pattern.difference(&bytes, at), None);
            assert!(pattern.difference(&bytes, at + 8).is_some());
            for i in [0, 6, 4096, 9_999] {
                bytes[i] ^= 1;
                assert_eq!(pattern.difference(&bytes, at), Some(i));
                bytes[i] ^= 1;
            }
        }
    }
}
