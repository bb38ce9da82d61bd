//! The messages of local discovery, and the Unix socket that carries them.

use crate::accelerate::FallbackReason;
use crate::accelerate::discovery::candidate::Candidate;
use crate::accelerate::verify::{self, SocketId};
use crate::engine::Preparing;
use rsock_proto::CONN_DATA_LEN;
use rsock_verbs::QpNum;
use rsock_verbs::soft::{ConnectionNote, HELLO_LEN, Link, LinkId, Soft};
use rsock_verbs::untrusted::{self, UntrustedFd};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::accelerate) enum Kind {
    /// An offer of a link, or the answer to one; with descriptors.
    Hello = 1,
    Request = 2,
    Reply = 3,
    /// The finder named a link that the publisher does not know.
    UnknownLink = 4,
    /// The publisher cannot or does not want to continue.
    Refusal = 5,
    /// The publisher is here. Only in the connection table of a link: elsewhere the meeting point
    /// says so.
    Published = 6,
    /// The publisher answers the request: the finder waits. Only in the table of a link.
    Answering = 7,
    /// The finder takes its request back, unless it is being answered. Only in the table of a link.
    Withdrawn = 8,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Request,
            3 => Self::Reply,
            4 => Self::UnknownLink,
            5 => Self::Refusal,
            6 => Self::Published,
            7 => Self::Answering,
            8 => Self::Withdrawn,
            _ => return None,
        })
    }
}

/// One message of the exchange. Host byte order: both ends are on one host.
///
/// | off | size | field |
/// |---|---|---|
/// | 0 | 4 | `RSKP` |
/// | 4 | 1 | version, 2 |
/// | 5 | 1 | kind |
/// | 6 | 2 | 0 |
/// | 8 | 8 | cookie of the sender's TCP socket |
/// | 16 | 4 | inode of it |
/// | 20 | 4 | queue pair number |
/// | 24 | 16 | link id |
/// | 40 | 40 | connection data |
/// | 80 | `HELLO_LEN` | link handshake |
#[derive(Debug)]
pub(in crate::accelerate) struct Message {
    pub(in crate::accelerate) kind: Kind,
    pub(in crate::accelerate) socket: SocketId,
    pub(in crate::accelerate) qp_num: QpNum,
    pub(in crate::accelerate) link: LinkId,
    pub(in crate::accelerate) conn_data: [u8; CONN_DATA_LEN],
    pub(in crate::accelerate) hello: [u8; HELLO_LEN],
}

pub(in crate::accelerate) enum Received {
    Message(Message, Vec<UntrustedFd>),
    Nothing,
    End,
}

const MAGIC: [u8; 4] = *b"RSKP";
/// 2 since `Up` names offsets of more than 26 bits: an end without that would misplace bytes.
const VERSION: u8 = 2;
const AT_LINK: usize = 24;
const AT_CONN_DATA: usize = 40;
const AT_HELLO: usize = AT_CONN_DATA + CONN_DATA_LEN;
const MESSAGE_LEN: usize = AT_HELLO + HELLO_LEN;
/// Descriptors of one message.
const MAX_FDS: usize = 2;

const _: () = assert!(CONN_DATA_LEN == (size_of::<ConnectionNote>() - 3 * 8));

impl Message {
    pub(in crate::accelerate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            socket: SocketId { cookie: 0, inode: 0 },
            qp_num: QpNum(0),
            link: LinkId([0; 16]),
            conn_data: [0; CONN_DATA_LEN],
            hello: [0; HELLO_LEN],
        }
    }

    /// A request or reply about this connection.
    pub(in crate::accelerate) fn about(
        kind: Kind,
        candidate: Candidate<'_>,
        link: &Link,
        preparing: &Preparing<Soft>,
    ) -> Result<Self, FallbackReason> {
        Ok(Self {
            socket: verify::own(candidate.socket).map_err(|_| FallbackReason::Untrusted)?,
            qp_num: preparing.qp_num(),
            link: link.id(),
            conn_data: preparing.conn_data().encode(),
            ..Self::new(kind)
        })
    }

    fn encode(&self) -> [u8; MESSAGE_LEN] {
        let mut m = [0; MESSAGE_LEN];
        m[..4].copy_from_slice(&MAGIC);
        m[4] = VERSION;
        m[5] = self.kind as u8;
        m[8..16].copy_from_slice(&self.socket.cookie.to_ne_bytes());
        m[16..20].copy_from_slice(&self.socket.inode.to_ne_bytes());
        m[20..24].copy_from_slice(&self.qp_num.0.to_ne_bytes());
        m[AT_LINK..AT_CONN_DATA].copy_from_slice(&self.link.0);
        m[AT_CONN_DATA..AT_HELLO].copy_from_slice(&self.conn_data);
        m[AT_HELLO..].copy_from_slice(&self.hello);
        m
    }

    fn decode(m: &[u8]) -> Option<Self> {
        let m: &[u8; MESSAGE_LEN] = m.try_into().ok()?;
        if m[..4] != MAGIC || m[4] != VERSION || m[6..8] != [0, 0] {
            return None;
        }
        Some(Self {
            kind: Kind::from_number(m[5])?,
            socket: SocketId {
                cookie: u64::from_ne_bytes(m[8..16].try_into().ok()?),
                inode: u32::from_ne_bytes(m[16..20].try_into().ok()?),
            },
            qp_num: QpNum(u32::from_ne_bytes(m[20..24].try_into().ok()?)),
            link: LinkId(m[AT_LINK..AT_CONN_DATA].try_into().ok()?),
            conn_data: m[AT_CONN_DATA..AT_HELLO].try_into().ok()?,
            hello: m[AT_HELLO..].try_into().ok()?,
        })
    }

    /// The message as a note in the connection table of the link that it is about: kind; cookie;
    /// inode, and above it the queue pair number; connection data.
    pub(in crate::accelerate) fn to_note(&self) -> ConnectionNote {
        let mut note = [0; _];
        note[0] = self.kind as u64;
        note[1] = self.socket.cookie;
        note[2] = u64::from(self.qp_num.0) << 32 | u64::from(self.socket.inode);
        for (to, from) in note[3..].iter_mut().zip(self.conn_data.as_chunks().0) {
            *to = u64::from_ne_bytes(*from);
        }
        note
    }

    /// Reads a note of any process. What it says of sockets and queue pairs is to be checked.
    pub(in crate::accelerate) fn from_note(note: &ConnectionNote) -> Option<Self> {
        let mut conn_data = [0; CONN_DATA_LEN];
        for (to, from) in conn_data.as_chunks_mut().0.iter_mut().zip(&note[3..]) {
            *to = from.to_ne_bytes();
        }
        #[expect(clippy::cast_possible_truncation, reason = "halves of a word")]
        let (qp_num, inode) = (QpNum((note[2] >> 32) as u32), note[2] as u32);
        Some(Self {
            kind: Kind::from_number(u8::try_from(note[0]).ok()?)?,
            socket: SocketId { cookie: note[1], inode },
            qp_num,
            conn_data,
            link: LinkId([0; 16]),
            hello: [0; HELLO_LEN],
        })
    }

    /// Sends the message; a Unix socket takes it whole or not at all.
    pub(in crate::accelerate) fn send(
        &self,
        to: BorrowedFd<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(to, &[IoSlice::new(&self.encode())], &mut control, flags).map(drop)
    }

    /// Takes one message if there is one. Descriptors that come with a malformed one are closed.
    /// Fails for what can only come from another program, or for lack of descriptors.
    pub(in crate::accelerate) fn receive(from: BorrowedFd<'_>) -> Result<Received, FallbackReason> {
        // One byte more than a message, so that a longer one is noticed.
        let mut bytes = [0; MESSAGE_LEN + 1];
        let got = match untrusted::receive(from, &mut bytes) {
            Ok(got) => got,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
            Err(_) => return Ok(Received::End),
        };
        if got.len == 0 {
            return Ok(Received::End);
        }
        if got.is_cut {
            // This process has no room for the descriptors.
            return Err(FallbackReason::Resources);
        }
        if got.fds.len() > MAX_FDS {
            return Err(FallbackReason::PathFailed);
        }
        bytes
            .get(..got.len)
            .and_then(Self::decode)
            .map(|m| Received::Message(m, got.fds))
            .ok_or(FallbackReason::PathFailed)
    }
}

/// What the fuzzer calls: a message of any process, by a socket; the first byte says how many
/// descriptors come with it.
///
/// # Panics
/// If another message is decoded than was sent, or a descriptor stays open.
#[cfg(any(test, fuzzing))]
pub fn check_message(data: &[u8]) {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let Some((&n_fds, bytes)) = data.split_first() else { return };
    let pair = |kind| {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
    };
    let (Ok((receiver, sender)), Ok((watched, given))) =
        (pair(SocketType::SEQPACKET), pair(SocketType::STREAM))
    else {
        return;
    };
    let n_fds = usize::from(n_fds) % 5;
    let fds = [given.as_fd(); 4];
    let fds = &fds[..n_fds];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    if sendmsg(&sender, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_err() {
        return;
    }
    drop(given);
    let n_kept = untrusted::n_kept_open();
    match Message::receive(receiver.as_fd()) {
        Ok(Received::Message(message, got)) => {
            assert_eq!((&message.encode()[..], got.len()), (bytes, n_fds));
        }
        Ok(Received::End) => assert!(bytes.is_empty()),
        Ok(Received::Nothing) => panic!("it was sent"),
        Err(reason) => {
            assert!(matches!(reason, FallbackReason::PathFailed | FallbackReason::Resources))
        }
    }
    drop((receiver, sender));
    if untrusted::n_kept_open() != n_kept {
        // On a machine that is busy enough no helper runs in time.
        return;
    }
    // Each descriptor that came with the message is closed, perhaps by the process that closes
    // descriptors of other programs. The other end then hangs up; a descriptor that stays open
    // makes this wait hang.
    let mut fds = [PollFd::new(&watched, PollFlags::empty())];
    while poll(&mut fds, None) == Err(Errno::INTR) {}
    assert!(fds[0].revents().contains(PollFlags::HUP), "the other end is not closed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_decodes_to_itself_and_damage_is_noticed() {
        let message = Message {
            socket: SocketId { cookie: 1 << 40, inode: 77 },
            link: LinkId([9; 16]),
            qp_num: QpNum(5),
            conn_data: std::array::from_fn(|n| u8::try_from(n).expect("short")),
            ..Message::new(Kind::Request)
        };
        let bytes = message.encode();
        let back = Message::decode(&bytes).expect("whole");
        assert_eq!(
            (back.kind, back.socket, back.link),
            (message.kind, message.socket, message.link)
        );
        let noted = Message::from_note(&message.to_note()).expect("a kind");
        assert_eq!((noted.kind, noted.socket), (message.kind, message.socket));
        assert_eq!((noted.qp_num, noted.conn_data), (message.qp_num, message.conn_data));
        for len in 0..bytes.len() {
            assert!(Message::decode(&bytes[..len]).is_none());
        }
        for at in 0..8 {
            let mut bad = bytes;
            bad[at] ^= 0x80;
            assert!(Message::decode(&bad).is_none(), "byte {at}");
        }
    }
}
