//! The two channels from one end to the other: TCP between two kernels, and a ring.

use super::queue::Queue;
use crate::switch::Message;

/// Bits of an offset on the wire of the explored switch.
pub(super) const OFFSET_BITS: u32 = 3;
/// Bytes that went through TCP before: the offsets wrap within the run.
pub(super) const START: u64 = 6;

/// The end of the direction, on TCP.
pub(super) const FIN: u8 = 0x7f;
/// The end of the connection, on TCP.
pub(super) const RST: u8 = 0x7e;
/// A byte that was written past the switch.
pub(super) const FOREIGN: u8 = 0x70;
/// Added to the number of an urgent byte.
pub(super) const URGENT: u8 = 0x20;

/// Entries of the ring beside bytes, which are their numbers.
const READY: u8 = 0x40;
const DOWN: u8 = 0x41;
const LEAVE: u8 = 0x42;
const END: u8 = 0x43;
const CLOSE: u8 = 0x44;
const UP: u8 = 0x80;

/// What the ring carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Byte(u8),
    Message(Message),
    /// The end of the direction.
    End,
    /// The end of both directions.
    Close,
}

impl Item {
    pub(super) fn encode(self) -> u8 {
        match self {
            Self::Byte(n) => n,
            Self::End => END,
            Self::Close => CLOSE,
            Self::Message(Message::Ready) => READY,
            Self::Message(Message::Down) => DOWN,
            Self::Message(Message::Leave) => LEAVE,
            // As on the wire: the low bits alone.
            Self::Message(Message::Up { offset }) => {
                UP | u8::try_from(offset & ((1 << OFFSET_BITS) - 1)).expect("few bits")
            }
        }
    }

    pub(super) fn decode(entry: u8) -> Self {
        match entry {
            END => Self::End,
            CLOSE => Self::Close,
            READY => Self::Message(Message::Ready),
            DOWN => Self::Message(Message::Down),
            LEAVE => Self::Message(Message::Leave),
            UP.. => Self::Message(Message::Up { offset: u64::from(entry & !UP) }),
            n => Self::Byte(n),
        }
    }
}

/// TCP in one direction: what the sender's kernel has taken, of which some has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tcp {
    pub(super) queue: Queue,
    pub(super) n_arrived: u8,
    /// The kernels' own counts.
    pub(super) written: u8,
    pub(super) read: u8,
}

impl Tcp {
    /// Bytes that have arrived, without what ends them.
    pub(super) fn arrived(&self) -> &[u8] {
        let all = &self.queue.as_slice()[..usize::from(self.n_arrived)];
        let end = all.iter().position(|e| matches!(*e, FIN | RST)).unwrap_or(all.len());
        &all[..end]
    }

    /// What ends the bytes that have arrived, if it has as well.
    pub(super) fn arrived_end(&self) -> Option<u8> {
        let all = &self.queue.as_slice()[..usize::from(self.n_arrived)];
        all.iter().copied().find(|e| matches!(*e, FIN | RST))
    }

    pub(super) fn deliver(&mut self) -> bool {
        let has_more = self.n_arrived < self.queue.len();
        self.n_arrived += u8::from(has_more);
        has_more
    }

    pub(super) fn take(&mut self) -> Option<u8> {
        if self.arrived().is_empty() {
            return None;
        }
        self.n_arrived -= 1;
        self.read += 1;
        self.queue.pop()
    }

    /// As `FIONREAD`: up to an urgent byte.
    pub(super) fn queued(&self) -> u64 {
        let arrived = self.arrived();
        let urgent = arrived.iter().position(|e| is_urgent(*e));
        urgent.unwrap_or(arrived.len()) as u64
    }
}

pub(super) fn is_urgent(entry: u8) -> bool {
    entry & URGENT != 0 && entry < READY
}

/// The ring in one direction: what was posted and not yet taken from the device. On one host all of
/// it can be taken at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub(super) queue: Queue,
    pub(super) n_arrived: u8,
    /// Bytes that were posted and not yet read by the program.
    pub(super) unread: u8,
    /// The sender's or the receiver's end of it is gone.
    pub(super) is_dead: bool,
    /// What has not arrived never will.
    pub(super) is_lost: bool,
    /// Room was given back in this direction after that.
    pub(super) has_lost_room: bool,
}

impl Lane {
    /// Whether everything that was posted has arrived.
    pub(super) fn is_drained(&self) -> bool {
        self.n_arrived == self.queue.len()
    }

    /// Whether the device of the sender waits in vain for an answer to something that it was given.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_lost && (!self.is_drained() || self.has_lost_room)
    }
}

/// The device of an end, between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Device {
    #[default]
    Works,
    /// It has failed, and nothing has taken note of that yet.
    Fails,
    /// It has failed, and that is known.
    Failed,
    /// It has failed after the ends of both directions: that means nothing.
    Over,
}
