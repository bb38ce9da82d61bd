//! Gather and scatter lists that are worked off piece by piece.

use std::io::{IoSlice, IoSliceMut};

/// The part of a gather list that has not been sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest<'a> {
    bufs: &'a [IoSlice<'a>],
    /// Bytes of the first buffer that are done.
    skip: usize,
    /// Bytes left in all.
    pub(crate) len: usize,
}

impl<'a> Rest<'a> {
    pub(crate) fn new(bufs: &'a [IoSlice<'a>]) -> Self {
        Self { bufs, skip: 0, len: bufs.iter().map(|b| b.len()).sum() }
    }

    /// The first `want` bytes, as far as `out` has room: how many pieces and bytes there are.
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

    /// Strikes out the first `n` bytes.
    pub(crate) fn advance(&mut self, mut n: usize) {
        self.len -= n;
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

/// Calls `f` with the part of `bufs` that begins `skip` bytes in and is at most `limit` bytes
/// long. At most sixteen buffers are handed on: a shorter transfer is always allowed.
pub(crate) fn with_tail<R>(
    bufs: &mut [IoSliceMut<'_>],
    skip: usize,
    limit: usize,
    f: impl FnOnce(&mut [IoSliceMut<'_>]) -> R,
) -> R {
    const MOST: usize = 16;
    let mut out: [IoSliceMut<'_>; MOST] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let (mut n, mut skip, mut left) = (0, skip, limit);
    for buf in bufs.iter_mut() {
        if n == MOST || left == 0 {
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
