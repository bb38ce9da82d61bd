//! Errors of the connection manager, grouped by cause.

use std::io;

/// Why a connection or a listener could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no listener, or it went away before it answered. (`ECONNREFUSED`)
    #[error("connection refused")]
    Refused,
    /// No answer before the deadline. (`ETIMEDOUT`)
    #[error("no answer in time")]
    TimedOut,
    /// No device reaches that address. (the kernel's errno, usually `ENETUNREACH`; `EHOSTUNREACH`
    /// for an address of another host)
    #[error("no path to that address: {0}")]
    Unreachable(#[source] io::Error),
    /// Another listener has this name. (`EADDRINUSE`)
    #[error("address in use")]
    AddressInUse,
    /// The process at the other end belongs to a user that this process does not trust. (`EACCES`)
    #[error("the peer runs as user {uid}")]
    PeerUntrusted {
        /// That user.
        uid: u32,
    },
    /// The peer uses another version of the handshake. (`ENOTSUP`)
    #[error("the peer uses version {version} of the connection handshake")]
    PeerVersion {
        /// Its version.
        version: u16,
    },
    /// The peer broke the handshake. (`EPROTO`)
    #[error("the peer broke the handshake: {0}")]
    PeerViolation(Violation),
    /// The peer went away in the middle. (`ECONNRESET`)
    #[error("the peer is gone")]
    PeerGone,
    /// More private data than the connection manager carries. (`EINVAL`)
    #[error("{len} bytes of private data, at most {max} fit")]
    LocalPrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// A call that this state does not allow. (`EINVAL`)
    #[error("{0}")]
    LocalState(&'static str),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] rsock_verbs::Error),
    /// The operating system refused. (its errno)
    #[error("{call}: {source}")]
    System {
        /// The call, as its manual page names it.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// What a peer did wrong in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Shorter or longer than messages of its kind are.
    #[error("wrong message length")]
    Length,
    /// Not a message of this handshake.
    #[error("wrong magic number")]
    Magic,
    /// A message that does not belong here.
    #[error("unexpected message kind {0}")]
    Kind(u16),
    /// Too many descriptors, too few, or some where none belong.
    #[error("wrong number of descriptors")]
    Descriptors,
    /// An address of an unknown family, or one that this listener does not serve.
    #[error("wrong address")]
    Address,
    /// The peer named a shared segment that does not exist.
    #[error("no such link")]
    Link,
    /// A value outside its range.
    #[error("value out of range")]
    Value,
}

impl Error {
    /// For `map_err`: an operating system call that failed.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |e| Self::System { call, source: e.into() }
    }
}

impl From<Violation> for Error {
    fn from(v: Violation) -> Self {
        Self::PeerViolation(v)
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        let errno = match e {
            Error::Refused => libc::ECONNREFUSED,
            Error::TimedOut => libc::ETIMEDOUT,
            Error::AddressInUse => libc::EADDRINUSE,
            Error::PeerUntrusted { .. } => libc::EACCES,
            Error::PeerVersion { .. } => libc::ENOTSUP,
            Error::PeerViolation(_) => libc::EPROTO,
            Error::PeerGone => libc::ECONNRESET,
            Error::LocalPrivateData { .. } | Error::LocalState(_) => libc::EINVAL,
            Error::Device(source) => return source.into(),
            Error::Unreachable(source) | Error::System { source, .. } => return source,
        };
        Self::from_raw_os_error(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_errno_that_its_documentation_names() {
        let system = |errno| io::Error::from_raw_os_error(errno);
        let table = [
            (Error::Refused, libc::ECONNREFUSED),
            (Error::TimedOut, libc::ETIMEDOUT),
            (Error::Unreachable(system(libc::ENETUNREACH)), libc::ENETUNREACH),
            (Error::AddressInUse, libc::EADDRINUSE),
            (Error::PeerUntrusted { uid: 1 }, libc::EACCES),
            (Error::PeerVersion { version: 2 }, libc::ENOTSUP),
            (Violation::Magic.into(), libc::EPROTO),
            (Error::PeerGone, libc::ECONNRESET),
            (Error::LocalPrivateData { len: 57, max: 56 }, libc::EINVAL),
            (Error::LocalState("x"), libc::EINVAL),
            (rsock_verbs::Error::PeerGone.into(), libc::ECONNRESET),
            (
                Error::System { call: "bind", source: system(libc::EADDRNOTAVAIL) },
                libc::EADDRNOTAVAIL,
            ),
        ];
        for (error, errno) in table {
            let text = error.to_string();
            assert_eq!(io::Error::from(error).raw_os_error(), Some(errno), "{text}");
        }
    }
}
