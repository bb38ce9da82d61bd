//! Why a socket's data stays with the kernel.

use std::fmt;

/// Why a stream stays on TCP, or a UDP socket with the kernel. Shown by `rsock stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum FallbackReason {
    /// There is no reason: the socket may use a faster connection.
    None = 0,
    /// The descriptor was added to an epoll set.
    Epoll,
    /// The descriptor was inherited by a forked child.
    Fork,
    /// The program wrapped the descriptor in a stdio stream.
    Stdio,
    /// The descriptor became standard input, output or error.
    StandardStream,
    /// The program set an option, flag or ioctl that only the kernel can honour.
    Option,
    /// The descriptor was passed to another process.
    Passed,
    /// The descriptor table or memory is nearly exhausted.
    Resources,
    /// Another process wrote bytes to the socket past rsock.
    ForeignWriter,
    /// The peer runs as another user, or could not be verified.
    Untrusted,
    /// The peer does not run rsock, or has not been found.
    NoPeer,
    /// The peer is on another host, and no RDMA device reaches it.
    Remote,
    /// The faster connection failed, or the peer broke the protocol.
    PathFailed,
    /// Switched off by configuration.
    Configured,
    /// The peer is on another host, with which this one shares no key and which no rule trusts.
    NoTrust,
    /// The stream has no TCP connection: the peer speaks rsockets alone.
    PlainRsockets,
    /// The program uses an io_uring, which works with kernel sockets only.
    IoUring,
    /// The program restricts its own system calls.
    Sandbox,
    /// The program reads or writes by POSIX asynchronous I/O.
    Aio,
    /// The program loaded a library that calls libc past rsock.
    DeepBinding,
    /// A thread used the stream that has too little stack for the search.
    SmallStack,
}

impl FallbackReason {
    const ALL: [Self; 21] = [
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
        Self::DeepBinding,
        Self::SmallStack,
    ];

    /// The reason with the number `value`; [`Self::None`] for a number that this build does not
    /// know.
    pub(crate) fn from_u8(value: u8) -> Self {
        Self::known(value).unwrap_or(Self::None)
    }

    /// The reason with the number `value`, if this build knows it.
    pub(super) fn known(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// A short sentence for the operator; empty for [`Self::None`].
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Epoll => "in an epoll set",
            Self::Fork => "inherited by a forked process",
            Self::Stdio => "wrapped in a stdio stream",
            Self::StandardStream => "is standard input, output or error",
            Self::Option => "a socket option only the kernel can honour",
            Self::Passed => "passed to another process",
            Self::Resources => "descriptors or memory nearly exhausted",
            Self::ForeignWriter => "bytes written behind rsock's back",
            Self::Untrusted => "the peer is another user or unverified",
            Self::NoPeer => "no rsock at the other end",
            Self::Remote => "the peer is on another host",
            Self::PathFailed => "the fast path failed",
            Self::Configured => "switched off by configuration",
            Self::NoTrust => "no key shared with the peer's host, and no rule that trusts it",
            Self::PlainRsockets => {
                "the peer speaks rsockets alone, so there is no TCP to go back to"
            }
            Self::IoUring => "the program uses an io_uring",
            Self::Sandbox => "the program restricts its own system calls",
            Self::Aio => "read or written by asynchronous I/O",
            Self::DeepBinding => "a library was loaded that calls libc past rsock",
            Self::SmallStack => "used by a thread with a small stack",
        }
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "no reason to stay on TCP",
            reason => reason.describe(),
        })
    }
}

const _: () = {
    let mut i = 0;
    while i < FallbackReason::ALL.len() {
        assert!(FallbackReason::ALL[i] as usize == i);
        i += 1;
    }
};
