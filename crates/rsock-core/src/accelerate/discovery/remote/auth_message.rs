//! What the ends of a connection say in the private data of the connection manager's handshake, and what
//! of it is believed.
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 40 | connection data |
//! | 40 | 2 | the TCP port of who speaks, big-endian: never 0, which is what C leaves there |
//! | 42 | 2 | version, 2, big-endian |
//! | 44 | 12 | code |

#![forbid(unsafe_code)]

use crate::accelerate::four_tuple::Tuple;
use crate::accelerate::{FallbackReason, Side, discovery::local::Subject};
use crate::config::trusted_hosts::{AuthClaim, CODE_LEN, Trust, trust};
use rsock_proto::{CONN_DATA_LEN, ConnData};
use rsock_verbs::QpNum;
use std::net::SocketAddr;

/// 2 since `Up` names offsets of more than 26 bits.
const VERSION: u16 = 2;
const AT_PORT: usize = CONN_DATA_LEN;
const AT_VERSION: usize = AT_PORT + 2;
const AT_CODE: usize = AT_VERSION + 2;
const LEN: usize = AT_CODE + CODE_LEN;
const _: () = assert!(LEN == rsock_cm::PrivateData::REQUEST);

/// A connection, of which one end speaks to the other.
#[derive(Clone, Copy, Debug)]
pub(in crate::accelerate) struct Talk<'a> {
    trust: &'a Trust,
    tuple: &'a Tuple,
    side: Option<Side>,
}

impl<'a> Talk<'a> {
    pub(in crate::accelerate) fn of(subject: Subject<'a>) -> Self {
        Self { trust: trust(), tuple: subject.tuple, side: subject.side }
    }

    /// Whether a request from `from` to `to`, by the connection manager's word, may be the peer's to us. It
    /// comes from a port of its own.
    pub(in crate::accelerate) fn is_between(self, from: SocketAddr, to: SocketAddr) -> bool {
        from.ip() == self.tuple.peer.ip() && to == self.tuple.local
    }

    /// What we say, and the code in it: of our queue pair, in an answer to the `request` of that code.
    pub(in crate::accelerate) fn words(
        self,
        qp_num: QpNum,
        conn_data: &ConnData,
        request: Option<&[u8; CODE_LEN]>,
    ) -> ([u8; LEN], [u8; CODE_LEN]) {
        let mut words = [0; LEN];
        words[..CONN_DATA_LEN].copy_from_slice(&conn_data.encode());
        words[AT_PORT..AT_VERSION].copy_from_slice(&self.tuple.local.port().to_be_bytes());
        words[AT_VERSION..AT_CODE].copy_from_slice(&VERSION.to_be_bytes());
        let code = self.trust.code(self.claim(qp_num, &words[..AT_CODE], request));
        words[AT_CODE..].copy_from_slice(&code);
        (words, code)
    }

    /// The connection data in what the peer says of its queue pair, and the code, if it is the peer's.
    ///
    /// # Errors
    /// `NoPeer` if it means another connection, or nothing; `Untrusted`; `PathFailed`.
    pub(in crate::accelerate) fn believed(
        self,
        qp_num: QpNum,
        bytes: &[u8],
        request: Option<&[u8; CODE_LEN]>,
    ) -> Result<(ConnData, [u8; CODE_LEN]), FallbackReason> {
        let code = bytes.get(AT_CODE..LEN).and_then(|code| code.try_into().ok());
        let code = code.ok_or(FallbackReason::NoPeer)?;
        let port = self.tuple.peer.port().to_be_bytes();
        let version = VERSION.to_be_bytes();
        if bytes[AT_PORT..AT_VERSION] != port || bytes[AT_VERSION..AT_CODE] != version {
            return Err(FallbackReason::NoPeer);
        }
        let claim = self.claim(qp_num, &bytes[..AT_CODE], request);
        if !self.trust.believes(self.tuple.peer.ip(), claim, &code) {
            return Err(FallbackReason::Untrusted);
        }
        Ok((ConnData::decode(bytes).map_err(|_| FallbackReason::PathFailed)?, code))
    }

    fn claim<'b>(
        self,
        qp_num: QpNum,
        conn_data: &'b [u8],
        request: Option<&'b [u8; CODE_LEN]>,
    ) -> AuthClaim<'b> {
        let Tuple { local, peer } = *self.tuple;
        let [client, server] = match self.side {
            Some(Side::Accepted) => [peer, local],
            _ => [local, peer],
        };
        AuthClaim { client, server, qp_num: qp_num.0, conn_data, request }
    }
}

/// What the fuzzer feeds: words of a host that may say anything, to an end that asks for a key and to one
/// with a rule. Byte 0 says from which side they are, the next four the queue pair's number.
///
/// # Panics
/// If words without the key are believed, or something else is heard than was said.
#[cfg(any(test, fuzzing))]
pub fn check_words(data: &[u8]) {
    let Some((&[side, a, b, c, d], bytes)) = data.split_first_chunk::<5>() else { return };
    let qp_num = QpNum(u32::from_le_bytes([a, b, c, d]));
    let addr = |text: &str| text.parse::<SocketAddr>();
    let (Ok(local), Ok(peer)) = (addr("10.9.0.2:40000"), addr("10.9.0.1:80")) else { return };
    let tuple = Tuple { local, peer };
    let side = Some(if side & 1 == 0 { Side::Connected } else { Side::Accepted });
    let request = [side.map_or(0, |side| side as u8); CODE_LEN];
    for request in [None, Some(&request)] {
        let (rule, key) = (Trust::of_rule("10.9.0.0/24"), Trust::of_key(b"0123456789abcdef"));
        let heard = Talk { trust: &rule, tuple: &tuple, side }.believed(qp_num, bytes, request);
        if let Ok((conn_data, code)) = heard {
            let mut block = [0; CONN_DATA_LEN];
            block.copy_from_slice(&bytes[..CONN_DATA_LEN]);
            // Reserved, and not kept.
            block[4..7].fill(0);
            assert_eq!((conn_data.encode(), &code[..]), (block, &bytes[AT_CODE..LEN]));
        }
        let heard = Talk { trust: &key, tuple: &tuple, side }.believed(qp_num, bytes, request);
        assert!(heard.is_err(), "believed without the key");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsock_proto::{ConnFlags, PROTOCOL_VERSION, RemoteSge};
    use rsock_verbs::{RKey, RemoteAddr};

    const QP: QpNum = QpNum(17);

    /// Two ends of one connection, and what they know of others.
    struct Pair {
        trust: Trust,
        client: Tuple,
        server: Tuple,
    }

    impl Pair {
        fn new(trust: Trust) -> Self {
            let local = "10.9.0.2:40000".parse().expect("address");
            let peer = "10.9.0.1:80".parse().expect("address");
            let server = Tuple { local: peer, peer: local };
            Self { trust, client: Tuple { local, peer }, server }
        }

        fn with_rule() -> Self {
            Self::new(Trust::of_rule("10.9.0.0/24"))
        }

        fn with_key() -> Self {
            Self::new(Trust::of_key(b"0123456789abcdef"))
        }

        fn client(&self) -> Talk<'_> {
            Talk { trust: &self.trust, tuple: &self.client, side: Some(Side::Connected) }
        }

        fn server(&self) -> Talk<'_> {
            Talk { trust: &self.trust, tuple: &self.server, side: Some(Side::Accepted) }
        }
    }

    fn conn_data() -> ConnData {
        let buffer = |addr, len| RemoteSge { addr: RemoteAddr(addr), key: RKey(1), len };
        ConnData {
            version: PROTOCOL_VERSION,
            flags: ConnFlags::LOCAL,
            credits: 64,
            target_iomap_size: 0,
            target_sgl: buffer(0x1000, 2),
            data_buf: buffer(0x2000, 0x1_0000),
        }
    }

    #[test]
    fn each_end_believes_the_other() {
        for pair in [Pair::with_rule(), Pair::with_key()] {
            let (asked, request) = pair.server().words(QP, &conn_data(), None);
            let heard = pair.client().believed(QP, &asked, None);
            assert_eq!(heard, Ok((conn_data(), request)));
            let (answered, answer) = pair.client().words(QP, &conn_data(), Some(&request));
            let heard = pair.server().believed(QP, &answered, Some(&request));
            assert_eq!(heard, Ok((conn_data(), answer)));
        }
    }

    #[test]
    fn a_request_comes_from_the_peers_address_to_ours_and_the_port() {
        let pair = Pair::with_rule();
        let client = pair.client();
        let from = |ip: &str| format!("{ip}:1234").parse().expect("address");
        assert!(client.is_between(from("10.9.0.1"), pair.client.local));
        assert!(!client.is_between(from("10.9.0.3"), pair.client.local));
        for to in ["10.9.0.2:40001", "10.9.0.3:40000"] {
            assert!(!client.is_between(from("10.9.0.1"), to.parse().expect("address")), "{to}");
        }
    }

    /// With a rule, whoever speaks: only sense is left to be asked for.
    #[test]
    fn words_of_another_connection_or_version_or_cut_short_are_no_peers() {
        for pair in [Pair::with_rule(), Pair::with_key()] {
            let (honest, _) = pair.server().words(QP, &conn_data(), None);
            for len in 0..LEN {
                let heard = pair.client().believed(QP, &honest[..len], None);
                assert_eq!(heard, Err(FallbackReason::NoPeer), "{len} bytes");
            }
            for at in AT_PORT..AT_CODE {
                for bit in 0..8 {
                    let mut lie = honest;
                    lie[at] ^= 1 << bit;
                    let heard = pair.client().believed(QP, &lie, None);
                    assert_eq!(heard, Err(FallbackReason::NoPeer), "bit {bit} of byte {at}");
                }
            }
            // Our own words, sent back.
            let (echo, _) = pair.client().words(QP, &conn_data(), None);
            assert_eq!(pair.client().believed(QP, &echo, None), Err(FallbackReason::NoPeer));
        }
    }

    #[test]
    fn connection_data_of_another_version_makes_no_path() {
        let pair = Pair::with_rule();
        for version in (0..=255).filter(|version| *version != PROTOCOL_VERSION) {
            let (lie, _) = pair.server().words(QP, &ConnData { version, ..conn_data() }, None);
            let heard = pair.client().believed(QP, &lie, None);
            assert_eq!(heard, Err(FallbackReason::PathFailed), "{version}");
        }
    }

    #[test]
    fn with_a_key_no_byte_may_be_another() {
        let pair = Pair::with_key();
        let (honest, request) = pair.server().words(QP, &conn_data(), None);
        let (answer, _) = pair.client().words(QP, &conn_data(), Some(&request));
        for at in (0..LEN).filter(|at| !(AT_PORT..AT_CODE).contains(at)) {
            for bit in 0..8 {
                let (mut asked, mut answered) = (honest, answer);
                asked[at] ^= 1 << bit;
                answered[at] ^= 1 << bit;
                let heard = pair.client().believed(QP, &asked, None);
                assert_eq!(heard, Err(FallbackReason::Untrusted), "bit {bit} of byte {at}");
                let heard = pair.server().believed(QP, &answered, Some(&request));
                assert_eq!(heard, Err(FallbackReason::Untrusted), "bit {bit} of byte {at}");
            }
        }
        // Another queue pair, and an answer to another request.
        let heard = pair.client().believed(QpNum(18), &honest, None);
        assert_eq!(heard, Err(FallbackReason::Untrusted));
        let heard = pair.server().believed(QP, &answer, Some(&[7; CODE_LEN]));
        assert_eq!(heard, Err(FallbackReason::Untrusted));
    }

    /// The connection is part of the proof: the same words say nothing of another one with these ports.
    #[test]
    fn a_proof_is_of_one_connection() {
        let mut pair = Pair::with_key();
        let (honest, _) = pair.server().words(QP, &conn_data(), None);
        pair.client.local.set_port(40001);
        assert_eq!(pair.client().believed(QP, &honest, None), Err(FallbackReason::Untrusted));
    }

    #[test]
    fn a_rule_is_for_its_network_alone() {
        let mut pair = Pair::with_rule();
        let (honest, _) = pair.server().words(QP, &conn_data(), None);
        pair.client.peer.set_ip("10.9.1.1".parse().expect("address"));
        assert_eq!(pair.client().believed(QP, &honest, None), Err(FallbackReason::Untrusted));
    }
}
