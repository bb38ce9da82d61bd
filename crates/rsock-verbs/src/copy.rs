//! The ordinary copy: from a program's memory to a ring or a region, and back.
//!
//! C libraries copy from a few KiB on with the processor's string instruction (`rep movsb`) where
//! the processor calls that fast. There are two machines on which it is the slowest way there is:
//! an emulated one, which copies byte by byte, and one with AMD's Zen 3 or 4, if the target begins
//! a few bytes further into its page than the source (glibc's bug 30994). The address of every
//! large block of glibc's `malloc` ends in 0x010, so a program's buffers are such targets. A loop
//! over vector registers is as fast as the string instruction at its best.
//!
//! PERF: a ring of 512 KiB between two CPUs of a Zen 3 that share a cache, Gbit/s with `memcpy` and
//! with this loop, at both ends. Target at 0x000: 93 and 139 at 4 KiB, 104 and 139 at 16 KiB, 130
//! and 150 at 64 KiB; at 0x010: 19 and 136, 21 and 123, 14 and 192.

/// Copies of at least this many bytes use string instructions in glibc; it uses none for shorter
/// ones.
#[cfg(any(test, target_arch = "x86_64"))]
const FROM: usize = 2 << 10;

/// Ordinary copy.
///
/// # Safety
/// `len` bytes are readable at `src` and writable at `dst`; the two do not overlap. Another process
/// or a device may write either meanwhile: the bytes are then torn.
#[inline(always)]
pub(crate) unsafe fn plain(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= FROM {
        // SAFETY: the caller's promise.
        return unsafe { x86::copy(src, dst, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::_mm256_zeroupper;

    /// Bytes per iteration of the loops.
    const STEP: usize = 128;

    /// Bytes of the widest vector.
    const VECTOR: usize = 32;
    const _: () = assert!(super::FROM >= VECTOR + STEP);

    /// # Safety
    /// As for `plain` above; `len` is at least `FROM`.
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // Stores that cross from one line into the next take twice as long.
        let head = dst.align_offset(VECTOR);
        let body = (len - head) / STEP * STEP;
        // SAFETY: a vector of the caller's spans. What lies beyond `head` is copied once more.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, VECTOR) };
        // SAFETY: `head < VECTOR < len`.
        let from = unsafe { src.add(head) };
        // SAFETY: as above.
        let to = unsafe { dst.add(head) };
        if std::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX; whole steps within the caller's spans.
            unsafe { copy_256(from, to, body) };
        } else {
            // SAFETY: every processor has SSE2; whole steps within the caller's spans.
            unsafe { copy_128(from, to, body) };
        }
        let done = head + body;
        // SAFETY: `done <= len`.
        let from = unsafe { src.add(done) };
        // SAFETY: `done <= len`.
        let to = unsafe { dst.add(done) };
        // SAFETY: the rest of the caller's spans.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len - done) };
    }

    // In assembly, because the compiler would recognize a copy and call the C library.

    /// # Safety
    /// As for `plain` above; `len` is a multiple of `STEP` and not 0, and the processor has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy_256(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: `at` runs from 0 to `len` in steps that end there, so every access lies in the
        // caller's spans; the registers and flags that change are named.
        unsafe {
            asm!(
                "2:",
                "vmovdqu {a}, [{src} + {at}]",
                "vmovdqu {b}, [{src} + {at} + 32]",
                "vmovdqu {c}, [{src} + {at} + 64]",
                "vmovdqu {d}, [{src} + {at} + 96]",
                "vmovdqu [{dst} + {at}], {a}",
                "vmovdqu [{dst} + {at} + 32], {b}",
                "vmovdqu [{dst} + {at} + 64], {c}",
                "vmovdqu [{dst} + {at} + 96], {d}",
                "add {at}, 128",
                "cmp {at}, {len}",
                "jne 2b",
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                at = inout(reg) 0usize => _,
                a = out(ymm_reg) _,
                b = out(ymm_reg) _,
                c = out(ymm_reg) _,
                d = out(ymm_reg) _,
                options(nostack),
            );
        }
        // Otherwise the set upper halves would slow down code without AVX.
        _mm256_zeroupper();
    }

    /// # Safety
    /// As for `plain` above; `len` is a multiple of `STEP` and not 0.
    pub(super) unsafe fn copy_128(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: as in `copy_256`, in eight registers of half the size.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{src} + {at}]",
                "movdqu {b}, [{src} + {at} + 16]",
                "movdqu {c}, [{src} + {at} + 32]",
                "movdqu {d}, [{src} + {at} + 48]",
                "movdqu {e}, [{src} + {at} + 64]",
                "movdqu {f}, [{src} + {at} + 80]",
                "movdqu {g}, [{src} + {at} + 96]",
                "movdqu {h}, [{src} + {at} + 112]",
                "movdqu [{dst} + {at}], {a}",
                "movdqu [{dst} + {at} + 16], {b}",
                "movdqu [{dst} + {at} + 32], {c}",
                "movdqu [{dst} + {at} + 48], {d}",
                "movdqu [{dst} + {at} + 64], {e}",
                "movdqu [{dst} + {at} + 80], {f}",
                "movdqu [{dst} + {at} + 96], {g}",
                "movdqu [{dst} + {at} + 112], {h}",
                "add {at}, 128",
                "cmp {at}, {len}",
                "jne 2b",
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                at = inout(reg) 0usize => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                e = out(xmm_reg) _,
                f = out(xmm_reg) _,
                g = out(xmm_reg) _,
                h = out(xmm_reg) _,
                options(nostack),
            );
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

    fn check(name: &str, len: usize, copy: unsafe fn(*const u8, *mut u8, usize)) {
        let src = pattern(len + 64);
        for (from, to) in [(0, 0), (1, 63), (5, 1), (17, 40)] {
            let mut dst = vec![0u8; len + 128];
            // SAFETY: both spans end within their vectors.
            unsafe { copy(src[from..].as_ptr(), dst[to..].as_mut_ptr(), len) };
            assert_eq!(&dst[to..to + len], &src[from..from + len], "{name} {len}");
            let around = dst[..to].iter().chain(&dst[to + len..]);
            assert!(around.copied().all(|b| b == 0), "{name} {len}");
        }
    }

    #[test]
    fn copies_have_exactly_their_span() {
        let edges = [0, 1, FROM - 1, FROM, FROM + 1, FROM + 127, FROM + 128, 65_535, 65_536];
        for len in edges {
            check("plain", len, |src, dst, len| {
                // SAFETY: what `check` promises.
                unsafe { plain(src, dst, len) }
            });
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_loop_of_this_processor_copies_whole_steps() {
        for len in [128, 256, 4096] {
            check("128", len, x86::copy_128);
            if std::is_x86_feature_detected!("avx") {
                check("256", len, |src, dst, len| {
                    // SAFETY: what `check` promises, and the processor has AVX.
                    unsafe { x86::copy_256(src, dst, len) }
                });
            }
        }
    }
}
