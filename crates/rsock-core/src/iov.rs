//! Gather and scatter lists that are processed piece by piece.

use std::io::{IoSlice, IoSliceMut};

/// The part of a gather list that has not been sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest<'a> {
    bufs: &'a [IoSlice<'a>],
    /// Bytes of the first buffer that have been sent.
    skip: usize,
    /// Bytes left in total.
    pub(crate) len: usize,
    /// Whether the call has sent bytes, of the list or before it.
    pub(crate) is_begun: bool,
}

impl<'a> Rest<'a> {
    pub(crate) fn new(bufs: &'a [IoSlice<'a>]) -> Self {
        Self { bufs, skip: 0, len: bufs.iter().map(|b| b.len()).sum(), is_begun: false }
    }

    /// As [`Self::new`], of a call that has sent something before.
    pub(crate) fn of_begun(bufs: &'a [IoSlice<'a>]) -> Self {
        Self { is_begun: true, ..Self::new(bufs) }
    }

    /// Stores the first `want` bytes in `out`, as far as it has room. Returns the pieces and bytes
    /// stored.
    pub(crate) fn pieces(&self, want: usize, out: &mut [IoSlice<'a>]) -> (usize, usize) {
        let (mut n, mut len, mut skip) = (0, 0, self.skip);
        for buf in self.bufs {
            if n == out.len() || len == want {
                break;
            }
            let take = (buf.len() - skip).min(want - len);
            if take != 0 {
                out[n] = IoSlice::new(&buf[skip..skip + take]);
                n += 1;
                len += take;
            }
            skip = 0;
        }
        (n, len)
    }

    /// All that is left as the program's own list, if no buffer of it is partly sent and the kernel
    /// takes that many.
    pub(crate) fn whole(&self) -> Option<&'a [IoSlice<'a>]> {
        (self.skip == 0 && self.bufs.len() <= MAX_KERNEL_PIECES).then_some(self.bufs)
    }

    /// Removes the first `n` bytes.
    pub(crate) fn advance(&mut self, mut n: usize) {
        self.len -= n;
        self.is_begun |= n != 0;
        while let Some(first) = self.bufs.first() {
            let left = first.len() - self.skip;
            if n < left {
                self.skip += n;
                return;
            }
            n -= left;
            self.skip = 0;
            self.bufs = &self.bufs[1..];
        }
    }
}

/// Pieces that the kernel takes in one call (`UIO_MAXIOV`).
pub(crate) const MAX_KERNEL_PIECES: usize = 1024;

/// Calls `f` with the part of `bufs` that begins `skip` bytes in and is at most `limit` bytes long.
/// At most sixteen buffers are passed: a shorter transfer is always allowed.
pub(crate) fn with_tail<R>(
    bufs: &mut [IoSliceMut<'_>],
    skip: usize,
    limit: usize,
    f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
) -> R {
    let mut out: [IoSliceMut<'_>; MAX_PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let (mut n, mut skip, mut left) = (0, skip, limit);
    for buf in bufs.iter_mut() {
        if n == MAX_PIECES || left == 0 {
            break;
        }
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let take = (buf.len() - skip).min(left);
        out[n] = IoSliceMut::new(&mut buf[skip..skip + take]);
        left -= take;
        n += 1;
        skip = 0;
    }
    f(&mut out[..n])
}

/// Calls `f` with all of `bufs` but the bytes from `from` to `to`. At most sixteen buffers are
/// passed: a shorter transfer is always allowed.
pub(crate) fn with_gap<R>(
    bufs: &mut [IoSliceMut<'_>],
    from: usize,
    to: usize,
    f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
) -> R {
    let mut out: [IoSliceMut<'_>; MAX_PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let (mut n, mut at) = (0, 0);
    for buf in bufs.iter_mut() {
        let len = buf.len();
        let first = from.saturating_sub(at).min(len);
        let second = to.saturating_sub(at).min(len);
        at += len;
        let (head, tail) = buf.split_at_mut(second);
        for part in [&mut head[..first], tail] {
            if !part.is_empty() && n < MAX_PIECES {
                out[n] = IoSliceMut::new(part);
                n += 1;
            }
        }
    }
    f(&mut out[..n])
}

/// Most pieces passed at once.
const MAX_PIECES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_advance_walk_the_list_once() {
        let (a, b, c) = ([1u8, 2, 3], [], [4u8, 5]);
        let bufs = [IoSlice::new(&a), IoSlice::new(&b), IoSlice::new(&c)];
        let mut rest = Rest::new(&bufs);
        let mut seen = Vec::new();
        while rest.len != 0 {
            let mut out = [IoSlice::new(&[]); 2];
            let (n, len) = rest.pieces(2, &mut out);
            out[..n].iter().for_each(|p| seen.extend_from_slice(p));
            rest.advance(len);
        }
        assert_eq!(seen, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_gap_leaves_out_what_lies_in_it() {
        for (from, to) in [(0, 0), (0, 2), (2, 3), (2, 5), (3, 7), (7, 7), (1, 1)] {
            let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 4]);
            let mut bufs = [&mut a[..], &mut b, &mut c].map(IoSliceMut::new);
            with_gap(&mut bufs, from, to, |parts| {
                parts.iter_mut().for_each(|part| part.fill(1));
                assert_eq!(parts.iter().map(|p| p.len()).sum::<usize>(), 7 - (to - from));
            });
            let all: Vec<u8> = [&a[..], &c].concat();
            let wanted: Vec<u8> = (0..7).map(|i| u8::from(i < from || i >= to)).collect();
            assert_eq!(all, wanted, "{from}..{to}");
        }
    }

    #[test]
    fn a_tail_skips_and_is_limited() {
        let (mut a, mut b) = ([0u8; 3], [0u8; 4]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        with_tail(&mut bufs, 2, 3, |tail| {
            assert_eq!(tail.iter().map(|t| t.len()).collect::<Vec<_>>(), [1, 2]);
            tail[0][0] = 7;
            tail[1][1] = 8;
        });
        assert_eq!((a, b), ([0, 0, 7], [0, 8, 0, 0]));
    }
}
