//! Errors of the verbs layer.

use std::io;

/// Why making, changing or registering something failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call into the operating system or the device's library failed.
    #[error("{call}: {source}")]
    Verb {
        /// The call, as its manual page names it.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// Arguments that no device accepts, or a state that forbids the call.
    #[error("{0}")]
    Invalid(&'static str),
    /// This device cannot do it, here and now.
    #[error("{0}")]
    Unsupported(&'static str),
    /// No room for another object or region.
    #[error("out of {0}")]
    Exhausted(&'static str),
    /// This host has no RDMA device, or not rdma-core's libraries, or not the device asked for.
    /// (`ENODEV`)
    #[error("no RDMA device")]
    NoDevice,
    /// The process at the other end is gone.
    #[error("the peer is gone")]
    PeerGone,
    /// The process at the other end handed over something that is not what it claims.
    #[error("the peer broke the device's contract: {0}")]
    PeerViolation(&'static str),
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Verb { source, .. } => source,
            Error::Invalid(_) => Self::from_raw_os_error(libc::EINVAL),
            Error::Unsupported(_) => Self::from_raw_os_error(libc::EOPNOTSUPP),
            Error::Exhausted(_) => Self::from_raw_os_error(libc::ENOMEM),
            Error::NoDevice => Self::from_raw_os_error(libc::ENODEV),
            Error::PeerGone => Self::from_raw_os_error(libc::ECONNRESET),
            Error::PeerViolation(_) => Self::from_raw_os_error(libc::EPROTO),
        }
    }
}

/// Why a work request was not taken. `Copy` and free of allocation: this is the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full now; a completion, or the peer's progress, makes room. (`ENOMEM`)
    #[error("the queue is full")]
    QueueFull,
    /// The queue pair's state does not allow it. (`EINVAL`)
    #[error("the queue pair's state forbids this")]
    State,
    /// A key, bound, length or count is wrong. (`EINVAL`)
    #[error("invalid work request")]
    Invalid,
    /// The payload is not there. Nothing was posted. (`EFAULT`)
    #[error("the payload is not mapped")]
    Fault,
}
