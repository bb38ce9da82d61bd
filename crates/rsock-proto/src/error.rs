//! What a peer can do wrong.

/// The peer broke the protocol; the connection cannot go on.
///
/// `Copy` and free of allocation: this is the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The connection data is shorter than its 40 bytes.
    #[error("connection data of {0} bytes is too short")]
    ShortConnData(usize),
    /// The peer uses another version of the protocol.
    #[error("unknown protocol version {0}")]
    Version(u8),
    /// The peer's table of receive buffers has fewer than two entries.
    #[error("a table of {0} entries is too small")]
    TableTooSmall(u32),
    /// An address plus its length passes the end of the address space.
    #[error("an announced range wraps around the address space")]
    RangeWraps,
    /// A data message without a byte, which would read as the end of the stream.
    #[error("data message of length zero")]
    EmptyData,
    /// A data message longer than what is left of the buffer it goes to.
    #[error("data message of {len} bytes into a buffer with {room} bytes left")]
    DataOverrun {
        /// Bytes that the message claims.
        len: u32,
        /// Bytes left in the announced buffer.
        room: u32,
    },
    /// More messages than the credits given.
    #[error("message without a credit")]
    NoCredit,
    /// A table entry that announces no bytes.
    #[error("empty buffer announced")]
    EmptyBuffer,
    /// More buffers announced than the table has entries.
    #[error("more buffers announced than the table holds")]
    TooManyBuffers,
    /// An iomap message for an entry that the table does not have.
    #[error("iomap index {0} out of range")]
    IomapIndex(u32),
}

impl PeerError {
    /// The errno an application sees: `ENOTSUP` for another version, `EPROTO` for the rest.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Version(_) => libc::ENOTSUP,
            _ => libc::EPROTO,
        }
    }
}
