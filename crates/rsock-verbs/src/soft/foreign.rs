//! Memory that was not born shared: the system copies into it for the peer (`process_vm_writev`).
//!
//! Whether it does depends on users, namespaces and security modules, so each end tries when the
//! link is made, by reading a word of the other whose value it was told, and leaves the answer in
//! the other's segment. The same word tells that a process id still means the same process.

use super::layout::Header;
use super::segment::Mapping;
use crate::error::Error;
use crate::high_fd::HighFd;
use crate::raw;
use crate::wr::Sge;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Answers in [`Header::foreign`].
const ALLOWED: u32 = 1;
const REFUSED: u32 = 2;

/// The peer's memory outside of its segment.
#[derive(Debug)]
pub(super) struct Foreign {
    pid: u32,
    word_at: u64,
    word: u64,
    /// The process that `pid` meant when we first wrote.
    process: OnceLock<Option<HighFd>>,
}

/// Process that we have opened ourselves to under Yama; [`ANY`] for all of our user's.
static TRACER: AtomicU32 = AtomicU32::new(0);
const ANY: u32 = u32::MAX;

impl Foreign {
    pub(super) fn new(pid: u32, word_at: u64, word: u64) -> Self {
        Self { pid, word_at, word, process: OnceLock::new() }
    }

    /// Tries, and leaves the answer in the peer's segment.
    pub(super) fn probe(&self, theirs: &Mapping) {
        if let Some(header) = theirs.at::<Header>(0) {
            let answer = if self.is_same_process() { ALLOWED } else { REFUSED };
            header.foreign.store(answer, Ordering::Relaxed);
        }
    }

    /// Whether we may open memory of ours to the peer.
    ///
    /// # Errors
    /// `Unsupported` if the system would not let the peer write it.
    pub(super) fn check(&self, own: &Mapping) -> Result<(), Error> {
        let answer = own.at::<Header>(0).map_or(0, |h| h.foreign.load(Ordering::Relaxed));
        if answer == ALLOWED || self.admit() {
            return Ok(());
        }
        Err(Error::Unsupported("the system does not let the peer write memory of this process"))
    }

    /// Under Yama's mode 1 a process may be opened by itself; the first peer by name.
    fn admit(&self) -> bool {
        if self.pid == 0 || yama_scope() != Some(b'1') {
            return false;
        }
        let before = TRACER.load(Ordering::Relaxed);
        let tracer = if before == 0 || before == self.pid { self.pid } else { ANY };
        let name = if tracer == ANY { libc::c_ulong::MAX } else { tracer.into() };
        // SAFETY: takes no pointers.
        let done = unsafe {
            raw::syscall!(libc::SYS_prctl, libc::PR_SET_PTRACER, name, 0usize, 0usize, 0usize)
        };
        if done.is_ok() {
            TRACER.store(tracer, Ordering::Relaxed);
        }
        done.is_ok()
    }

    /// Whether the peer's process id is readable for us and still means the peer.
    fn is_same_process(&self) -> bool {
        let mut seen = 0u64;
        let local = [iovec(std::ptr::from_mut(&mut seen).expose_provenance() as u64, 8)];
        let remote = [iovec(self.word_at, 8)];
        // SAFETY: the local vector names `seen`; the remote one is the kernel's to check.
        let n = unsafe { self.transfer(libc::SYS_process_vm_readv, &local, &remote) };
        n == Some(8) && seen == self.word
    }

    /// Copies the pieces, `len` bytes in all, to `addr` in the peer's process, the last byte last.
    /// False if the peer is gone, or its memory, or the permission.
    ///
    /// # Safety
    /// The pieces name readable memory.
    #[cold]
    pub(super) unsafe fn write(&self, addr: u64, sges: &[Sge], len: u64) -> bool {
        const MOST: usize = super::qp::MAX_SGE;
        let process = self.process.get_or_init(|| {
            let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
            let fd = HighFd::new(pidfd_open(pid, PidfdFlags::empty()).ok()?);
            // In this order: the descriptor stays with the process that has the word.
            self.is_same_process().then_some(fd)
        });
        let Some(process) = process else { return false };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) != Ok(0) || len == 0 || sges.len() > MOST {
            return false;
        }
        let mut local = [MaybeUninit::uninit(); MOST];
        for (to, sge) in local.iter_mut().zip(sges) {
            to.write(iovec(sge.addr, sge.len.into()));
        }
        let first = local.as_ptr().cast::<libc::iovec>();
        // SAFETY: the loop above has written that many.
        let local = unsafe { std::slice::from_raw_parts(first, sges.len()) };
        let remote = [iovec(addr, len - 1), iovec(addr.wrapping_add(len - 1), 1)];
        // SAFETY: the caller vouches for the pieces; the remote side is the kernel's to check.
        let n = unsafe { self.transfer(libc::SYS_process_vm_writev, local, &remote) };
        n.map(|n| n as u64) == Some(len)
    }

    /// # Safety
    /// `local` names memory that may be read, or written, as `call` does.
    unsafe fn transfer(
        &self,
        call: libc::c_long,
        local: &[libc::iovec],
        remote: &[libc::iovec],
    ) -> Option<usize> {
        let (n_local, n_remote) = (local.len(), remote.len());
        // SAFETY: both vectors are valid for their lengths; the caller vouches for the rest.
        let copied = unsafe {
            raw::syscall!(
                call,
                self.pid,
                local.as_ptr(),
                n_local,
                remote.as_ptr(),
                n_remote,
                0usize,
            )
        };
        copied.ok()
    }
}

/// The first character of Yama's mode, if Yama is there.
fn yama_scope() -> Option<u8> {
    use rustix::fs::{Mode, OFlags, open};
    let path = c"/proc/sys/kernel/yama/ptrace_scope";
    let file = HighFd::new(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?);
    let mut mode = [0u8; 1];
    (rustix::io::read(&file, &mut mode) == Ok(1)).then_some(mode[0])
}

#[expect(clippy::cast_possible_truncation, reason = "addresses are as wide as usize here")]
fn iovec(addr: u64, len: u64) -> libc::iovec {
    let iov_base = std::ptr::with_exposed_provenance_mut(addr as usize);
    libc::iovec { iov_base, iov_len: len as usize }
}
