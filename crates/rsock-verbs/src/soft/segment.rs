//! Segments: sealed memory files, made here or received from a peer, and their mappings.
//!
//! Invariant: a [`Mapping`] is backed by a file that cannot shrink, so an access inside its bounds
//! never faults because the file ended, whatever the peer does.

use super::layout::{DATA, PAGE, PeerWritable};
use crate::error::Error;
use crate::high_fd::verb;
use crate::sparse;
use crate::untrusted::UntrustedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::Advice;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// Sizes tried for a new segment, in bytes. Sparse: pages are allocated when they are touched. The
/// first has room for the buffers of ten thousand streams.
const SIZES: [u64; 4] = [32 << 30, 4 << 30, 1 << 30, 256 << 20];
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);
/// `statfs` type of memory files; huge page files have another.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A new segment: sealed file and mapping.
pub(super) fn create() -> Result<(OwnedFd, Mapping), Error> {
    let mut last = Error::Exhausted("address space");
    for size in SIZES {
        match create_of(size) {
            Ok(made) => return Ok(made),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn create_of(size: u64) -> Result<(OwnedFd, Mapping), Error> {
    // Beyond the limit the kernel sends SIGXFSZ, which would end the program.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < size) {
        return Err(Error::Exhausted("file size limit"));
    }
    let fd =
        rustix::fs::memfd_create(c"rsock-segment", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(verb("memfd_create"))?;
    rustix::fs::ftruncate(&fd, size).map_err(verb("ftruncate"))?;
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(verb("fcntl(F_ADD_SEALS)"))?;
    let mapping = Mapping::new(&fd, size)?;
    Ok((fd, mapping))
}

/// Maps a segment received from a peer, after checking that it is one: a memory file that can
/// neither shrink nor grow and has the size that the peer claims. The seals are checked first: a
/// file that has seals is not on a file system (FUSE) that could delay later calls.
pub(super) fn adopt(fd: &UntrustedFd, size: u64) -> Result<Mapping, Error> {
    let not = Error::PeerViolation;
    let seals = fd.seals().ok_or(not("segment cannot be sealed"))?;
    let stat = rustix::fs::fstat(fd).map_err(|_| not("segment is no file"))?;
    let fs = rustix::fs::fstatfs(fd).map_err(|_| not("segment has no file system"))?;
    #[expect(clippy::cast_sign_loss, reason = "compared bit for bit")]
    if fs.f_type as u64 != TMPFS_MAGIC {
        return Err(not("segment is no memory file"));
    }
    if !seals.contains(SEALS) {
        return Err(not("segment is not sealed"));
    }
    if u64::try_from(stat.st_size) != Ok(size) || !SIZES.contains(&size) {
        return Err(not("segment has another size"));
    }
    Mapping::new(fd, size)
}

/// A mapped segment.
///
/// # Invariants
/// `base..base + len` is one shared mapping, page aligned, readable and writable, of a file that
/// is at least `len` long and cannot shrink; unmapped once, in `drop`.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: a mapping belongs to the process, not to a thread; access through it is by atomics or by
// raw copies that tolerate foreign writes.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: impl AsFd, len: u64) -> Result<Self, Error> {
        let bytes = usize::try_from(len).map_err(|_| Error::Exhausted("address space"))?;
        if !sparse::has_room(len) {
            return Err(Error::Exhausted("address space"));
        }
        let at = sparse::map(bytes, Some(fd.as_fd())).map_err(verb("mmap"))?;
        let base = NonNull::new(at.cast()).ok_or(Error::Exhausted("address space"))?;
        // INVARIANT: just mapped; callers pass sealed files of this size only. Tables that a peer
        // touches at random should not take a huge page each.
        Ok(Self { base, len })
    }

    /// Virtual address of the first byte, in this process.
    pub(super) fn addr(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether `offset..offset + len` lies inside.
    #[inline(always)]
    pub(super) fn covers(&self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// Pointer to the bytes at `offset`, if `len` of them exist.
    #[inline(always)]
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if !self.covers(offset, len) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "inside a mapping, so it fits")]
        // SAFETY: inside the mapping, by the check.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// `n` values of `T` at `offset`, if they lie inside and are aligned.
    pub(super) fn slice<T: PeerWritable>(&self, offset: u64, n: u64) -> Option<NonNull<T>> {
        let len = (size_of::<T>() as u64).checked_mul(n)?;
        if !offset.is_multiple_of(align_of::<T>() as u64) {
            return None;
        }
        Some(self.bytes(offset, len)?.cast())
    }

    /// A reference to the value at `offset`.
    #[inline(always)]
    pub(super) fn at<T: PeerWritable>(&self, offset: u64) -> Option<&T> {
        let at = self.slice::<T>(offset, 1)?;
        // SAFETY: inside the mapping and aligned, by `slice`; the mapping outlives the borrow of
        // `self`; `T: PeerWritable` means that any content is valid and foreign stores are fine.
        Some(unsafe { at.as_ref() })
    }

    /// Zeroes `len` bytes at `offset`, which nothing uses.
    pub(super) fn clear(&self, offset: u64, len: u64) {
        let Some(at) = self.bytes(offset, len) else { return };
        let Ok(len) = usize::try_from(len) else { return };
        // SAFETY: inside this mapping, by `bytes`. A peer may write them meanwhile, as with any raw
        // copy; no reference to them exists, since nothing uses them.
        unsafe { at.as_ptr().write_bytes(0, len) };
    }

    /// Keeps `len` bytes at `offset`, whole pages, out of the memory of children that this process
    /// forks. False if the kernel does not.
    pub(super) fn hide_from_children(&self, offset: u64, len: u64) -> bool {
        let (at, bytes) = (self.bytes(offset, len), usize::try_from(len));
        let (Some(at), Ok(bytes)) = (at, bytes) else { return false };
        // SAFETY: inside this mapping. A child that has inherited it reaches these pages by no
        // reference: it asks for the owner of the link first.
        unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxDontFork) }.is_ok()
    }

    /// Gives the whole pages inside `offset..offset + len` back: they read as zero after.
    pub(super) fn punch(&self, offset: u64, len: u64) {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= self.len) else { return };
        let (from, to) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        let Some(at) = (from < to).then(|| self.bytes(from, to - from)).flatten() else { return };
        let Ok(bytes) = usize::try_from(to - from) else { return };
        // SAFETY: whole pages inside this shared mapping. The caller gives up their content; only
        // atomics and raw copies refer to it, for which zero is a valid value. Best effort: a
        // refusal only keeps the pages.
        let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxRemove) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Ok(bytes) = usize::try_from(self.len) else { return };
        // SAFETY: this value's mapping, by the invariant; no borrow of it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).finish_non_exhaustive()
    }
}

const _: () = assert!(SIZES[3] > DATA);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_could_shrink_are_refused() {
        let (sealed, mapping) = create().expect("a segment");
        let sealed = UntrustedFd::from(sealed);
        assert!(adopt(&sealed, mapping.len()).is_ok());
        assert!(matches!(adopt(&sealed, mapping.len() / 2), Err(Error::PeerViolation(_))));

        let open = rustix::fs::memfd_create(c"t", MemfdFlags::ALLOW_SEALING).expect("memfd");
        let open = UntrustedFd::from(open);
        rustix::fs::ftruncate(&open, SIZES[3]).expect("truncate");
        assert!(matches!(adopt(&open, SIZES[3]), Err(Error::PeerViolation(_))));
        rustix::fs::fcntl_add_seals(&open, SealFlags::GROW | SealFlags::SEAL).expect("seal");
        assert!(matches!(adopt(&open, SIZES[3]), Err(Error::PeerViolation(_))));

        let file: OwnedFd = std::fs::File::open("/proc/self/exe").expect("open").into();
        assert!(matches!(adopt(&file.into(), SIZES[3]), Err(Error::PeerViolation(_))));
    }

    #[test]
    fn spans_outside_the_mapping_and_unaligned_ones_are_refused() {
        let (_fd, m) = create().expect("a segment");
        assert!(m.bytes(m.len() - 8, 8).is_some());
        for (offset, len) in [(m.len() - 8, 9), (m.len() + 1, 0), (u64::MAX, 2), (8, u64::MAX)] {
            assert!(m.bytes(offset, len).is_none(), "{offset} {len}");
        }
        assert!(m.at::<std::sync::atomic::AtomicU32>(2).is_none());
        assert!(m.slice::<std::sync::atomic::AtomicU32>(0, u64::MAX / 2).is_none());
    }

    #[test]
    fn punched_pages_read_as_zero() {
        let (_fd, m) = create().expect("a segment");
        let at = m.bytes(DATA, 3 * PAGE).expect("room").as_ptr();
        // SAFETY: three pages of the mapping, which nothing else uses.
        unsafe { at.write_bytes(7, 3 * 4096) };
        m.punch(DATA + 1, 3 * PAGE - 2);
        // SAFETY: as above.
        let seen = unsafe { std::slice::from_raw_parts(at, 3 * 4096) };
        assert!(seen[..4096].iter().chain(&seen[2 * 4096..]).all(|b| *b == 7));
        assert!(seen[4096..2 * 4096].iter().all(|b| *b == 0));
    }
}
