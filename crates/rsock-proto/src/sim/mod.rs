//! A simulation of two ends of a stream, for property tests and fuzzing.
//!
//! No device, no memory but vectors, no time: a run is a list of [`Op`]s, and the schedule of a
//! wire that neither loses nor reorders is part of that list. Each end is this crate's pair of
//! halves or a model of C's rules. Every byte has a value that follows from its place in the
//! stream, so a byte lost, doubled or moved is seen where it is read.

pub mod bytes;
mod c_half;
mod end;
mod hostile;
mod pair;

pub use end::EndConfig;
pub use hostile::{plausible_block, run_hostile};
pub use pair::{Pair, run_pair};

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    /// The other one.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// One step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The application writes so many bytes; what cannot go now waits.
    Write(Side, usize),
    /// The application reads up to so many bytes.
    Read(Side, usize),
    /// So many messages on their way to this end complete there.
    Deliver(Side, usize),
    /// The payloads of so many messages reach this end's memory before their messages complete, and
    /// a part of the next payload.
    Land(Side, usize),
    /// Waiting bytes are sent as far as possible.
    Send(Side),
    /// Grants that are due are sent.
    Grant(Side),
    /// Completions of this end's control messages are taken.
    Poll(Side),
    /// An iomap message.
    Iomap(Side),
    /// The receiving half replaces its ring, if it can.
    ReplaceRing(Side),
    /// The receiving half lets its ring have two more buffers, if it can.
    ExtendRing(Side),
    /// The application ends sending.
    ShutWr(Side),
    /// The application ends receiving.
    ShutRd(Side),
    /// The application closes.
    Close(Side),
    /// Everything goes on until nothing moves.
    Drive,
}

impl Op {
    /// The operation that a word stands for: bits 4:0 which, bit 5 the side, the rest an amount.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        let side = if word & 0x20 == 0 { Side::A } else { Side::B };
        // Small amounts as often as large ones.
        let bits = (word >> 6) & 0xF;
        let amount = 1 + (word >> 10) as usize % (1 << bits);
        match word & 0x1F {
            0..=6 => Self::Write(side, amount),
            7..=11 => Self::Read(side, amount),
            12..=16 => Self::Deliver(side, 1 + amount % 16),
            17..=18 => Self::Land(side, 1 + amount % 16),
            19..=21 => Self::Send(side),
            22..=24 => Self::Grant(side),
            25 | 27 => Self::Poll(side),
            26 => Self::Iomap(side),
            28 => Self::ReplaceRing(side),
            29 => Self::Drive,
            30 => Self::ExtendRing(side),
            // Ends are rare: they end the run's interest.
            _ => match amount % 16 {
                0 => Self::Close(side),
                1 | 2 => Self::ShutWr(side),
                3 => Self::ShutRd(side),
                _ => Self::Poll(side),
            },
        }
    }
}
