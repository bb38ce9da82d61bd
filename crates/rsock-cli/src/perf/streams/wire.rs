//! The messages between client and server of a test: one request that opens each connection, and
//! the result of a one-way stream. Little-endian, fixed length.

use crate::perf::MAX_SIZE;
use std::io::{self, Read, Write};
use std::time::Duration;

/// Bytes of [`Request`] on the wire; a one-shot request is padded beyond, never shorter.
pub(super) const REQUEST_LEN: usize = 32;

const MAGIC: [u8; 8] = *b"rsockpf1";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Mode {
    /// Answer each message with one of the same size, until the client closes.
    Echo = 1,
    /// Count bytes until the client has finished, then answer with a [`Tally`].
    Sink = 2,
    /// The request itself, padded to the size, is the message: answer it once and close.
    Once = 3,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) mode: Mode,
    /// Bytes per message.
    pub(super) size: usize,
}

impl Request {
    pub(super) fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&(self.mode as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.size as u64).to_le_bytes());
        bytes
    }

    pub(super) fn read_from(stream: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; REQUEST_LEN];
        stream.read_exact(&mut bytes)?;
        Self::parse(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (mode, rest) = rest.split_first_chunk::<4>()?;
        let size = rest.get(4..)?.first_chunk::<8>()?;
        let mode = u32::from_le_bytes(*mode);
        let known = [Mode::Echo, Mode::Sink, Mode::Once];
        let mode = known.into_iter().find(|m| *m as u32 == mode)?;
        let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
        let least = if mode == Mode::Once { REQUEST_LEN } else { 1 };
        let is_good = *magic == MAGIC && (least..=MAX_SIZE).contains(&size);
        is_good.then_some(Self { mode, size })
    }
}

/// The result of a one-way stream, as the receiver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) bytes: u64,
    /// Time from the first byte to the end of file.
    pub(super) took: Duration,
}

impl Tally {
    pub(super) fn write_to(self, stream: &mut impl Write) -> io::Result<()> {
        let nanos = u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&nanos.to_le_bytes());
        stream.write_all(&bytes)
    }

    pub(super) fn read_from(stream: &mut impl Read) -> io::Result<Self> {
        let (mut bytes, mut nanos) = ([0; 8], [0; 8]);
        stream.read_exact(&mut bytes)?;
        stream.read_exact(&mut nanos)?;
        let took = Duration::from_nanos(u64::from_le_bytes(nanos));
        Ok(Self { bytes: u64::from_le_bytes(bytes), took })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_wire_and_bad_ones_do_not() {
        for request in [
            Request { mode: Mode::Echo, size: 1 },
            Request { mode: Mode::Sink, size: MAX_SIZE },
            Request { mode: Mode::Once, size: REQUEST_LEN },
        ] {
            assert_eq!(Request::read_from(&mut &request.to_bytes()[..]).unwrap(), request);
        }
        for bad in [
            Request { mode: Mode::Echo, size: 0 },
            Request { mode: Mode::Sink, size: MAX_SIZE + 1 },
            Request { mode: Mode::Once, size: REQUEST_LEN - 1 },
        ] {
            let e = Request::read_from(&mut &bad.to_bytes()[..]).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(Request::parse(&[0; REQUEST_LEN]), None);
    }

    #[test]
    fn a_tally_survives_the_wire() {
        let tally = Tally { bytes: 1 << 40, took: Duration::from_nanos(12_345) };
        let mut wire = Vec::new();
        tally.write_to(&mut wire).unwrap();
        assert_eq!(Tally::read_from(&mut &wire[..]).unwrap(), tally);
    }
}
