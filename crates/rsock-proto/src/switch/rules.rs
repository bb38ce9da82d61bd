//! What the explorer varies: how wide the offsets of the wire are, and, in tests, a mistake.

#[cfg(test)]
use super::mistake::Mistake;

/// The rules that a switch follows. Production code uses [`Wire`] alone.
pub trait Rules: Copy + Eq + std::fmt::Debug + std::hash::Hash + 'static {
    /// Low bits of an offset that [`Up`](super::Message::Up) names.
    const OFFSET_BITS: u32;

    /// Whether the rules contain `mistake`.
    #[cfg(test)]
    fn has(_mistake: Mistake) -> bool {
        false
    }
}

/// The rules as the wire has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wire;

impl Rules for Wire {
    const OFFSET_BITS: u32 = 52;
}

/// Whether the rules contain the mistake: never, and known to the compiler, outside of tests.
macro_rules! is_mistaken {
    ($rules:ty, $mistake:ident) => {{
        #[cfg(test)]
        let is_mistaken = <$rules>::has($crate::switch::mistake::Mistake::$mistake);
        #[cfg(not(test))]
        let is_mistaken = false;
        is_mistaken
    }};
}

pub(super) use is_mistaken;

/// The absolute offset whose low bits are `named`, if it lies a plausible way ahead of `at`.
///
/// The kernels' queues at both ends of a connection hold at most 4 GiB (`SO_SNDBUF` and `SO_RCVBUF`
/// are 31 bits wide), far less than the 2 PiB at which two offsets could be confused.
pub(super) fn resolve<R: Rules>(named: u64, at: u64) -> Option<u64> {
    let mask = (1 << R::OFFSET_BITS) - 1;
    if is_mistaken!(R, OffsetNotUnwrapped) {
        return Some(at & !mask | named & mask);
    }
    let ahead = named.wrapping_sub(at) & mask;
    (ahead <= mask / 2).then(|| at.wrapping_add(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_resolve_ahead_and_never_behind() {
        const END: u64 = 1 << Wire::OFFSET_BITS;
        assert_eq!(resolve::<Wire>(5, 5), Some(5));
        assert_eq!(resolve::<Wire>(0, END - 1), Some(END));
        assert_eq!(resolve::<Wire>(4, 5), None);
        assert_eq!(resolve::<Wire>(7, 3 * END + 2), Some(3 * END + 7));
    }

    /// As far as two kernels' queues can ever be ahead of a reader, across 32 bits as well.
    #[test]
    fn offsets_far_ahead_of_the_reader_are_exact() {
        for at in [1000, u64::from(u32::MAX) - 5, 1 << 51] {
            for ahead in [0, 48 << 20, (64 << 20) + 1, 4 << 30] {
                let named = (at + ahead) & ((1 << Wire::OFFSET_BITS) - 1);
                assert_eq!(resolve::<Wire>(named, at), Some(at + ahead));
            }
        }
    }
}
