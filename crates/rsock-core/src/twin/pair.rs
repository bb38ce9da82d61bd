//! Finding the peer's process on this host, and agreeing on a path, without a daemon, a thread or
//! a time-out: every step is taken by a call that the program makes anyway, and none waits.
//!
//! One end (by [`Role`]) publishes an abstract Unix socket named after the connection, the other
//! looks for it, more and more rarely. They exchange one request and one reply: who they are (to be
//! checked against the kernel's view of the connection), the segments they share, the connection
//! data of an rsockets stream. Bytes keep flowing on TCP meanwhile.

use super::far;
use super::path::Path;
use super::tuple::{Role, Tuple};
use super::verify::{self, SocketId};
use super::{PinReason, Side};
use crate::engine::{Config, Preparing, Stream};
use crate::proto::{CONN_DATA_LEN, ConnData};
use crate::sys;
use rsock_verbs::soft::{HELLO_LEN, Link, LinkId, Offer, PeerCred, Soft, SoftContext, cred};
use rsock_verbs::{Error, QpNum};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Where the search for the peer is.
#[derive(Debug)]
pub(super) enum Search {
    /// Not begun, or to be tried again.
    Idle {
        /// The peer did not know the link that we named: make a new one.
        fresh_link: bool,
    },
    /// Our name is out, nobody came yet.
    Published(OwnedFd),
    /// Somebody came to our name; the next message has not arrived yet.
    Visited(Visit),
    /// We offered the peer a link and wait for its answer.
    Greeted { peer: Peer, offer: Box<Offer> },
    /// We asked the peer and wait for the reply.
    Asked { peer: Peer, preparing: Box<Preparing<Soft>> },
    /// The peer is looked for on another host.
    Far(far::Search),
    /// Over, one way or the other.
    Over,
}

/// The publisher's side of an exchange.
#[derive(Debug)]
pub(super) struct Visit {
    name: OwnedFd,
    visitor: Peer,
    /// Kept alive until the request names it.
    link: Option<Arc<Link>>,
}

/// A Unix socket and who is at its other end.
#[derive(Debug)]
pub(super) struct Peer {
    socket: OwnedFd,
    cred: PeerCred,
}

/// What a step of the search came to.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing yet.
    Pending,
    /// A path to the peer exists.
    Paired(Box<Path>),
    /// It will not work: stay on TCP.
    Failed(PinReason),
}

/// The connection that is to be paired.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) tuple: &'a Tuple,
    pub(super) config: &'a Config,
    pub(super) side: Option<Side>,
}

enum Next {
    Stay(Search),
    Paired(Box<Stream<Soft>>),
}

impl Search {
    pub(super) fn new() -> Self {
        Self::Idle { fresh_link: false }
    }

    /// The descriptor whose readability means that a step can be taken.
    pub(super) fn fd(&self) -> Option<RawFd> {
        match self {
            Self::Published(fd) => Some(fd.as_raw_fd()),
            Self::Visited(visit) => Some(visit.visitor.socket.as_raw_fd()),
            Self::Greeted { peer, .. } | Self::Asked { peer, .. } => Some(peer.socket.as_raw_fd()),
            Self::Far(search) => search.fd(),
            Self::Idle { .. } | Self::Over => None,
        }
    }

    /// Whether nobody has been found so far.
    pub(super) fn is_unanswered(&self) -> bool {
        match self {
            Self::Far(search) => search.is_unanswered(),
            other => matches!(other, Self::Idle { .. } | Self::Published(_)),
        }
    }

    /// Whether the peer is looked for on another host.
    pub(super) fn is_far(&self) -> bool {
        matches!(self, Self::Far(_))
    }

    /// Whether nothing can come of another step.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Takes as many steps as can be taken now. Never waits.
    pub(super) fn step(&mut self, subject: Subject<'_>) -> Step {
        if let Self::Idle { .. } = self
            && far::is_meant(subject.tuple)
        {
            match far::Search::begin(subject) {
                Ok(search) => *self = Self::Far(search),
                Err(reason) => return Step::Failed(reason),
            }
        }
        if let Self::Far(search) = self {
            let step = search.step(subject);
            if !matches!(step, Step::Pending) {
                *self = Self::Over;
            }
            return step;
        }
        let mut state = std::mem::replace(self, Self::Over);
        loop {
            let before = std::mem::discriminant(&state);
            match state.next(subject) {
                Ok(Next::Stay(next)) if std::mem::discriminant(&next) == before => {
                    *self = next;
                    return Step::Pending;
                }
                Ok(Next::Stay(next @ (Self::Idle { .. } | Self::Published(_)))) => {
                    // Turned away: not again in this call.
                    *self = next;
                    return Step::Pending;
                }
                Ok(Next::Stay(next)) => state = next,
                Ok(Next::Paired(stream)) => return Step::Paired(Box::new(Path::Soft(*stream))),
                Err(reason) => return Step::Failed(reason),
            }
        }
    }

    fn next(self, subject: Subject<'_>) -> Result<Next, PinReason> {
        match self {
            Self::Idle { fresh_link } => match subject.tuple.role() {
                Some(Role::Publisher) => {
                    publish(subject.tuple).map(|fd| Next::Stay(Self::Published(fd)))
                }
                Some(Role::Finder) => find(subject, fresh_link),
                None => Err(PinReason::NoPeer),
            },
            Self::Published(name) => receive_visitor(name).map(Next::Stay),
            Self::Visited(visit) => serve(subject, visit),
            Self::Greeted { peer, offer } => greet(subject, peer, offer),
            Self::Asked { peer, preparing } => complete(subject, peer, preparing),
            Self::Far(_) | Self::Over => Ok(Next::Stay(self)),
        }
    }
}

const UNIX_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn unix_socket() -> Result<OwnedFd, PinReason> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, UNIX_FLAGS, None)
        .map(sys::move_high)
        .map_err(|_| PinReason::Resources)
}

fn meeting_point(tuple: &Tuple) -> Result<SocketAddrUnix, PinReason> {
    SocketAddrUnix::new_abstract_name(tuple.meeting_name().as_bytes())
        .map_err(|_| PinReason::NoPeer)
}

/// The publisher's first step: put the name out.
fn publish(tuple: &Tuple) -> Result<OwnedFd, PinReason> {
    let fd = unix_socket()?;
    // Taken already: somebody squats on the name, or a former owner of the same addresses has not
    // gone yet. Either way this connection does without.
    bind(&fd, &meeting_point(tuple)?).map_err(|_| PinReason::Untrusted)?;
    listen(&fd, 4).map_err(|_| PinReason::Resources)?;
    Ok(fd)
}

fn receive_visitor(name: OwnedFd) -> Result<Search, PinReason> {
    let socket = match accept_with(&name, UNIX_FLAGS).map(sys::move_high) {
        Ok(socket) => socket,
        Err(e) if is_shortage(e) => return Err(PinReason::Resources),
        Err(_) => return Ok(Search::Published(name)),
    };
    Ok(match credentials(&socket) {
        Ok(cred) => Search::Visited(Visit { name, visitor: Peer { socket, cred }, link: None }),
        // Somebody else's process: turned away; the rightful one may still come.
        Err(_) => Search::Published(name),
    })
}

/// The finder's first step: look the name up, and greet or ask whoever is there.
fn find(subject: Subject<'_>, fresh_link: bool) -> Result<Next, PinReason> {
    let socket = unix_socket()?;
    if connect(&socket, &meeting_point(subject.tuple)?).is_err() {
        // Not there yet, or busy: look again later.
        return Ok(Next::Stay(Search::Idle { fresh_link }));
    }
    let cred = credentials(&socket)?;
    let peer = Peer { socket, cred };
    let ctx = open_device()?;
    let known = if fresh_link { None } else { ctx.link_to_pid(cred.pid) };
    match known {
        Some(link) => ask(subject, peer, &link),
        None => {
            let offer = ctx.offer().map_err(|_| PinReason::Resources)?;
            let (hello, fds) = offer.hello();
            let message = Message { hello, ..Message::new(Kind::Hello) };
            message.send(peer.socket.as_fd(), &fds).map_err(|_| PinReason::NoPeer)?;
            Ok(Next::Stay(Search::Greeted { peer, offer: Box::new(offer) }))
        }
    }
}

/// The finder's second step, where the processes were not linked: take the peer's hello.
fn greet(subject: Subject<'_>, peer: Peer, offer: Box<Offer>) -> Result<Next, PinReason> {
    match Message::receive(peer.socket.as_fd()) {
        Ok(Received::Message(reply, fds)) if reply.kind == Kind::Hello => {
            let link = offer.complete(&reply.hello, fds, peer.cred).map_err(|e| refusal(&e))?;
            ask(subject, peer, &link)
        }
        Ok(Received::Nothing) => Ok(Next::Stay(Search::Greeted { peer, offer })),
        // Gone before it answered: look again later.
        Ok(Received::End) => Ok(Next::Stay(Search::Idle { fresh_link: true })),
        Ok(Received::Message(..)) => Err(PinReason::NoPeer),
        Err(reason) => Err(reason),
    }
}

/// Sends the request, over a link that both processes know.
fn ask(subject: Subject<'_>, peer: Peer, link: &Arc<Link>) -> Result<Next, PinReason> {
    let ctx = open_device()?;
    let preparing = Preparing::new(&ctx, link, subject.config).map_err(|_| PinReason::Resources)?;
    let message = Message::about(Kind::Request, subject, link, &preparing)?;
    message.send(peer.socket.as_fd(), &[]).map_err(|_| PinReason::NoPeer)?;
    Ok(Next::Stay(Search::Asked { peer, preparing: Box::new(preparing) }))
}

/// The publisher's steps: answer a hello, then a request.
fn serve(subject: Subject<'_>, mut visit: Visit) -> Result<Next, PinReason> {
    let to = visit.visitor.socket.as_fd();
    match Message::receive(to) {
        Ok(Received::Nothing) => Ok(Next::Stay(Search::Visited(visit))),
        Ok(Received::Message(hello, fds)) if hello.kind == Kind::Hello && visit.link.is_none() => {
            let accepted = open_device()?
                .accept(&hello.hello, fds, visit.visitor.cred)
                .map_err(|e| refusal(&e));
            let (link, hello, segment) = match accepted {
                Ok(accepted) => accepted,
                Err(PinReason::Resources) => return refuse(to, PinReason::Resources),
                Err(_) => return Ok(Next::Stay(Search::Published(visit.name))),
            };
            let message = Message { hello, ..Message::new(Kind::Hello) };
            let sent = message.send(to, &[segment.as_fd()]);
            visit.link = Some(link);
            // Not the same state to the caller: the request may be here already.
            match sent {
                Ok(()) => serve(subject, visit),
                Err(_) => Ok(Next::Stay(Search::Published(visit.name))),
            }
        }
        Ok(Received::Message(request, _)) if request.kind == Kind::Request => {
            answer(subject, visit, &request)
        }
        Err(PinReason::Resources) => refuse(to, PinReason::Resources),
        _ => Ok(Next::Stay(Search::Published(visit.name))),
    }
}

/// Checks a request, and connects.
fn answer(subject: Subject<'_>, visit: Visit, request: &Message) -> Result<Next, PinReason> {
    let to = visit.visitor.socket.as_fd();
    let is_other_end = match is_other_end(subject.tuple, request.socket) {
        Ok(is_other_end) => is_other_end,
        Err(reason) => return refuse(to, reason),
    };
    if !is_other_end {
        return Ok(Next::Stay(Search::Published(visit.name)));
    }
    let ctx = open_device()?;
    let Some(link) = ctx.link_by_id(request.link).filter(|l| l.peer_cred() == visit.visitor.cred)
    else {
        // The peer remembers a process that we are not (any more): it must start afresh.
        let _ = Message::new(Kind::UnknownLink).send(to, &[]);
        return Ok(Next::Stay(Search::Published(visit.name)));
    };
    let connected =
        ConnData::decode(&request.conn_data).map_err(|_| PinReason::PathFailed).and_then(|peer| {
            let preparing =
                Preparing::new(&ctx, &link, subject.config).map_err(|_| PinReason::Resources)?;
            let reply = Message::about(Kind::Reply, subject, &link, &preparing)?;
            let stream =
                preparing.connect(&peer, request.qp_num).map_err(|_| PinReason::PathFailed)?;
            Ok((stream, reply))
        });
    match connected {
        Ok((stream, reply)) => {
            reply.send(to, &[]).map_err(|_| PinReason::NoPeer)?;
            Ok(Next::Paired(Box::new(stream)))
        }
        Err(reason) => refuse(to, reason),
    }
}

/// Gives up, and tells the finder not to look again.
fn refuse(finder: BorrowedFd<'_>, reason: PinReason) -> Result<Next, PinReason> {
    let _ = Message::new(Kind::Refusal).send(finder, &[]);
    Err(reason)
}

/// The finder's last step: read the reply, check it, connect.
fn complete(
    subject: Subject<'_>,
    peer: Peer,
    preparing: Box<Preparing<Soft>>,
) -> Result<Next, PinReason> {
    let reply = match Message::receive(peer.socket.as_fd()) {
        Ok(Received::Message(reply, _)) => reply,
        Ok(Received::Nothing) => return Ok(Next::Stay(Search::Asked { peer, preparing })),
        Ok(Received::End) => return Ok(Next::Stay(Search::Idle { fresh_link: true })),
        Err(reason) => return Err(reason),
    };
    match reply.kind {
        Kind::Reply => {}
        Kind::UnknownLink => return Ok(Next::Stay(Search::Idle { fresh_link: true })),
        Kind::Hello | Kind::Refusal | Kind::Request => return Err(PinReason::NoPeer),
    }
    if !is_other_end(subject.tuple, reply.socket)? {
        return Err(PinReason::Untrusted);
    }
    let data = ConnData::decode(&reply.conn_data).map_err(|_| PinReason::PathFailed)?;
    let stream = preparing.connect(&data, reply.qp_num).map_err(|_| PinReason::PathFailed)?;
    Ok(Next::Paired(Box::new(stream)))
}

fn open_device() -> Result<SoftContext, PinReason> {
    SoftContext::open().map_err(|_| PinReason::Resources)
}

/// Whether `claimed` is, by the kernel's word, the socket at the other end, and held by somebody.
fn is_other_end(tuple: &Tuple, claimed: SocketId) -> Result<bool, PinReason> {
    match verify::other_end(tuple) {
        Ok(found) => Ok(claimed.inode != 0 && found == claimed),
        Err(e) if Errno::from_io_error(&e).is_some_and(is_shortage) => Err(PinReason::Resources),
        Err(_) => Ok(false),
    }
}

/// Whether a call failed for lack of something that this process or host has run out of.
fn is_shortage(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::FBIG)
}

/// Why no link came about.
fn refusal(e: &Error) -> PinReason {
    match e {
        Error::Verb { .. } | Error::Exhausted(_) => PinReason::Resources,
        _ => PinReason::Untrusted,
    }
}

/// Who is at the other end of a Unix socket, if it is somebody we deal with.
fn credentials(fd: &OwnedFd) -> Result<PeerCred, PinReason> {
    let cred = PeerCred::of(fd).map_err(|_| PinReason::Untrusted)?;
    cred::check(cred).map_err(|_| PinReason::Untrusted)?;
    Ok(cred)
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// An offer of a link, or the answer to one; with descriptors.
    Hello = 1,
    Request = 2,
    Reply = 3,
    /// The finder named a link that the publisher does not know.
    UnknownLink = 4,
    /// The publisher cannot or will not.
    Refusal = 5,
}

/// One message of the exchange. Host byte order: both ends are on one host.
///
/// | off | size | field |
/// |---|---|---|
/// | 0 | 4 | `RSKP` |
/// | 4 | 1 | version, 1 |
/// | 5 | 1 | kind |
/// | 6 | 2 | 0 |
/// | 8 | 8 | cookie of the sender's TCP socket |
/// | 16 | 4 | inode of it |
/// | 20 | 4 | queue pair number |
/// | 24 | 16 | link id |
/// | 40 | 40 | connection data |
/// | 80 | `HELLO_LEN` | link handshake |
#[derive(Debug)]
struct Message {
    kind: Kind,
    socket: SocketId,
    qp_num: QpNum,
    link: LinkId,
    conn_data: [u8; CONN_DATA_LEN],
    hello: [u8; HELLO_LEN],
}

enum Received {
    Message(Message, Vec<OwnedFd>),
    Nothing,
    End,
}

const MAGIC: [u8; 4] = *b"RSKP";
const VERSION: u8 = 1;
const AT_LINK: usize = 24;
const AT_CONN_DATA: usize = 40;
const AT_HELLO: usize = AT_CONN_DATA + CONN_DATA_LEN;
const MESSAGE_LEN: usize = AT_HELLO + HELLO_LEN;
/// Descriptors of one message.
const MAX_FDS: usize = 2;

impl Message {
    fn new(kind: Kind) -> Self {
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
    fn about(
        kind: Kind,
        subject: Subject<'_>,
        link: &Link,
        preparing: &Preparing<Soft>,
    ) -> Result<Self, PinReason> {
        Ok(Self {
            socket: verify::own(subject.socket).map_err(|_| PinReason::Untrusted)?,
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
        let kind = match m[5] {
            1 => Kind::Hello,
            2 => Kind::Request,
            3 => Kind::Reply,
            4 => Kind::UnknownLink,
            5 => Kind::Refusal,
            _ => return None,
        };
        Some(Self {
            kind,
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

    /// Sends it; a Unix socket takes a message whole or not at all.
    fn send(&self, to: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(to, &[IoSlice::new(&self.encode())], &mut control, flags).map(drop)
    }

    /// Takes one message if there is one. Descriptors that come with a bad one are closed. Fails for
    /// what can only be a stranger's doing, or for lack of descriptors.
    fn receive(from: BorrowedFd<'_>) -> Result<Received, PinReason> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // One more than a message: a longer one shows as such.
        let mut bytes = [0; MESSAGE_LEN + 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(_) => return Ok(Received::End),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights.map(sys::move_high));
            }
        }
        if got.bytes == 0 {
            return Ok(Received::End);
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            // More than anybody sends, or more than this process has room for.
            let is_too_many = fds.len() == MAX_FDS;
            return Err(if is_too_many { PinReason::PathFailed } else { PinReason::Resources });
        }
        Self::decode(&bytes[..got.bytes])
            .map(|m| Received::Message(m, fds))
            .ok_or(PinReason::PathFailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_trip_and_every_damage_is_noticed() {
        let message = Message {
            socket: SocketId { cookie: 1 << 40, inode: 77 },
            link: LinkId([9; 16]),
            ..Message::new(Kind::Request)
        };
        let bytes = message.encode();
        let back = Message::decode(&bytes).expect("whole");
        assert_eq!(
            (back.kind, back.socket, back.link),
            (message.kind, message.socket, message.link)
        );
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
