//! The messages by which the ends of a connection between hosts prove themselves: private data of
//! the connection manager's handshake.
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 40 | connection data |
//! | 40 | 2 | the TCP port of the sender, big-endian: never 0, which is what C leaves there |
//! | 42 | 2 | version, 2, big-endian |
//! | 44 | 12 | code |

#![forbid(unsafe_code)]

use crate::accelerate::discovery::candidate::Candidate;
use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::{FallbackReason, Side};
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

/// What makes and checks the messages of one connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::accelerate) struct Authenticator<'a> {
    trust: &'a Trust,
    tuple: &'a FourTuple,
    side: Option<Side>,
}

impl<'a> Authenticator<'a> {
    pub(in crate::accelerate) fn of(candidate: Candidate<'a>) -> Self {
        Self { trust: trust(), tuple: candidate.tuple, side: candidate.side }
    }

    /// Whether a request from `from` to `to`, according to the connection manager, may be the
    /// peer's to this end. The peer's port is one of its own.
    pub(in crate::accelerate) fn has_addresses(self, from: SocketAddr, to: SocketAddr) -> bool {
        from.ip() == self.tuple.peer.ip() && to == self.tuple.local
    }

    /// The message about the local queue pair, and the code in it; in an answer, `request` is the
    /// code of the request.
    pub(in crate::accelerate) fn message(
        self,
        qp_num: QpNum,
        conn_data: &ConnData,
        request: Option<&[u8; CODE_LEN]>,
    ) -> ([u8; LEN], [u8; CODE_LEN]) {
        let mut message = [0; LEN];
        message[..CONN_DATA_LEN].copy_from_slice(&conn_data.encode());
        message[AT_PORT..AT_VERSION].copy_from_slice(&self.tuple.local.port().to_be_bytes());
        message[AT_VERSION..AT_CODE].copy_from_slice(&VERSION.to_be_bytes());
        let code = self.trust.code(self.claim(qp_num, &message[..AT_CODE], request));
        message[AT_CODE..].copy_from_slice(&code);
        (message, code)
    }

    /// Checks the peer's message about its queue pair. Returns its connection data and code.
    ///
    /// # Errors
    /// `NoPeer` if the message means another connection, or is none; `Untrusted` without a proof;
    /// `PathFailed` for bad connection data.
    pub(in crate::accelerate) fn verify(
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
        let FourTuple { local, peer } = *self.tuple;
        let [client, server] = match self.side {
            Some(Side::Accepted) => [peer, local],
            _ => [local, peer],
        };
        AuthClaim { client, server, qp_num: qp_num.0, conn_data, request }
    }
}

/// What the fuzzer calls: a message of a host that may send anything, to an end that asks for a key
/// and to one with a rule. Byte 0 gives the side of the sender, the next four the queue pair's
/// number.
///
/// # Panics
/// If a message without the key is accepted, or decodes to something else than was sent.
#[cfg(any(test, fuzzing))]
pub fn check_auth_message(data: &[u8]) {
    let Some((&[side, a, b, c, d], bytes)) = data.split_first_chunk::<5>() else { return };
    let qp_num = QpNum(u32::from_le_bytes([a, b, c, d]));
    let addr = |text: &str| text.parse::<SocketAddr>();
    let (Ok(local), Ok(peer)) = (addr("10.9.0.2:40000"), addr("10.9.0.1:80")) else { return };
    let tuple = FourTuple { local, peer };
    let side = Some(if side & 1 == 0 { Side::Connected } else { Side::Accepted });
    let request = [side.map_or(0, |side| side as u8); CODE_LEN];
    for request in [None, Some(&request)] {
        let (rule, key) = (Trust::of_rule("10.9.0.0/24"), Trust::of_key(b"0123456789abcdef"));
        let verdict =
            Authenticator { trust: &rule, tuple: &tuple, side }.verify(qp_num, bytes, request);
        if let Ok((conn_data, code)) = verdict {
            let mut block = [0; CONN_DATA_LEN];
            block.copy_from_slice(&bytes[..CONN_DATA_LEN]);
            // Reserved bytes, which are not kept.
            block[4..7].fill(0);
            assert_eq!((conn_data.encode(), &code[..]), (block, &bytes[AT_CODE..LEN]));
        }
        let verdict =
            Authenticator { trust: &key, tuple: &tuple, side }.verify(qp_num, bytes, request);
        assert!(verdict.is_err(), "accepted without the key");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsock_proto::{ConnFlags, PROTOCOL_VERSION, RemoteSge};
    use rsock_verbs::{RKey, RemoteAddr};

    const QP: QpNum = QpNum(17);

    /// Two ends of one connection, and what they trust.
    struct Pair {
        trust: Trust,
        client: FourTuple,
        server: FourTuple,
    }

    impl Pair {
        fn new(trust: Trust) -> Self {
            let local = "10.9.0.2:40000".parse().expect("address");
            let peer = "10.9.0.1:80".parse().expect("address");
            let server = FourTuple { local: peer, peer: local };
            Self { trust, client: FourTuple { local, peer }, server }
        }

        fn with_rule() -> Self {
            Self::new(Trust::of_rule("10.9.0.0/24"))
        }

        fn with_key() -> Self {
            Self::new(Trust::of_key(b"0123456789abcdef"))
        }

        fn client(&self) -> Authenticator<'_> {
            Authenticator { trust: &self.trust, tuple: &self.client, side: Some(Side::Connected) }
        }

        fn server(&self) -> Authenticator<'_> {
            Authenticator { trust: &self.trust, tuple: &self.server, side: Some(Side::Accepted) }
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
    fn each_end_accepts_the_message_of_the_other() {
        for pair in [Pair::with_rule(), Pair::with_key()] {
            let (asked, request) = pair.server().message(QP, &conn_data(), None);
            let verdict = pair.client().verify(QP, &asked, None);
            assert_eq!(verdict, Ok((conn_data(), request)));
            let (answered, answer) = pair.client().message(QP, &conn_data(), Some(&request));
            let verdict = pair.server().verify(QP, &answered, Some(&request));
            assert_eq!(verdict, Ok((conn_data(), answer)));
        }
    }

    #[test]
    fn a_request_comes_from_the_peers_address_to_the_local_address_and_port() {
        let pair = Pair::with_rule();
        let client = pair.client();
        let from = |ip: &str| format!("{ip}:1234").parse().expect("address");
        assert!(client.has_addresses(from("10.9.0.1"), pair.client.local));
        assert!(!client.has_addresses(from("10.9.0.3"), pair.client.local));
        for to in ["10.9.0.2:40001", "10.9.0.3:40000"] {
            assert!(!client.has_addresses(from("10.9.0.1"), to.parse().expect("address")), "{to}");
        }
    }

    /// With a rule any sender of that network is trusted, so only the content is checked.
    #[test]
    fn a_message_of_another_connection_or_version_or_a_truncated_one_is_refused() {
        for pair in [Pair::with_rule(), Pair::with_key()] {
            let (honest, _) = pair.server().message(QP, &conn_data(), None);
            for len in 0..LEN {
                let verdict = pair.client().verify(QP, &honest[..len], None);
                assert_eq!(verdict, Err(FallbackReason::NoPeer), "{len} bytes");
            }
            for at in AT_PORT..AT_CODE {
                for bit in 0..8 {
                    let mut bad = honest;
                    bad[at] ^= 1 << bit;
                    let verdict = pair.client().verify(QP, &bad, None);
                    assert_eq!(verdict, Err(FallbackReason::NoPeer), "bit {bit} of byte {at}");
                }
            }
            // This end's own message, sent back.
            let (echo, _) = pair.client().message(QP, &conn_data(), None);
            assert_eq!(pair.client().verify(QP, &echo, None), Err(FallbackReason::NoPeer));
        }
    }

    #[test]
    fn connection_data_of_another_version_makes_no_path() {
        let pair = Pair::with_rule();
        for version in (0..=255).filter(|version| *version != PROTOCOL_VERSION) {
            let (bad, _) = pair.server().message(QP, &ConnData { version, ..conn_data() }, None);
            let verdict = pair.client().verify(QP, &bad, None);
            assert_eq!(verdict, Err(FallbackReason::PathFailed), "{version}");
        }
    }

    #[test]
    fn with_a_key_every_changed_byte_is_noticed() {
        let pair = Pair::with_key();
        let (honest, request) = pair.server().message(QP, &conn_data(), None);
        let (answer, _) = pair.client().message(QP, &conn_data(), Some(&request));
        for at in (0..LEN).filter(|at| !(AT_PORT..AT_CODE).contains(at)) {
            for bit in 0..8 {
                let (mut asked, mut answered) = (honest, answer);
                asked[at] ^= 1 << bit;
                answered[at] ^= 1 << bit;
                let verdict = pair.client().verify(QP, &asked, None);
                assert_eq!(verdict, Err(FallbackReason::Untrusted), "bit {bit} of byte {at}");
                let verdict = pair.server().verify(QP, &answered, Some(&request));
                assert_eq!(verdict, Err(FallbackReason::Untrusted), "bit {bit} of byte {at}");
            }
        }
        // Another queue pair, and an answer to another request.
        let verdict = pair.client().verify(QpNum(18), &honest, None);
        assert_eq!(verdict, Err(FallbackReason::Untrusted));
        let verdict = pair.server().verify(QP, &answer, Some(&[7; CODE_LEN]));
        assert_eq!(verdict, Err(FallbackReason::Untrusted));
    }

    /// The connection is part of the proof: the same message proves nothing about another
    /// connection with these ports.
    #[test]
    fn a_proof_holds_for_one_connection_only() {
        let mut pair = Pair::with_key();
        let (honest, _) = pair.server().message(QP, &conn_data(), None);
        pair.client.local.set_port(40001);
        assert_eq!(pair.client().verify(QP, &honest, None), Err(FallbackReason::Untrusted));
    }

    #[test]
    fn a_rule_holds_for_its_network_only() {
        let mut pair = Pair::with_rule();
        let (honest, _) = pair.server().message(QP, &conn_data(), None);
        pair.client.peer.set_ip("10.9.1.1".parse().expect("address"));
        assert_eq!(pair.client().verify(QP, &honest, None), Err(FallbackReason::Untrusted));
    }
}
