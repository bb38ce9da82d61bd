//! Private data: the bytes that the protocol above sends along with a request or an answer.
//!
//! The connection manager of the RDMA stack carries a fixed number of bytes per message and pads
//! with zeroes, so the receiver always sees the full length. The soft device does the same, so
//! that nothing above can come to depend on more.

use crate::error::Error;
use std::fmt;

/// Private data as received: always the full length of its message kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl PrivateData {
    /// Bytes of a connect request (92 of the REQ message less the 36 of the address header).
    /// # Source
    /// Linux, `drivers/infiniband/core/cma.c`: `struct cma_hdr`; `IB_CM_REQ_PRIVATE_DATA_SIZE`.
    pub const REQUEST: usize = 56;
    /// Bytes of an accepting answer.
    pub const REPLY: usize = 196;
    /// Bytes of a rejecting answer.
    pub const REJECT: usize = 148;
    const MAX: usize = Self::REPLY;

    /// `data`, padded with zeroes to `len` bytes.
    pub(crate) fn padded(data: &[u8], len: usize) -> Result<Self, Error> {
        debug_assert!(len <= Self::MAX);
        let mut bytes = [0; Self::MAX];
        match bytes[..len].get_mut(..data.len()) {
            Some(space) => space.copy_from_slice(data),
            None => return Err(Error::LocalPrivateData { len: data.len(), max: len }),
        }
        Ok(Self { bytes, len })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateData").field(&self.as_bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_padded_to_the_length_of_its_message() {
        let data = PrivateData::padded(b"abc", PrivateData::REQUEST).expect("fits");
        assert_eq!(data.as_bytes().len(), 56);
        assert_eq!(&data.as_bytes()[..4], b"abc\0");
    }

    #[test]
    fn one_byte_too_many_is_refused() {
        let full = [7; PrivateData::REQUEST + 1];
        assert!(PrivateData::padded(&full[1..], PrivateData::REQUEST).is_ok());
        assert!(matches!(
            PrivateData::padded(&full, PrivateData::REQUEST),
            Err(Error::LocalPrivateData { len: 57, max: 56 })
        ));
    }
}
