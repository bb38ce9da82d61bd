//! Messages of the soft device's connection handshake.
//!
//! Both ends run on one host, but may be different versions: every message carries a magic
//! number and a version, lengths are exact, integers little-endian. Parsing is total.

use crate::addr::canonical;
use crate::error::{Error, Violation};
use crate::private_data::PrivateData;
use rsock_verbs::QpNum;
use rsock_verbs::soft::{HELLO_LEN, LinkId};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u32 = u32::from_le_bytes(*b"rscm");
/// Version of these messages.
pub(super) const VERSION: u16 = 1;
/// Length of the longest message.
pub(super) const MAX_LEN: usize = 512;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    Hello = 1,
    Welcome = 2,
    Offer = 3,
    Linked = 4,
    Request = 5,
    Reply = 6,
    Reject = 7,
    Ready = 8,
    Disconnect = 9,
    Reset = 10,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: U32,
    version: U16,
    kind: U16,
}

/// An address on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct WireAddr {
    /// 4 or 6.
    family: U16,
    port: U16,
    scope: U32,
    ip: [u8; 16],
}

/// Connector: its address, the listener's address, and the link that the two processes probably
/// share.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Hello {
    header: Header,
    pub(super) space: U16,
    reserved: U16,
    pub(super) source: WireAddr,
    pub(super) dest: WireAddr,
    /// All zero for none.
    link: [u8; 16],
}

/// Listener: answers HELLO; the client goes on with the link that it named or with an offer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Welcome {
    header: Header,
    pub(super) is_linked: U16,
    reserved: U16,
}

/// The soft device's own half of a link, with descriptors: from the connector ([`Kind::Offer`]) and
/// back ([`Kind::Linked`]).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LinkHalf {
    header: Header,
    pub(super) hello: [u8; HELLO_LEN],
}

/// Connector: a queue pair and private data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RequestMessage {
    header: Header,
    qp_num: U32,
    private: [u8; PrivateData::REQUEST],
}

/// Listener: a queue pair and private data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Reply {
    header: Header,
    qp_num: U32,
    private: [u8; PrivateData::REPLY],
}

/// Listener: rejects the request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Reject {
    header: Header,
    private: [u8; PrivateData::REJECT],
}

/// A message of its kind alone: [`Kind::Ready`], [`Kind::Disconnect`], [`Kind::Reset`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Bare {
    header: Header,
}

const _: () = {
    assert!(size_of::<Hello>() == 8 + 4 + 2 * 24 + 16);
    assert!(size_of::<Welcome>() == 8 + 4);
    assert!(size_of::<LinkHalf>() == 8 + HELLO_LEN);
    assert!(size_of::<RequestMessage>() == 8 + 4 + 56);
    assert!(size_of::<Reply>() == 8 + 4 + 196);
    assert!(size_of::<Reject>() == 8 + 148);
    assert!(size_of::<Reply>() <= MAX_LEN && size_of::<LinkHalf>() <= MAX_LEN);
};

impl Header {
    fn new(kind: Kind) -> Self {
        Self { magic: MAGIC.into(), version: VERSION.into(), kind: (kind as u16).into() }
    }
}

/// Checks magic number and version; the kind, as a number.
pub(super) fn kind(bytes: &[u8]) -> Result<u16, Error> {
    let (header, _) = Header::read_from_prefix(bytes).map_err(|_| Violation::Length)?;
    if header.magic.get() != MAGIC {
        return Err(Violation::Magic.into());
    }
    match header.version.get() {
        VERSION => Ok(header.kind.get()),
        version => Err(Error::PeerVersion { version }),
    }
}

/// The message as a `T`, which is what `expected` messages are.
pub(super) fn parse<T: FromBytes>(bytes: &[u8], expected: Kind) -> Result<T, Error> {
    match kind(bytes)? {
        k if k == expected as u16 => {
            T::read_from_bytes(bytes).map_err(|_| Violation::Length.into())
        }
        k => Err(Violation::Kind(k).into()),
    }
}

impl WireAddr {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let (family, ip, scope) = match addr {
            SocketAddr::V4(a) => (4, a.ip().to_ipv6_mapped().octets(), 0),
            SocketAddr::V6(a) => (6, a.ip().octets(), a.scope_id()),
        };
        Self { family: family.into(), port: addr.port().into(), scope: scope.into(), ip }
    }

    pub(super) fn parse(&self) -> Result<SocketAddr, Error> {
        let v6 = SocketAddrV6::new(self.ip.into(), self.port.get(), 0, self.scope.get());
        let addr = canonical(v6.into());
        let is_specific = addr.port() != 0 && !addr.ip().is_unspecified();
        match (self.family.get(), addr.ip()) {
            (4, IpAddr::V4(_)) | (6, IpAddr::V6(_)) if is_specific => Ok(addr),
            _ => Err(Violation::Address.into()),
        }
    }
}

impl Hello {
    pub(super) fn new(space: u16, source: SocketAddr, dest: SocketAddr) -> Self {
        Self {
            header: Header::new(Kind::Hello),
            space: space.into(),
            reserved: 0.into(),
            source: WireAddr::new(source),
            dest: WireAddr::new(dest),
            link: [0; 16],
        }
    }

    pub(super) fn set_link(&mut self, link: Option<LinkId>) {
        self.link = link.map_or([0; 16], |id| id.0);
    }

    pub(super) fn link(&self) -> Option<LinkId> {
        (self.link != [0; 16]).then_some(LinkId(self.link))
    }
}

impl Welcome {
    pub(super) fn new(is_linked: bool) -> Self {
        Self {
            header: Header::new(Kind::Welcome),
            is_linked: u16::from(is_linked).into(),
            reserved: 0.into(),
        }
    }
}

impl LinkHalf {
    pub(super) fn new(kind: Kind, hello: [u8; HELLO_LEN]) -> Self {
        Self { header: Header::new(kind), hello }
    }
}

/// Defines a message that carries a queue pair number and private data.
macro_rules! with_private_data {
    ($name:ident, $kind:expr, $len:expr) => {
        impl $name {
            pub(super) fn new(qp_num: QpNum, data: &[u8]) -> Result<Self, Error> {
                let data = PrivateData::padded(data, $len)?;
                let mut private = [0; $len];
                private.copy_from_slice(data.as_bytes());
                Ok(Self { header: Header::new($kind), qp_num: qp_num.0.into(), private })
            }

            pub(super) fn qp_num(&self) -> Result<QpNum, Error> {
                match self.qp_num.get() {
                    n if n < 1 << 24 => Ok(QpNum(n)),
                    _ => Err(Violation::Value.into()),
                }
            }

            pub(super) fn private_data(&self) -> Result<PrivateData, Error> {
                PrivateData::padded(&self.private, $len)
            }
        }
    };
}

with_private_data!(RequestMessage, Kind::Request, PrivateData::REQUEST);
with_private_data!(Reply, Kind::Reply, PrivateData::REPLY);

impl Reject {
    pub(super) fn new(data: &[u8]) -> Result<Self, Error> {
        let data = PrivateData::padded(data, PrivateData::REJECT)?;
        let mut private = [0; PrivateData::REJECT];
        private.copy_from_slice(data.as_bytes());
        Ok(Self { header: Header::new(Kind::Reject), private })
    }

    pub(super) fn private_data(&self) -> Result<PrivateData, Error> {
        PrivateData::padded(&self.private, PrivateData::REJECT)
    }
}

impl Bare {
    pub(super) fn new(kind: Kind) -> Self {
        Self { header: Header::new(kind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("address")
    }

    #[test]
    fn messages_survive_the_wire() {
        let mut hello = Hello::new(0x106, addr("1.2.3.4:5"), addr("[fe80::1%3]:6"));
        assert_eq!(hello.link(), None);
        hello.set_link(Some(LinkId([9; 16])));
        let back: Hello = parse(hello.as_bytes(), Kind::Hello).expect("hello");
        assert_eq!(back.source.parse().expect("source"), addr("1.2.3.4:5"));
        assert_eq!(back.dest.parse().expect("dest"), addr("[fe80::1%3]:6"));
        assert_eq!(back.link(), Some(LinkId([9; 16])));

        let request = RequestMessage::new(QpNum(77), b"data").expect("fits");
        let back: RequestMessage = parse(request.as_bytes(), Kind::Request).expect("request");
        assert_eq!(back.qp_num().expect("qp"), QpNum(77));
        assert_eq!(&back.private_data().expect("data").as_bytes()[..5], b"data\0");
    }

    #[test]
    fn the_first_message_keeps_its_wire_format() {
        let ready = Bare::new(Kind::Ready);
        assert_eq!(ready.as_bytes(), b"rscm\x01\0\x08\0");
    }

    #[test]
    fn bad_bytes_are_typed_errors() {
        let good = Bare::new(Kind::Ready).as_bytes().to_vec();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            parse::<Bare>(&bytes, Kind::Ready).map(|_| ())
        };
        let violation = |r: Result<(), Error>| match r {
            Err(Error::PeerViolation(v)) => v,
            other => panic!("{other:?}"),
        };
        assert_eq!(violation(with(0, b'x')), Violation::Magic);
        assert!(matches!(with(4, 2), Err(Error::PeerVersion { version: 2 })));
        assert_eq!(violation(with(6, 1)), Violation::Kind(1));
        for len in 0..good.len() {
            let short = parse::<Bare>(&good[..len], Kind::Ready).map(|_| ());
            assert_eq!(violation(short), Violation::Length);
        }
        let long = [&good[..], &[0]].concat();
        assert_eq!(violation(parse::<Bare>(&long, Kind::Ready).map(|_| ())), Violation::Length);
    }

    #[test]
    fn addresses_that_mean_nothing_are_refused() {
        for bad in ["0.0.0.0:1", "1.2.3.4:0", "[::]:1", "[::1]:0"] {
            assert!(WireAddr::new(addr(bad)).parse().is_err(), "{bad}");
        }
        let mut odd = WireAddr::new(addr("1.2.3.4:5"));
        odd.family = 6.into();
        assert!(odd.parse().is_err(), "an IPv6 address that is not");
        odd.family = 10.into();
        assert!(odd.parse().is_err(), "an unknown family");
    }
}
