//! The flags of a call that sends or receives one datagram.

bitflags::bitflags! {
    /// Flags as `sendto(2)` and `recvfrom(2)` take them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MessageFlags: u32 {
        /// The call does not wait (`MSG_DONTWAIT`).
        const DONT_WAIT = 1;
        /// A receive leaves the datagram in the socket (`MSG_PEEK`). A send ignores this flag.
        const PEEK = 1 << 1;
    }
}

impl MessageFlags {
    pub(super) fn is_peek(self) -> bool {
        self.contains(Self::PEEK)
    }

    pub(super) fn is_dont_wait(self) -> bool {
        self.contains(Self::DONT_WAIT)
    }
}
