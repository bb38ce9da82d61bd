//! Credentials of the process at the other end of a Unix socket, and the check whether to share
//! memory with it.

use crate::error::Error;
use crate::raw;
use std::os::fd::{AsFd, AsRawFd};

/// Credentials of a peer process, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id in this process's namespace; 0 if the peer is outside of it.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl From<libc::ucred> for PeerCred {
    fn from(cred: libc::ucred) -> Self {
        Self { pid: cred.pid.cast_unsigned(), uid: cred.uid, gid: cred.gid }
    }
}

/// The user id that a user namespace reports for users it cannot express.
const OVERFLOW_UID: u32 = 65534;

impl PeerCred {
    /// Asks a connected Unix socket (`SO_PEERCRED`): the process that connected or listened, as of
    /// that time.
    ///
    /// # Errors
    /// The error of `getsockopt(2)`.
    pub fn of(socket: impl AsFd) -> Result<Self, Error> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
        // Raw, because rustix has no process id 0, which the kernel reports for a process outside
        // of this process-id namespace.
        // SAFETY: `cred` is writable for `len` bytes, and `len` is a live value.
        let asked = unsafe {
            raw::syscall!(
                libc::SYS_getsockopt,
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                &raw mut cred,
                &raw mut len,
            )
        };
        match asked {
            Ok(_) => Ok(cred.into()),
            Err(source) => Err(Error::Verb { call: "getsockopt(SO_PEERCRED)", source }),
        }
    }

    /// The calling process's own credentials.
    #[must_use]
    pub fn own() -> Self {
        Self {
            pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }
}

/// Accepts peers of this process's user and of root.
///
/// # Errors
/// `Unsupported` for any other user, and for users that this user namespace cannot express.
pub fn check(cred: PeerCred) -> Result<(), Error> {
    let me = rustix::process::geteuid().as_raw();
    if cred.uid == OVERFLOW_UID {
        return Err(Error::Unsupported("the peer's user has no name in this user namespace"));
    }
    if cred.uid == me || cred.uid == 0 {
        return Ok(());
    }
    Err(Error::Unsupported("the peer belongs to another user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_user_and_root_are_accepted() {
        let me = PeerCred::own();
        assert!(check(me).is_ok());
        assert!(check(PeerCred { uid: 0, ..me }).is_ok());
        assert!(check(PeerCred { uid: me.uid.wrapping_add(1), ..me }).is_err());
        assert!(check(PeerCred { uid: OVERFLOW_UID, ..me }).is_err());
    }
}
