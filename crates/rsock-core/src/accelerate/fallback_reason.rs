//! Why a stream stays on TCP.

use std::fmt;

/// Why a stream is, and stays, on TCP. Shown by `rsock stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum FallbackReason {
    /// Not pinned.
    None = 0,
    /// The descriptor was added to an epoll set.
    Epoll,
    /// The descriptor was inherited by a forked child.
    Fork,
    /// The program wrapped the descriptor in a stdio stream.
    Stdio,
    /// The descriptor became standard input, output or error.
    StandardStream,
    /// An option, flag or ioctl that only the kernel can honour.
    Option,
    /// The descriptor was passed to another process.
    Passed,
    /// The descriptor table or memory is nearly exhausted.
    Resources,
    /// Bytes were written behind our back.
    ForeignWriter,
    /// The peer runs as another user, or could not be verified.
    Untrusted,
    /// The peer does not run rsock, or has not been found.
    NoPeer,
    /// The peer is on another host, and no RDMA device reaches it.
    Remote,
    /// The path failed or the peer broke the protocol.
    PathFailed,
    /// Switched off by configuration.
    Configured,
    /// The peer is on another host, with which this one shares no key and which no rule trusts.
    NoTrust,
    /// Not on TCP at all: the peer speaks rsockets alone.
    PlainRsockets,
    /// The program uses an io_uring, which knows of kernel sockets only.
    IoUring,
    /// The program restricts its own system calls.
    Sandbox,
    /// The program reads or writes by POSIX asynchronous I/O.
    Aio,
}

impl FallbackReason {
    const ALL: [Self; 19] = [
        Self::None,
        Self::Epoll,
        Self::Fork,
        Self::Stdio,
        Self::StandardStream,
        Self::Option,
        Self::Passed,
        Self::Resources,
        Self::ForeignWriter,
        Self::Untrusted,
        Self::NoPeer,
        Self::Remote,
        Self::PathFailed,
        Self::Configured,
        Self::NoTrust,
        Self::PlainRsockets,
        Self::IoUring,
        Self::Sandbox,
        Self::Aio,
    ];

    pub(crate) fn from_u8(value: u8) -> Self {
        Self::ALL.get(usize::from(value)).copied().unwrap_or(Self::None)
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "no reason to stay on TCP",
            reason => crate::metrics::describe(*reason),
        })
    }
}
