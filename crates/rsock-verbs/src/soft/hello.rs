//! The message of the link handshake: what each process tells the other about itself.

use super::layout::VERSION;
use super::segment::Mapping;
use crate::error::Error;
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a hello.
pub const HELLO_LEN: usize = size_of::<Hello>();

/// Identity of a process for its peers: random, and a forked child has another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NodeId(pub [u8; 16]);

/// Identity of a link, which both ends know. A process names a link by it in order to reuse it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId(pub [u8; 16]);

/// WIRE: native byte order; both ends are on one host.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Hello {
    magic: [u8; 8],
    version: u32,
    pub(super) flags: u32,
    pub(super) size: u64,
    /// Address of the sender's segment in its process.
    pub(super) base: u64,
    /// Address and content of a word of the sender's process; see [`super::foreign`].
    pub(super) word_at: u64,
    pub(super) word: u64,
    pub(super) link: [u8; 16],
    pub(super) node: [u8; 16],
}

/// What a hello says of the process that sends it.
pub(super) struct HelloSender<'a> {
    pub(super) node: NodeId,
    pub(super) has_barrier: bool,
    /// See [`super::foreign`]. The word stays in its place as long as the process lives.
    pub(super) word: &'a u64,
}

const MAGIC: [u8; 8] = *b"rsocksft";
/// The sending process is a target of [`super::barrier`] and can issue it.
pub(super) const FLAG_BARRIER: u32 = 1;

const _: () = assert!(HELLO_LEN == 80);

impl Hello {
    pub(super) fn new(link: LinkId, sender: &HelloSender<'_>, own: &Mapping) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            flags: if sender.has_barrier { FLAG_BARRIER } else { 0 },
            size: own.len(),
            base: own.addr(),
            word_at: std::ptr::from_ref(sender.word).expose_provenance() as u64,
            word: *sender.word,
            link: link.0,
            node: sender.node.0,
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let hello =
            Self::read_from_bytes(bytes).map_err(|_| Error::PeerViolation("hello's length"))?;
        if hello.magic != MAGIC {
            return Err(Error::PeerViolation("hello's magic"));
        }
        if hello.version != VERSION {
            return Err(Error::Unsupported("the peer runs another version of the soft device"));
        }
        Ok(hello)
    }

    pub(super) fn to_bytes(self) -> [u8; HELLO_LEN] {
        zerocopy::transmute!(self)
    }
}

/// Sixteen random bytes.
pub(super) fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(crate::high_fd::verb("getrandom")(e)),
        }
    }
    Ok(bytes)
}

macro_rules! hex {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }
    };
}
hex!(NodeId);
hex!(LinkId);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Hello::parse(&bytes).is_err());
        }
    }

    #[test]
    fn a_hello_survives_the_wire_and_another_version_does_not() {
        let node = crate::soft::context::node().expect("node");
        let (_fd, own) = crate::soft::segment::create().expect("segment");
        let bytes = Hello::new(LinkId([1; 16]), &node.hello_sender(), &own).to_bytes();
        let back = Hello::parse(&bytes).expect("hello");
        assert_eq!((back.size, back.base, back.link), (own.len(), own.addr(), [1; 16]));
        assert_eq!(back.node, node.id.0);
        let mut other = bytes;
        other[8] ^= 1;
        assert!(matches!(Hello::parse(&other), Err(Error::Unsupported(_))));
    }
}
