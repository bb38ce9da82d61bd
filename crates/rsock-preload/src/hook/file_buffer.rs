//! Buffers for a file's bytes on their way to a stream.

use rsock_verbs::mutex::try_lock;
use std::sync::Mutex;

/// Room on the stack. A thread's stack may be small.
const SMALL: usize = 16 * 1024;
/// Room in the buffer that threads share. PERF: `iperf3 -Z` sent at 1.69 of kernel TCP, and
/// at 1.11 through 16 KiB of the stack (medians of seven by turns): fewer calls read the file, and
/// the buffer still fits in a CPU's cache.
const LARGE: usize = 64 * 1024;
/// Bytes of a page of the file cache.
const PAGE: u64 = 4096;

/// A buffer that begins with a page.
#[repr(align(4096))]
struct Buffer<const LEN: usize>([u8; LEN]);

/// A buffer that one thread at a time uses. No thread waits for it, so that a signal handler may
/// ask for it. A child that is forked while another thread uses the buffer never gets it, nor does
/// a process whose signal handler left such a call by `longjmp`: they use their stacks.
static SHARED: Mutex<Buffer<LARGE>> = Mutex::new(Buffer([0; LARGE]));

/// Calls `f` with a buffer through which `len` bytes are to go, in several parts if it is smaller.
/// The buffer begins with a page.
pub(super) fn with_buffer<T>(len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    match (len > SMALL).then(|| try_lock(&SHARED)).flatten() {
        Some(mut shared) => f(&mut shared.0),
        None => f(&mut Buffer([0; SMALL]).0),
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

    #[test]
    fn a_second_user_gets_another_buffer_and_the_next_one_the_first_again() {
        let start = |buffer: &mut [u8]| (buffer.as_ptr(), buffer.len());
        let ((first, len), (second, small)) =
            with_buffer(LARGE, |buffer| (start(buffer), with_buffer(LARGE, start)));
        assert_eq!((len, small), (LARGE, SMALL));
        assert_ne!(first, second);
        assert_eq!(with_buffer(LARGE, start), (first, LARGE));
        assert_eq!(with_buffer(SMALL, start).1, SMALL);
    }

    #[test]
    fn bytes_of_a_file_lie_as_far_into_a_page_as_in_the_file() {
        for len in [1, LARGE] {
            assert_eq!(with_buffer(len, |buffer| buffer.as_ptr().addr() % 4096), 0, "{len}");
        }
        let starts = [0, 1, 4095, 4096, 4097, u64::MAX];
        assert_eq!(starts.map(place_in_page), [0, 1, 4095, 0, 1, 4095]);
    }
}
