//! The messages that the two switches of a stream send each other on the ring, and their counts.

/// A message of the switch, in order with the bytes of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// From the receiver: the sender may use the ring. Good for one [`Self::Up`].
    Ready,
    /// From the sender: what follows is on the ring. TCP ends at this count of bytes.
    Up {
        /// Bytes that went through TCP. The wire names its low bits.
        offset: u64,
    },
    /// From the sender: what follows is on TCP. A sender that is on TCP already refuses the ring by
    /// it: an open [`Self::Ready`] is void.
    Down,
    /// From the receiver: it asks the sender to go back to TCP.
    Leave,
}

/// How many messages of each kind have arrived, each modulo 256.
///
/// One word, for an atomic: the thread that receives messages from the ring replaces it with
/// [`Self::after`], under its own lock, and readers load it. Nothing is ever cleared, so no message
/// is lost between a load and a clearing, and two messages of a kind remain two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Counts(u32);

const READY: u32 = 0;
const UP: u32 = 8;
const DOWN: u32 = 16;
const LEAVE: u32 = 24;

impl Counts {
    /// From the word that [`Self::to_bits`] gave.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// As a word, for an atomic.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The counts once `message` has arrived as well.
    #[must_use]
    pub const fn after(self, message: Message) -> Self {
        let shift = match message {
            Message::Ready => READY,
            Message::Up { .. } => UP,
            Message::Down => DOWN,
            Message::Leave => LEAVE,
        };
        let one_more = ((self.at(shift) + 1) & 0xff) << shift;
        Self(self.0 & !(0xff << shift) | one_more)
    }

    /// Invitations.
    #[must_use]
    pub const fn readies(self) -> u32 {
        self.at(READY)
    }

    /// Moves to the ring.
    #[must_use]
    pub const fn ups(self) -> u32 {
        self.at(UP)
    }

    /// Moves to TCP, and refusals.
    #[must_use]
    pub const fn downs(self) -> u32 {
        self.at(DOWN)
    }

    /// Requests to leave the ring.
    #[must_use]
    pub const fn leaves(self) -> u32 {
        self.at(LEAVE)
    }

    const fn at(self, shift: u32) -> u32 {
        (self.0 >> shift) & 0xff
    }
}

/// The messages that have been received from the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReceivedMessages {
    /// How many of each kind.
    pub counts: Counts,
    /// The offset of the last [`Message::Up`], loaded after `counts`.
    pub up_offset: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself_and_wraps() {
        let mut counts = Counts::default();
        for _ in 0..257 {
            counts = counts.after(Message::Down);
        }
        counts = counts.after(Message::Leave).after(Message::Up { offset: 3 });
        assert_eq!((counts.readies(), counts.ups()), (0, 1));
        assert_eq!((counts.downs(), counts.leaves()), (1, 1));
        assert_eq!(Counts::from_bits(counts.to_bits()), counts);
    }
}
