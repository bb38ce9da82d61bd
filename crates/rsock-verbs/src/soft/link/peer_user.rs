//! The user that the process at the other end of a link belongs to now. The kernel's report when
//! the link was made may be of the past: processes give up privileges.

use crate::high_fd::HighFd;
use crate::raw;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A descriptor by which the kernel is asked.
#[derive(Debug)]
pub(super) enum PeerUser {
    /// Of the process; the kernel has `PIDFD_GET_INFO` (Linux 6.13).
    Process(HighFd),
    /// `/proc/PID/status`.
    Status(HighFd),
}

/// `PIDFD_GET_INFO` of `linux/pidfd.h`: `_IOWR(0xFF, 11, struct pidfd_info)`, for the first version
/// of the structure, of 64 bytes.
const PIDFD_GET_INFO: libc::c_ulong = 3 << 30 | 64 << 16 | 0xff << 8 | 11;
/// Flag of the `mask`: the identifiers of users and groups.
const PIDFD_INFO_CREDS: u32 = 1 << 1;
/// `struct pidfd_info` in words of 32 bits: `mask` takes the first two.
type PidfdInfo = [u32; 16];
const AT_EUID: usize = 9;

impl PeerUser {
    /// `None` where the kernel does not answer for process `pid`. The caller then makes sure that
    /// the number still means its peer.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok().map(HighFd::new);
        let process = process.map(Self::Process).filter(|process| process.effective().is_some());
        process.or_else(|| Self::by_status(pid))
    }

    fn by_status(pid: Pid) -> Option<Self> {
        let path = format!("/proc/{}/status", pid.as_raw_nonzero());
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self::Status(HighFd::new(file)))
    }

    /// The effective user id; `None` once the process is gone.
    pub(super) fn effective(&self) -> Option<u32> {
        match self {
            Self::Process(process) => {
                let mut info: PidfdInfo =
                    [PIDFD_INFO_CREDS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let fd = process.as_fd().as_raw_fd();
                // SAFETY: the structure has the size that the request names.
                unsafe { raw::syscall!(libc::SYS_ioctl, fd, PIDFD_GET_INFO, &raw mut info) }
                    .ok()?;
                (info[0] & PIDFD_INFO_CREDS != 0).then_some(info[AT_EUID])
            }
            Self::Status(file) => {
                let mut status = [0u8; 1024];
                let n = pread(file, &mut status, 0).ok()?;
                effective_in(&status[..n])
            }
        }
    }
}

/// The second number of the line `Uid:`: real, effective, saved, file system (proc_pid_status(5)).
fn effective_in(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const STATUS: &[u8] = b"Name:\tcat\nState:\tR\nUid:\t1000\t7\t3\t4\nGid:\t0\t0\t0\t0\n";

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(effective_in(STATUS), Some(7));
        for len in 0..b"Name:\tcat\nState:\tR\nUid:\t1000\t".len() {
            assert_eq!(effective_in(&STATUS[..len]), None, "{len}");
        }
    }

    /// A process of another user, if this one may make such a process; else of its own.
    #[test]
    fn both_ways_of_asking_name_the_user_of_a_process_until_it_ends() {
        use std::os::unix::process::CommandExt;
        let own = rustix::process::geteuid().as_raw();
        let user = if own == 0 { 12_345 } else { own };
        let mut child =
            Command::new("cat").uid(user).stdin(Stdio::piped()).spawn().expect("cat starts");
        let pid = Pid::from_child(&child);
        let asking = [PeerUser::of(child.id()), PeerUser::by_status(pid)];
        let asking = asking.map(|asking| asking.expect("the kernel answers"));
        assert_eq!(asking.each_ref().map(PeerUser::effective), [Some(user); 2]);
        drop(child.stdin.take());
        child.wait().expect("cat ends");
        assert_eq!(asking.each_ref().map(PeerUser::effective), [None; 2]);
    }
}
