//! Sizes of the processor's caches.

use std::sync::OnceLock;

/// Bytes of the second-level cache, which most processors have for each core. `None` where the C
/// library does not know it.
///
/// # Source
/// sysconf(3), `_SC_LEVEL2_CACHE_SIZE` of the GNU C library.
#[must_use]
pub fn second_level() -> Option<usize> {
    static LEN: OnceLock<Option<usize>> = OnceLock::new();
    *LEN.get_or_init(ask)
}

#[cfg(target_env = "gnu")]
fn ask() -> Option<usize> {
    // SAFETY: the function reads what the processor says, and takes any name.
    let len = unsafe { libc::sysconf(libc::_SC_LEVEL2_CACHE_SIZE) };
    usize::try_from(len).ok().filter(|len| *len != 0)
}

#[cfg(not(target_env = "gnu"))]
fn ask() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_a_cache() {
        if let Some(len) = second_level() {
            assert!((64 << 10..1 << 30).contains(&len) && len.is_multiple_of(1 << 10), "{len}");
        }
    }
}
