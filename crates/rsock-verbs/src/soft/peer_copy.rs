//! Copying into a peer's memory.
//!
//! Small copies go through the caches. Large ones bypass them where the processor can: the reader
//! is on another CPU, and a line that was written with an ordinary store has to be fetched for
//! ownership first and handed over later. Streaming stores are not ordered by Release, so a store
//! fence follows them.

use crate::fault;
use crate::sync::slot::INLINE;
use std::sync::atomic::{AtomicU8, Ordering};

/// Copy for a reader on another CPU: streaming from `stream_from` bytes on. False if the source is
/// not there; then any part of it may have been copied.
///
/// # Safety
/// As [`crate::copy::plain`]; the source may be unmapped, as in [`fault::copy`].
#[inline]
#[must_use]
pub(super) unsafe fn to_peer(src: *const u8, dst: *mut u8, len: usize, stream_from: usize) -> bool {
    unsafe extern "C" fn streaming(src: *const u8, dst: *mut u8, len: usize, _: usize) {
        // SAFETY: the promise of the caller of `to_peer`.
        unsafe { stream(src, dst, len) };
    }
    if len < stream_from {
        // SAFETY: the caller's promise.
        return unsafe { fault::copy(src, dst, len) };
    }
    if fault::is_armed() {
        // SAFETY: the caller's promise; streaming stores own nothing, and none is published after a
        // fault.
        return unsafe { fault::attempt(streaming, src, dst, len, 0) };
    }
    // SAFETY: the caller's promise.
    unsafe { stream(src, dst, len) };
    true
}

/// As [`to_peer`], and the last byte is stored after all others: a reader that spins on it finds
/// the rest in place. False as [`to_peer`], and the last byte is as it was.
///
/// # Safety
/// As [`to_peer`]; `len` is not 0.
#[inline]
#[must_use]
pub(super) unsafe fn to_peer_last(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    stream_from: usize,
) -> bool {
    // SAFETY: `len` is not 0.
    let from = unsafe { src.add(len - 1) };
    // SAFETY: `len` is not 0.
    let to = unsafe { dst.add(len - 1) };
    let mut byte = 0;
    // SAFETY: the last byte of the source, if it is there.
    let is_there = unsafe { fault::copy(from, &raw mut byte, 1) };
    // SAFETY: the caller's promise.
    if !is_there || !unsafe { to_peer(src, dst, len - 1, stream_from) } {
        return false;
    }
    // SAFETY: an atomic over one writable byte, for the time of this store.
    let last = unsafe { AtomicU8::from_ptr(to) };
    // SYNC(last-byte): the rest comes before. Pairs with the reader's Acquire of this byte.
    last.store(byte, Ordering::Release);
    true
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{fence, stream_lines};

/// Ordinary copies, where the architecture has no streaming ones.
#[cfg(not(target_arch = "x86_64"))]
pub(super) use crate::copy::plain as stream_lines;
#[cfg(not(target_arch = "x86_64"))]
use crate::copy::plain as stream;
#[cfg(target_arch = "x86_64")]
use x86::stream;

/// Streaming stores need no fence of their own where there are none.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fence() {}

/// Begins to fetch the line of `place`, which the peer's CPU may have, for a later store.
#[inline(always)]
pub(super) fn prefetch_to_write<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: changes nothing but caches, and does nothing at an address that is not mapped.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::prefetch_to_write;
    use crate::copy::plain;
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512,
    };

    /// Streaming copy: the first bytes up to a line boundary and the last ones behind another with
    /// ordinary stores, the lines between with the widest streaming stores that the processor has.
    ///
    /// PERF: the line of the last bytes comes from the other CPU while the others are streamed, or
    /// is streamed as a whole: netperf with 1 KiB on a Zen 4 whose CPUs share no cache has 29
    /// Gbit/s, and with an ordinary store into that line at the end 25.
    ///
    /// # Safety
    /// As [`crate::copy::plain`].
    pub(in crate::soft) unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
        let head = dst.align_offset(64);
        if len < head + 128 {
            // SAFETY: the caller's promise.
            return unsafe { plain(src, dst, len) };
        }
        let body = (len - head) / 64 * 64;
        let done = head + body;
        if done < len {
            prefetch_to_write(dst.wrapping_add(done));
        }
        // SAFETY: `head <= len`, by the check.
        unsafe { plain(src, dst, head) };
        // SAFETY: `head <= len`.
        let from = unsafe { src.add(head) };
        // SAFETY: `head <= len`.
        let to = unsafe { dst.add(head) };
        // SAFETY: within the caller's spans; `to` is 64-aligned, `body` a multiple of 64.
        unsafe { stream_lines(from, to, body) };
        fence();
        // SAFETY: `done <= len`.
        let from = unsafe { src.add(done) };
        // SAFETY: `done <= len`.
        let to = unsafe { dst.add(done) };
        // SAFETY: the rest of the caller's spans.
        unsafe { plain(from, to, len - done) };
    }

    /// Copies whole lines with the widest streaming stores that the processor has, which no later
    /// store is ordered after before [`fence`].
    ///
    /// # Safety
    /// As [`crate::copy::plain`]; `dst` is 64-aligned, and `len` a multiple of 64.
    #[inline]
    pub(in crate::soft) unsafe fn stream_lines(src: *const u8, dst: *mut u8, len: usize) {
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512; the rest is the caller's promise.
            unsafe { stream_512(src, dst, len) };
        } else if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2; the rest is the caller's promise.
            unsafe { stream_256(src, dst, len) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { plain(src, dst, len) };
        }
    }

    /// Orders what [`stream_lines`] has stored before every later store.
    #[inline(always)]
    pub(in crate::soft) fn fence() {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// As [`crate::copy::plain`]; `dst` is 64-aligned, `len` a multiple of 64, and the processor
    /// has AVX-512F.
    #[target_feature(enable = "avx512f")]
    unsafe fn stream_512(src: *const u8, dst: *mut u8, len: usize) {
        for i in (0..len).step_by(64) {
            // SAFETY: `i + 64 <= len`.
            let from = unsafe { src.add(i) };
            // SAFETY: `i + 64 <= len`.
            let to = unsafe { dst.add(i) };
            // SAFETY: 64 readable bytes; the load needs no alignment.
            let line: __m512i = unsafe { _mm512_loadu_si512(from.cast()) };
            // SAFETY: 64 writable, aligned bytes.
            unsafe { _mm512_stream_si512(to.cast(), line) };
        }
    }

    /// # Safety
    /// As [`crate::copy::plain`]; `dst` is 64-aligned, `len` a multiple of 64, and the processor
    /// has AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn stream_256(src: *const u8, dst: *mut u8, len: usize) {
        for i in (0..len).step_by(32) {
            // SAFETY: `i + 32 <= len`.
            let from = unsafe { src.add(i) };
            // SAFETY: `i + 32 <= len`.
            let to = unsafe { dst.add(i) };
            // SAFETY: 32 readable bytes; the load needs no alignment.
            let half: __m256i = unsafe { _mm256_loadu_si256(from.cast()) };
            // SAFETY: 32 writable, aligned bytes.
            unsafe { _mm256_stream_si256(to.cast(), half) };
        }
    }

    #[cfg(test)]
    pub(super) fn each(f: impl Fn(&str, unsafe fn(*const u8, *mut u8, usize))) {
        f("stream", stream);
        if std::is_x86_feature_detected!("avx2") {
            f("avx2", stream_256);
        }
        if std::is_x86_feature_detected!("avx512f") {
            f("avx512", stream_512);
        }
    }
}

/// As [`load_small`], of a source that may be unmapped, as in [`fault::copy`]: `None` then.
///
/// # Safety
/// As [`load_small`] but for that.
#[inline(always)]
pub(super) unsafe fn try_load_small(src: *const u8, len: usize) -> Option<[u64; INLINE / 8]> {
    if !fault::is_armed() {
        // SAFETY: the caller's promise.
        return Some(unsafe { load_small(src, len) });
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    return unsafe { fault::load(src, len) };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut bytes = [0u8; INLINE];
        // SAFETY: the caller's promise, and room for so many bytes.
        let is_there = unsafe { fault::copy(src, bytes.as_mut_ptr(), len) };
        // SAFETY: the bytes are local to this function.
        is_there.then(|| unsafe { load_small(bytes.as_ptr(), INLINE) })
    }
}

/// Loads `len <= 48` bytes into words, the rest zero, without a call and without storing them on
/// the way.
///
/// # Safety
/// `len` bytes are readable at `src`.
#[inline(always)]
pub(super) unsafe fn load_small(src: *const u8, len: usize) -> [u64; INLINE / 8] {
    debug_assert!(len <= INLINE);
    let mut words = [0; INLINE / 8];
    if len >= 8 {
        let (full, rest) = (len / 8, len % 8);
        for (i, word) in words.iter_mut().enumerate().take(full) {
            // SAFETY: `i * 8 + 8 <= len`.
            let at = unsafe { src.add(i * 8) };
            // SAFETY: eight readable bytes.
            *word = u64::from_le(unsafe { at.cast::<u64>().read_unaligned() });
        }
        if rest != 0 {
            // SAFETY: `len >= 8`.
            let at = unsafe { src.add(len - 8) };
            // SAFETY: the last eight bytes.
            let last = u64::from_le(unsafe { at.cast::<u64>().read_unaligned() });
            words[full] = last >> (64 - 8 * rest);
        }
    } else if len >= 4 {
        // SAFETY: four readable bytes.
        let low = u32::from_le(unsafe { src.cast::<u32>().read_unaligned() });
        // SAFETY: `len >= 4`.
        let at = unsafe { src.add(len - 4) };
        // SAFETY: the last four bytes.
        let high = u32::from_le(unsafe { at.cast::<u32>().read_unaligned() });
        words[0] = u64::from(low) | u64::from(high) << (8 * (len - 4));
    } else {
        for i in 0..len {
            // SAFETY: `i < len`.
            let at = unsafe { src.add(i) };
            // SAFETY: a readable byte.
            words[0] |= u64::from(unsafe { at.read() }) << (8 * i);
        }
    }
    words
}

/// Stores the first `len <= 48` bytes of `words`, as [`load_small`] made them.
///
/// # Safety
/// `len` bytes are writable at `dst`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "low parts are meant")]
pub(super) unsafe fn store_small(words: &[u64; INLINE / 8], dst: *mut u8, len: usize) {
    debug_assert!(len <= INLINE);
    if len >= 8 {
        let (full, rest) = (len / 8, len % 8);
        for (i, word) in words.iter().enumerate().take(full) {
            // SAFETY: `i * 8 + 8 <= len`.
            let at = unsafe { dst.add(i * 8) };
            // SAFETY: eight writable bytes.
            unsafe { at.cast::<u64>().write_unaligned(word.to_le()) };
        }
        if rest != 0 {
            let last = words[full] << (64 - 8 * rest) | words[full - 1] >> (8 * rest);
            // SAFETY: `len >= 8`.
            let at = unsafe { dst.add(len - 8) };
            // SAFETY: the last eight bytes.
            unsafe { at.cast::<u64>().write_unaligned(last.to_le()) };
        }
    } else if len >= 4 {
        // SAFETY: four writable bytes.
        unsafe { dst.cast::<u32>().write_unaligned((words[0] as u32).to_le()) };
        // SAFETY: `len >= 4`.
        let at = unsafe { dst.add(len - 4) };
        let last = (words[0] >> (8 * (len - 4))) as u32;
        // SAFETY: the last four bytes.
        unsafe { at.cast::<u32>().write_unaligned(last.to_le()) };
    } else {
        for i in 0..len {
            // SAFETY: `i < len`.
            let at = unsafe { dst.add(i) };
            // SAFETY: a writable byte.
            unsafe { at.write((words[0] >> (8 * i)) as u8) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::cast_possible_truncation, reason = "test patterns")]
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| ((i * 7 + i / 251) % 256) as u8 | 1).collect()
    }

    #[test]
    fn small_payloads_of_every_length_survive() {
        let src = pattern(64);
        for len in 0..=INLINE {
            for shift in 0..8 {
                // SAFETY: `shift + len <= 64`.
                let words = unsafe { load_small(src[shift..shift + len].as_ptr(), len) };
                let mut dst = [0u8; 80];
                // SAFETY: `9 + len <= 80`.
                unsafe { store_small(&words, dst[9..].as_mut_ptr(), len) };
                assert_eq!(&dst[9..9 + len], &src[shift..shift + len], "{len} bytes");
                assert!(dst[..9].iter().chain(&dst[9 + len..]).all(|b| *b == 0), "{len} bytes");
            }
        }
    }

    #[test]
    fn streams_copy_exactly_their_span() {
        let src = pattern(9000);
        for len in (0..400).chain([4095, 4096, 4097, 8191]) {
            for (from, to) in [(0, 0), (1, 63), (5, 1), (64, 64), (17, 40)] {
                let mut dst = vec![0u8; 9000];
                // SAFETY: both spans end before 9000.
                unsafe { stream(src[from..].as_ptr(), dst[to..].as_mut_ptr(), len) };
                assert_eq!(&dst[to..to + len], &src[from..from + len]);
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_kernel_of_this_processor_copies_whole_lines() {
        #[repr(align(64))]
        struct Lines([u8; 4096]);
        let src = pattern(4096 + 3);
        x86::each(|name, kernel| {
            let mut dst = Lines([0; 4096]);
            // SAFETY: the source has 4096 bytes from 3, the target is aligned and as long.
            unsafe { kernel(src[3..].as_ptr(), dst.0.as_mut_ptr(), 4096) };
            assert_eq!(dst.0, src[3..], "{name}");
        });
    }
}
