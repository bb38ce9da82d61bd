//! Buffers for a file's bytes on their way to a stream.
//!
//! None lies on the stack: a thread of `PTHREAD_STACK_MIN` has 16 KiB in all.

use crate::mapped::Mapped;
use rsock_verbs::mutex::try_lock;
use std::io;
use std::sync::Mutex;

/// Bytes of a buffer. PERF: `iperf3 -Z` sent at 1.69 of kernel TCP, and at 1.11 through 16 KiB
/// (medians of seven by turns): fewer calls read the file, and the buffer still fits in a CPU's
/// cache.
const LEN: usize = 64 * 1024;
/// Bytes of a page of the file cache.
const PAGE: u64 = 4096;
/// Buffers that threads share. Their pages take no memory before they are used.
const N_SHARED: usize = 4;

/// A buffer that begins with a page.
#[repr(align(4096))]
struct Buffer([u8; LEN]);

/// Buffers that one thread at a time uses. No thread waits for one, so that a signal handler may
/// ask for it. A child that is forked while another thread uses a buffer never gets that one, nor
/// does a process whose signal handler left such a call by `longjmp`.
static SHARED: [Mutex<Buffer>; N_SHARED] = [const { Mutex::new(Buffer([0; LEN])) }; N_SHARED];

/// Calls `f` with a buffer of at least two pages, which begins with a page.
///
/// # Errors
/// Those of `f`; `ENOMEM` if all buffers are in use and there is no memory for another.
pub(super) fn with_buffer<T>(f: impl FnOnce(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
    match SHARED.iter().find_map(try_lock) {
        Some(mut shared) => f(&mut shared.0),
        None => f(&mut Mapped::new(LEN)?),
    }
}

/// Where in a buffer bytes of a file from `start` on are best put: as far into a page as they are
/// in the file cache.
///
/// PERF: the kernel copies them with the processor's string instruction. On a Zen 3 that copied 64
/// KiB at 170 Gbit/s to the same place in a page, at 130 to 150 to one between two lines, and at 13
/// to one 5, 8 or 16 bytes further on (glibc's bug 30994).
pub(super) fn place_in_page(start: u64) -> usize {
    (start % PAGE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    /// The addresses of `depth` buffers that are in use at the same time.
    fn addresses(depth: usize) -> Vec<usize> {
        let nested = |buffer: &mut [u8]| {
            buffer.fill(1);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % 4096), (LEN, 0));
            let mut rest = if depth > 1 { addresses(depth - 1) } else { Vec::new() };
            rest.push(buffer.as_ptr().addr());
            Ok(rest)
        };
        with_buffer(nested).expect("memory")
    }

    #[test]
    fn buffers_in_use_are_apart_and_those_that_threads_share_are_used_again() {
        let mut all = addresses(N_SHARED + 2);
        let is_shared =
            |at: &usize| SHARED.as_ptr_range().contains(&ptr::with_exposed_provenance(*at));
        assert_eq!(all.iter().filter(|at| is_shared(at)).count(), N_SHARED);
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= LEN), "{all:x?}");
        assert!(addresses(N_SHARED).iter().all(is_shared));
    }

    #[test]
    fn bytes_of_a_file_lie_as_far_into_a_page_as_in_the_file() {
        let starts = [0, 1, 4095, 4096, 4097, u64::MAX];
        assert_eq!(starts.map(place_in_page), [0, 1, 4095, 0, 1, 4095]);
    }
}
