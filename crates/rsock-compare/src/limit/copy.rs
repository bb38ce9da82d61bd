//! Copy kernels, of which the limit takes the fastest: an ordinary copy, and stores that bypass the
//! caches. Processors other than x86-64 have only the ordinary one here.

use std::ptr::{self, NonNull};

/// A way to copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    /// `memcpy`.
    Plain,
    /// Streaming stores of 32 bytes (AVX2).
    #[cfg(target_arch = "x86_64")]
    Stream256,
    /// Streaming stores of 64 bytes (AVX-512).
    #[cfg(target_arch = "x86_64")]
    Stream512,
}

impl Kernel {
    /// The kernels that this processor can run.
    pub(super) fn available() -> Vec<Self> {
        let mut kernels = vec![Self::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                kernels.push(Self::Stream256);
            }
            if is_x86_feature_detected!("avx512f") {
                kernels.push(Self::Stream512);
            }
        }
        kernels
    }

    /// Copies all of `source`, a multiple of 64 bytes long for the streaming kernels. A thread that
    /// sees a later Release store sees the bytes too.
    ///
    /// # Safety
    /// `target` has room for `source` and is aligned to 64 bytes, no other thread touches it
    /// meanwhile, and the kernel came from [`Self::available`].
    pub(super) unsafe fn copy(self, source: &[u8], target: NonNull<u8>) {
        match self {
            Self::Plain => {
                // SAFETY: the caller's promise.
                unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), source.len()) }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Stream256 => {
                // SAFETY: the caller's promise; the processor has AVX2.
                unsafe { stream_256(source, target) }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Stream512 => {
                // SAFETY: the caller's promise; the processor has AVX-512F.
                unsafe { stream_512(source, target) }
            }
        }
    }
}

/// # Safety
/// As [`Kernel::copy`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_256(source: &[u8], target: NonNull<u8>) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    for (index, part) in source.chunks_exact(size_of::<__m256i>()).enumerate() {
        // SAFETY: `part` is 32 readable bytes; the load needs no alignment.
        let value = unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
        // SAFETY: the target is as long as the source.
        let place = unsafe { target.cast::<__m256i>().add(index) };
        // SAFETY: aligned and writable by the caller's promise.
        unsafe { _mm256_stream_si256(place.as_ptr(), value) };
    }
    // Streaming stores are not ordered by a Release store.
    _mm_sfence();
}

/// # Safety
/// As [`Kernel::copy`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_512(source: &[u8], target: NonNull<u8>) {
    use std::arch::x86_64::{__m512i, _mm_sfence, _mm512_loadu_si512, _mm512_stream_si512};
    for (index, part) in source.chunks_exact(size_of::<__m512i>()).enumerate() {
        // SAFETY: `part` is 64 readable bytes; the load needs no alignment.
        let value = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
        // SAFETY: the target is as long as the source.
        let place = unsafe { target.cast::<__m512i>().add(index) };
        // SAFETY: aligned and writable by the caller's promise.
        unsafe { _mm512_stream_si512(place.as_ptr(), value) };
    }
    // Streaming stores are not ordered by a Release store.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([u8; 4096]);

    #[test]
    fn every_kernel_copies_every_byte() {
        let source: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
        for kernel in Kernel::available() {
            let mut target = Aligned([0; 4096]);
            // SAFETY: as long as the source, aligned, ours, and the kernel is available.
            unsafe { kernel.copy(&source, NonNull::from(&mut target.0).cast()) };
            assert_eq!(target.0[..], source[..], "{kernel:?}");
        }
    }
}
