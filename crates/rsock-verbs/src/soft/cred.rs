//! Who is at the other end of a Unix socket, and whether we share memory with them.

use crate::error::Error;
use rustix::net::sockopt::socket_peercred;
use std::os::fd::AsFd;

/// Credentials of a peer process, as the kernel vouches for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id, in our namespace; 0 if it is outside of it.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// What user namespaces answer for users that they cannot express.
const OVERFLOW_UID: u32 = 65534;

impl PeerCred {
    /// Asks a connected Unix socket (`SO_PEERCRED`).
    ///
    /// # Errors
    /// What the system answers.
    pub fn of(socket: impl AsFd) -> Result<Self, Error> {
        let cred = socket_peercred(socket)
            .map_err(|e| Error::Verb { call: "getsockopt(SO_PEERCRED)", source: e.into() })?;
        Ok(Self {
            pid: cred.pid.as_raw_nonzero().get().cast_unsigned(),
            uid: cred.uid.as_raw(),
            gid: cred.gid.as_raw(),
        })
    }

    /// Our own.
    #[must_use]
    pub fn own() -> Self {
        Self {
            pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }
}

/// Accepts our own user and root.
///
/// # Errors
/// `Unsupported` for anyone else, and for users that our user namespace cannot express.
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
