//! A word of the descriptor table: what the table knows of one descriptor number.

use crate::slot::Key;
use rsock_core::accelerate::FallbackReason;

/// A table word.
///
/// Bits 1:0 are the kind. An adopted socket has its slot in bits 31:8 and the slot's generation
/// above; all others have flags in bits 3:2 and the reason to stay on TCP in bits 11:4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fdtable) struct Word(pub(in crate::fdtable) u64);

pub(in crate::fdtable) const KIND: u64 = 3;

/// Not adopted and no candidate for a stream; perhaps with a reason.
pub(in crate::fdtable) const EMPTY: u64 = 0;

/// A stream that has not been adopted: the kernel alone makes its first calls.
pub(in crate::fdtable) const CANDIDATE: u64 = 1;

/// A candidate that some thread is adopting.
pub(in crate::fdtable) const ADOPTING: u64 = 2;

pub(in crate::fdtable) const ADOPTED: u64 = 3;

/// Beside [`CANDIDATE`]: the connection was still being made.
pub(in crate::fdtable) const CONNECTING: u64 = 1 << 2;

/// Beside [`CANDIDATE`]: it came out of `accept`.
pub(in crate::fdtable) const ACCEPTED: u64 = 1 << 3;

/// Beside [`EMPTY`]: a listening socket that may have a native listener ([`crate::native_peer`]).
pub(in crate::fdtable) const LISTENING: u64 = 1 << 12;

/// Beside [`EMPTY`]: a UDP socket that may be adopted ([`super::datagrams`]). The number of calls
/// on it is in the upper half.
pub(in crate::fdtable) const UDP: u64 = 1 << 13;

/// Beside [`UDP`]: epoll sets may watch it.
pub(in crate::fdtable) const IN_EPOLL_SET: u64 = 1 << 14;

/// Beside [`ADOPTED`]: a UDP socket.
pub(in crate::fdtable) const ADOPTED_UDP: u64 = 1 << 2;

/// Beside [`CANDIDATE`]: a thread may be inside of a receive that the kernel makes for it, and
/// would miss what comes on a ring. A signal handler that uses the connection leaves it behind.
pub(in crate::fdtable) const IN_KERNEL: u64 = 1 << 14;

/// Beside [`EMPTY`]: a listening socket whose protocol is known. Beside that and [`CANDIDATE`]:
/// [`TCP`].
pub(in crate::fdtable) const HAS_ACCEPTED: u64 = 1 << 15;

/// It is a TCP socket, not one of another protocol of streams.
pub(in crate::fdtable) const TCP: u64 = 1 << 16;

/// Beside [`CANDIDATE`]: how many calls the kernel has made, and the bytes that they have sent and
/// received, above each other from this bit on.
const N_CALLS_AT: u32 = 17;
const N_CALLS_BITS: u32 = 3;
const SENT_AT: u32 = N_CALLS_AT + N_CALLS_BITS;
const BYTES_BITS: u32 = 22;
const RECEIVED_AT: u32 = SENT_AT + BYTES_BITS;
const _: () = assert!(RECEIVED_AT + BYTES_BITS <= 64);

impl Word {
    /// How many calls the kernel has made.
    pub(in crate::fdtable) fn n_first_calls(self) -> u64 {
        self.field(N_CALLS_AT, N_CALLS_BITS)
    }

    /// Bytes that these calls have sent and received.
    pub(in crate::fdtable) fn first_bytes(self) -> (u64, u64) {
        (self.field(SENT_AT, BYTES_BITS), self.field(RECEIVED_AT, BYTES_BITS))
    }

    /// With one call more, which has sent `n` bytes. `None` if there is no room for the number.
    #[inline]
    pub(in crate::fdtable) fn with_sent(self, n: usize) -> Option<Self> {
        self.plus(SENT_AT, BYTES_BITS, n as u64)?.plus(N_CALLS_AT, N_CALLS_BITS, 1)
    }

    /// As [`Self::with_sent`], of bytes received.
    pub(in crate::fdtable) fn with_received(self, n: usize) -> Option<Self> {
        self.plus(RECEIVED_AT, BYTES_BITS, n as u64)?.plus(N_CALLS_AT, N_CALLS_BITS, 1)
    }

    fn field(self, at: u32, bits: u32) -> u64 {
        self.0 >> at & ((1 << bits) - 1)
    }

    fn plus(self, at: u32, bits: u32, n: u64) -> Option<Self> {
        let sum = self.field(at, bits).checked_add(n).filter(|sum| *sum < 1 << bits)?;
        let others = self.0 & !(((1 << bits) - 1) << at);
        Some(Self(others | sum << at))
    }

    pub(in crate::fdtable) const NOTHING: Self = Self(0);

    pub(in crate::fdtable) fn kind(self) -> u64 {
        self.0 & KIND
    }

    pub(in crate::fdtable) fn of_slot(key: Key) -> Self {
        Self(ADOPTED | u64::from(key.index) << 8 | u64::from(key.generation) << 32)
    }

    pub(in crate::fdtable) fn key(self) -> Option<Key> {
        #[expect(clippy::cast_possible_truncation, reason = "24 bits are meant")]
        let index = (self.0 >> 8) as u32 & 0xff_ffff;
        let generation = (self.0 >> 32) as u32;
        (self.kind() == ADOPTED).then_some(Key { index, generation })
    }

    /// Whether it is a UDP socket, adopted or not.
    pub(in crate::fdtable) fn is_datagram(self) -> bool {
        let is_adopted_udp = self.kind() == ADOPTED && self.0 & ADOPTED_UDP != 0;
        is_adopted_udp || self.kind() != ADOPTED && self.0 & UDP != 0
    }

    pub(in crate::fdtable) fn with_kind(self, kind: u64) -> Self {
        Self(self.0 & !(KIND | CONNECTING) | kind)
    }

    pub(in crate::fdtable) fn with_reason(self, reason: FallbackReason) -> Self {
        Self(self.0 & !(0xff << 4) | u64::from(reason as u8) << 4)
    }

    #[inline]
    pub(in crate::fdtable) fn reason(self) -> FallbackReason {
        // No other reason is ever stored.
        [
            FallbackReason::Epoll,
            FallbackReason::Fork,
            FallbackReason::Stdio,
            FallbackReason::StandardStream,
            FallbackReason::Option,
            FallbackReason::Passed,
            FallbackReason::IoUring,
            FallbackReason::Sandbox,
            FallbackReason::Aio,
            FallbackReason::DeepBinding,
        ]
        .into_iter()
        .find(|&reason| reason as u64 == self.0 >> 4 & 0xff)
        .unwrap_or(FallbackReason::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_calls_and_bytes_beside_its_flags() {
        let word = Word(CANDIDATE | ACCEPTED | TCP);
        let most = (1 << BYTES_BITS) - 1;
        let counted = word.with_sent(3).and_then(|w| w.with_received(most)).unwrap();
        assert_eq!((counted.n_first_calls(), counted.first_bytes()), (2, (3, most as u64)));
        assert_eq!(counted.0 & ((1 << N_CALLS_AT) - 1), word.0);
        assert!(counted.with_received(1).is_none(), "there is no room for the number");
        assert_eq!(counted.with_sent(4).map(Word::first_bytes), Some((7, most as u64)));
    }
}
