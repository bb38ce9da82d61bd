//! The 32-bit word that travels with every message: three bits of operation, 29 bits of value.
//!
//! Decoding is total: each of the 2^32 words is a message or a [`PeerError`]. The device moves the
//! word in network order; here it is a number of this host.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `rs_msg_set`, `rs_msg_op`, `rs_msg_data`, `rs_poll_cq`.

use super::error::PeerError;

/// Longest data message the word can name, in bytes.
pub const MAX_DATA_LEN: u32 = VALUE_MASK;

/// Bits of a byte offset that one extension message carries.
pub const UP_BITS: u32 = EXT_CODE_SHIFT;

/// The largest value of an extension message: [`UP_BITS`] ones.
pub const UP_MASK: u32 = (1 << UP_BITS) - 1;

/// The immediate word of a message, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
#[doc(alias = "imm_data")]
pub struct Imm(pub u32);

impl Imm {
    /// `len` bytes of the stream were written into the announced buffer. `len` is 1 to
    /// [`MAX_DATA_LEN`]; higher bits are lost.
    #[inline]
    #[must_use]
    pub const fn data(len: u32) -> Self {
        Self::new(OP_DATA, len)
    }

    /// The peer may send until its counter reaches `limit`.
    #[inline]
    #[must_use]
    pub const fn credit(limit: SeqNo) -> Self {
        Self::new(OP_SGL, limit.0 as u32)
    }

    /// Entry `index` of the peer's iomap table was written.
    #[inline]
    #[must_use]
    pub const fn iomap(index: u32) -> Self {
        Self::new(OP_IOMAP, index)
    }

    /// A control message.
    #[must_use]
    pub const fn ctrl(ctrl: Ctrl) -> Self {
        Self::new(
            OP_CTRL,
            match ctrl {
                Ctrl::Disconnect => CTRL_DISCONNECT,
                Ctrl::Keepalive => CTRL_KEEPALIVE,
                Ctrl::Shutdown => CTRL_SHUTDOWN,
            },
        )
    }

    /// An extension message. Only for a peer whose connection data has
    /// [`ConnFlags::EXT`](super::ConnFlags::EXT), and only with local connection data that has it,
    /// too.
    #[must_use]
    pub const fn ext(ext: Ext) -> Self {
        let (code, value) = match ext {
            Ext::Ready => (EXT_READY, 0),
            Ext::Up { offset26 } => (EXT_UP, offset26),
            Ext::Down => (EXT_DOWN, 0),
            Ext::Leave => (EXT_LEAVE, 0),
            Ext::UpHigh { high26 } => (EXT_UP_HIGH, high26),
            Ext::Unknown { code, value } => (code as u32 & EXT_CODE_MASK, value),
        };
        Self::new(OP_WRITE, (code << EXT_CODE_SHIFT) | (value & EXT_VALUE_MASK))
    }

    /// The decoded word.
    ///
    /// COMPAT: operations 1, 3 and 5 are reserved, and C takes them for data; so does this decoder.
    /// An unknown control code is ignored, as in C.
    ///
    /// # Errors
    /// [`PeerError::EmptyData`] for a data message of length zero.
    #[inline]
    pub const fn decode(self) -> Result<Msg, PeerError> {
        let value = self.0 & VALUE_MASK;
        Ok(match self.0 >> OP_SHIFT {
            // WIRE: senders may leave bits above the 16 of the limit set; they mean nothing.
            OP_SGL => Msg::Credit { limit: SeqNo((value & 0xFFFF) as u16) },
            OP_WRITE => Msg::Ext(decode_ext(value)),
            OP_IOMAP => Msg::Iomap { index: value },
            OP_CTRL => match value {
                CTRL_DISCONNECT => Msg::Ctrl(Ctrl::Disconnect),
                CTRL_KEEPALIVE => Msg::Ctrl(Ctrl::Keepalive),
                CTRL_SHUTDOWN => Msg::Ctrl(Ctrl::Shutdown),
                _ => Msg::Ignored,
            },
            _ if value == 0 => return Err(PeerError::EmptyData),
            _ => Msg::Data { len: value },
        })
    }

    const fn new(op: u32, value: u32) -> Self {
        Self((op << OP_SHIFT) | (value & VALUE_MASK))
    }
}

/// A decoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Msg {
    /// The next bytes of the stream are in the announced buffer.
    Data {
        /// Bytes, at least one.
        len: u32,
    },
    /// The receiver of this message may send until its counter reaches `limit`; an entry of its
    /// table may be new.
    #[doc(alias = "RS_OP_SGL")]
    Credit {
        /// An absolute limit, not an increment.
        limit: SeqNo,
    },
    /// An entry of the local iomap table was written.
    #[doc(alias = "RS_OP_IOMAP_SGL")]
    Iomap {
        /// Which one; not yet checked.
        index: u32,
    },
    /// A control message.
    Ctrl(Ctrl),
    /// A message that only this implementation knows.
    Ext(Ext),
    /// An unknown control message; ignored.
    Ignored,
}

impl Msg {
    /// The encoded word. [`Msg::Ignored`] is never sent; its word decodes to itself.
    #[must_use]
    pub const fn encode(self) -> Imm {
        match self {
            Self::Data { len } => Imm::data(len),
            Self::Credit { limit } => Imm::credit(limit),
            Self::Iomap { index } => Imm::iomap(index),
            Self::Ctrl(ctrl) => Imm::ctrl(ctrl),
            Self::Ext(ext) => Imm::ext(ext),
            Self::Ignored => Imm(u32::MAX),
        }
    }
}

/// Control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ctrl {
    /// Both directions end here.
    #[doc(alias = "RS_CTRL_DISCONNECT")]
    Disconnect,
    /// A sign of life. C never sends it.
    #[doc(alias = "RS_CTRL_KEEPALIVE")]
    Keepalive,
    /// The sender of this message sends nothing after it.
    #[doc(alias = "RS_CTRL_SHUTDOWN")]
    Shutdown,
}

/// Extension messages: operation 2, which C ignores, with a code in bits 28:26 and a value in 25:0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// The reading end of a direction can take bytes from this path.
    Ready,
    /// The writing end sends on this path from an offset of the stream on.
    Up {
        /// The low 26 bits of that offset.
        offset26: u32,
    },
    /// Precedes an `Up` whose offset has more than 26 bits. Without it those bits are those of the
    /// last `UpHigh`, or zero.
    UpHigh {
        /// Bits 51:26 of the offset.
        high26: u32,
    },
    /// The writing end has stopped sending on this path.
    Down,
    /// The sender asks the other end to stop sending on this path.
    Leave,
    /// A code of the future.
    Unknown {
        /// Bits 28:26.
        code: u8,
        /// Bits 25:0.
        value: u32,
    },
}

/// A count of messages, modulo 65536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct SeqNo(pub u16);

impl SeqNo {
    /// The number `n` messages later.
    #[inline]
    #[must_use]
    pub const fn wrapping_add(self, n: u16) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// Messages from `earlier` to `self`, modulo 65536.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u16 {
        self.0.wrapping_sub(earlier.0)
    }
}

const fn decode_ext(value: u32) -> Ext {
    let code = value >> EXT_CODE_SHIFT;
    let value = value & EXT_VALUE_MASK;
    match code {
        EXT_READY => Ext::Ready,
        EXT_UP => Ext::Up { offset26: value },
        EXT_DOWN => Ext::Down,
        EXT_LEAVE => Ext::Leave,
        EXT_UP_HIGH => Ext::UpHigh { high26: value },
        _ => Ext::Unknown { code: (code & EXT_CODE_MASK) as u8, value },
    }
}

const OP_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << OP_SHIFT) - 1;

const OP_DATA: u32 = 0;
const OP_WRITE: u32 = 2;
const OP_SGL: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CTRL: u32 = 7;

const CTRL_DISCONNECT: u32 = 0;
const CTRL_KEEPALIVE: u32 = 1;
const CTRL_SHUTDOWN: u32 = 2;

const EXT_CODE_SHIFT: u32 = 26;
const EXT_CODE_MASK: u32 = 7;
const EXT_VALUE_MASK: u32 = UP_MASK;

const EXT_READY: u32 = 0;
const EXT_UP: u32 = 1;
const EXT_DOWN: u32 = 2;
const EXT_LEAVE: u32 = 3;
const EXT_UP_HIGH: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_those_of_the_wire() {
        let table = [
            (0x0000_0010, Ok(Msg::Data { len: 16 })),
            (0x0000_0000, Err(PeerError::EmptyData)),
            (0x1FFF_FFFF, Ok(Msg::Data { len: MAX_DATA_LEN })),
            (0x2000_0005, Ok(Msg::Data { len: 5 })),
            (0x6000_0006, Ok(Msg::Data { len: 6 })),
            (0xA000_0007, Ok(Msg::Data { len: 7 })),
            (0xA000_0000, Err(PeerError::EmptyData)),
            (0x8000_0180, Ok(Msg::Credit { limit: SeqNo(384) })),
            (0x8001_0180, Ok(Msg::Credit { limit: SeqNo(384) })),
            (0x9FFF_FFFF, Ok(Msg::Credit { limit: SeqNo(u16::MAX) })),
            (0xC000_0003, Ok(Msg::Iomap { index: 3 })),
            (0xE000_0000, Ok(Msg::Ctrl(Ctrl::Disconnect))),
            (0xE000_0001, Ok(Msg::Ctrl(Ctrl::Keepalive))),
            (0xE000_0002, Ok(Msg::Ctrl(Ctrl::Shutdown))),
            (0xE000_0003, Ok(Msg::Ignored)),
            (0xFFFF_FFFF, Ok(Msg::Ignored)),
            (0x4000_0000, Ok(Msg::Ext(Ext::Ready))),
            (0x4400_0001, Ok(Msg::Ext(Ext::Up { offset26: 1 }))),
            (0x5000_0003, Ok(Msg::Ext(Ext::UpHigh { high26: 3 }))),
            (0x4BFF_FFFF, Ok(Msg::Ext(Ext::Down))),
            (0x4C00_0000, Ok(Msg::Ext(Ext::Leave))),
            (0x5C00_0009, Ok(Msg::Ext(Ext::Unknown { code: 7, value: 9 }))),
        ];
        for (word, msg) in table {
            assert_eq!(Imm(word).decode(), msg, "{word:#010x}");
        }
    }

    #[test]
    fn constructed_words_are_those_of_the_wire() {
        assert_eq!(Imm::data(16).0, 0x0000_0010);
        assert_eq!(Imm::credit(SeqNo(384)).0, 0x8000_0180);
        assert_eq!(Imm::iomap(7).0, 0xC000_0007);
        assert_eq!(Imm::ctrl(Ctrl::Disconnect).0, 0xE000_0000);
        assert_eq!(Imm::ctrl(Ctrl::Keepalive).0, 0xE000_0001);
        assert_eq!(Imm::ctrl(Ctrl::Shutdown).0, 0xE000_0002);
        assert_eq!(Imm::ext(Ext::Up { offset26: u32::MAX }).0, 0x47FF_FFFF);
        assert_eq!(Imm::ext(Ext::Leave).0, 0x4C00_0000);
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert_eq!(SeqNo(u16::MAX).wrapping_add(3), SeqNo(2));
        assert_eq!(SeqNo(2).since(SeqNo(u16::MAX)), 3);
    }

    proptest! {
        #[test]
        fn a_decoded_word_survives_encoding(word: u32) {
            if let Ok(msg) = Imm(word).decode() {
                prop_assert_eq!(msg.encode().decode(), Ok(msg));
            }
        }
    }
}
