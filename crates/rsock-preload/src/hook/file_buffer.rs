//! Buffers for a file's bytes on their way to a stream.

use crate::guard;
use std::sync::Mutex;

/// Room on the stack. A thread's stack may be small.
const SMALL: usize = 16 * 1024;
/// Room in the buffer that threads share. PERF: `iperf3 -Z` sent at 1.69 of kernel TCP, and
/// at 1.11 through 16 KiB of the stack (medians of seven by turns): fewer calls read the file, and
/// the buffer still fits in a CPU's cache.
const LARGE: usize = 64 * 1024;

/// A buffer that one thread at a time uses. No thread waits for it, so that a signal handler may
/// ask for it. A child that is forked while another thread uses the buffer never gets it, nor does
/// a process whose signal handler left such a call by `longjmp`: they use their stacks.
static SHARED: Mutex<[u8; LARGE]> = Mutex::new([0; LARGE]);

/// Calls `f` with a buffer through which `len` bytes are to go, in several parts if it is smaller.
pub(super) fn with_buffer<T>(len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    match (len > SMALL).then(|| guard::try_lock(&SHARED)).flatten() {
        Some(mut shared) => f(&mut *shared),
        None => f(&mut [0; SMALL]),
    }
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
}
