//! Foreign memory, which is not shared: the kernel copies into it for the peer
//! (`process_vm_writev(2)`).
//!
//! Whether the kernel permits that depends on users, namespaces and security modules. So each end
//! tries it when the link is made: it reads a word of the other process whose value the handshake
//! named, and stores the result in the other's segment. The same word shows later that a process id
//! still means the same process.

use super::layout::Header;
use super::segment::Mapping;
use crate::error::Error;
use crate::family::{ProcessId, process};
use crate::high_fd::HighFd;
use crate::raw;
use crate::wr::Sge;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Results in [`Header::foreign`].
const ALLOWED: u32 = 1;
const REFUSED: u32 = 2;

/// The peer's memory outside of its segment.
#[derive(Debug)]
pub(super) struct Foreign {
    pid: u32,
    word_at: u64,
    word: u64,
    /// The process that `pid` meant at the first write.
    process: OnceLock<Option<HighFd>>,
}

/// The process that Yama lets trace this one. There is one at a time, because the kernel stores
/// one: a second peer is refused rather than admitting all processes of the user.
static OPENED: Mutex<Opened> = Mutex::new(Opened { owner: None, pid: 0, n_regions: 0 });

#[derive(Debug)]
struct Opened {
    /// The process that asked the kernel; the permission does not extend to a forked child.
    owner: Option<ProcessId>,
    pid: u32,
    /// Regions that need the permission. At 0 none is given.
    n_regions: u32,
}

/// A region's need for this process to be open to the peer; dropping it withdraws the need.
#[derive(Debug)]
pub(super) struct Admission {
    owner: ProcessId,
}

impl Opened {
    /// Opens this process, `here`, to `pid` with `ask`, unless it is open to another process.
    fn admit(&mut self, here: ProcessId, pid: u32, ask: impl FnOnce(u32) -> bool) -> bool {
        if self.owner != Some(here) {
            *self = Self { owner: Some(here), pid: 0, n_regions: 0 };
        }
        if self.n_regions == 0 {
            if !ask(pid) {
                return false;
            }
            self.pid = pid;
        }
        if self.pid != pid {
            return false;
        }
        self.n_regions += 1;
        true
    }

    /// Undoes one [`Self::admit`]; with the last region, `ask` closes this process again.
    fn release(&mut self, here: ProcessId, ask: impl FnOnce(u32) -> bool) {
        if self.owner == Some(here) && self.n_regions != 0 {
            self.n_regions -= 1;
            if self.n_regions == 0 {
                ask(0);
            }
        }
    }
}

fn opened() -> MutexGuard<'static, Opened> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets process `pid`, and no other, trace this one under Yama; 0 means none.
fn set_tracer(pid: u32) -> bool {
    let pid = libc::c_ulong::from(pid);
    // SAFETY: takes no pointers.
    unsafe { raw::syscall!(libc::SYS_prctl, libc::PR_SET_PTRACER, pid) }.is_ok()
}

impl Drop for Admission {
    fn drop(&mut self) {
        // A region that a forked child inherited belongs to its parent.
        if self.owner == process() {
            opened().release(self.owner, set_tracer);
        }
    }
}

impl Foreign {
    pub(super) fn new(pid: u32, word_at: u64, word: u64) -> Self {
        Self { pid, word_at, word, process: OnceLock::new() }
    }

    /// Tries to read the peer's word, and stores the result in the peer's segment.
    pub(super) fn probe(&self, peer_segment: &Mapping) {
        if let Some(header) = peer_segment.at::<Header>(0) {
            let answer = if self.is_same_process() { ALLOWED } else { REFUSED };
            header.foreign.store(answer, Ordering::Relaxed);
        }
    }

    /// Checks that the peer can write memory of this process, and returns what must be held while
    /// it may.
    ///
    /// # Errors
    /// `Unsupported` if the kernel would not let the peer write it.
    pub(super) fn check(&self, own: &Mapping) -> Result<Option<Admission>, Error> {
        let answer = own.at::<Header>(0).map_or(0, |h| h.foreign.load(Ordering::Relaxed));
        if answer == ALLOWED {
            return Ok(None);
        }
        self.admit().map(Some).ok_or(Error::Unsupported(
            "the system does not let the peer write memory of this process",
        ))
    }

    /// Under Yama's mode 1 a process may open itself to one other process at a time.
    fn admit(&self) -> Option<Admission> {
        if self.pid == 0 || yama_scope() != Some(b'1') {
            return None;
        }
        let owner = process();
        opened().admit(owner, self.pid, set_tracer).then(|| Admission { owner })
    }

    /// Whether this process may read the peer's memory and the peer's process id still means the
    /// peer.
    fn is_same_process(&self) -> bool {
        let mut seen = 0u64;
        let local = [iovec(std::ptr::from_mut(&mut seen).expose_provenance() as u64, 8)];
        let remote = [iovec(self.word_at, 8)];
        // SAFETY: the local vector names `seen`; the remote one is the kernel's to check.
        let n = unsafe { self.transfer(libc::SYS_process_vm_readv, &local, &remote) };
        n == Some(8) && seen == self.word
    }

    /// Copies the pieces, `len` bytes in all, to `addr` in the peer's process, the last byte last.
    /// False if the peer, its memory or the permission is gone.
    ///
    /// # Safety
    /// The pieces name readable memory.
    #[cold]
    pub(super) unsafe fn write(&self, addr: u64, sges: &[Sge], len: u64) -> bool {
        const MOST: usize = super::queue::MAX_SGE;
        let process = self.process.get_or_init(|| {
            let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
            let fd = HighFd::new(pidfd_open(pid, PidfdFlags::empty()).ok()?);
            // In this order: the descriptor is opened first, so it belongs to the process whose
            // word is then checked.
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
        // SAFETY: the caller vouches for the pieces; the remote peer is the kernel's to check.
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

/// The first character of Yama's mode, if the kernel has Yama.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_opened_to_one_peer_and_closed_with_its_last_region() {
        let mut opened = Opened { owner: None, pid: 0, n_regions: 0 };
        let here = ProcessId(100);
        let mut asked = Vec::new();
        assert!(!opened.admit(here, 7, |_| false), "the system refuses");
        let mut ask = |pid| {
            asked.push(pid);
            true
        };
        assert!(opened.admit(here, 7, &mut ask) && opened.admit(here, 7, &mut ask));
        assert!(!opened.admit(here, 8, &mut ask), "not to a second one, and never to all");
        opened.release(here, &mut ask);
        opened.release(here, &mut ask);
        // Now another peer is admitted. A forked child has to ask for itself.
        assert!(opened.admit(here, 8, &mut ask) && opened.admit(ProcessId(101), 8, &mut ask));
        opened.release(here, &mut ask);
        opened.release(ProcessId(101), &mut ask);
        assert_eq!(asked, [7, 0, 8, 8, 0]);
    }
}
