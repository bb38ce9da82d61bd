//! Finding the peer's process on this host, and agreeing on a path, without a daemon, a thread or
//! a time-out: every step is taken by a call that the program makes anyway, and none waits.
//!
//! One end (by [`Role`]) publishes an abstract Unix socket named after the connection, the other
//! looks for it, more and more rarely. They exchange one request and one reply: who they are (to be
//! checked against the kernel's view of the connection), the segments they share, the connection
//! data of an rsockets stream. Bytes keep flowing on TCP meanwhile.

mod message;

#[cfg(any(test, fuzzing))]
pub use message::check_message;

use crate::accelerate::discovery::remote;
use crate::accelerate::four_tuple::{Role, Tuple};
use crate::accelerate::path::{Near, Path};
use crate::accelerate::verify::{self, SocketId};
use crate::accelerate::{FallbackReason, Side};
use crate::engine::{Config, Preparing};
use message::{Kind, Message, Received};
use rsock_proto::ConnData;
use rsock_verbs::Error;
use rsock_verbs::cred::{self, PeerCred};
use rsock_verbs::soft::{Link, Offer, Soft, SoftContext};
use rsock_verbs::untrusted::{self, PeerSocket};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::sync::Arc;

/// Where the search for the peer is.
#[derive(Debug)]
pub(in crate::accelerate) enum Search {
    /// Not begun, or to be tried again.
    Idle {
        /// The peer did not know the link that we named: make a new one.
        fresh_link: bool,
    },
    /// Our name is out, nobody came yet.
    Published(PeerSocket),
    /// Somebody came to our name; the next message has not arrived yet.
    Visited(Visit),
    /// We offered the peer a link and wait for its answer.
    Greeted { peer: Peer, offer: Box<Offer> },
    /// We asked the peer and wait for the reply.
    Asked { peer: Peer, preparing: Box<Preparing<Soft>> },
    /// The peer is looked for on another host.
    Far(remote::Search),
    /// Over, one way or the other.
    Over,
}

/// The publisher's side of an exchange.
#[derive(Debug)]
pub(in crate::accelerate) struct Visit {
    name: PeerSocket,
    visitor: Peer,
    /// Kept alive until the request names it.
    link: Option<Arc<Link>>,
}

/// A Unix socket and who is at its other end.
#[derive(Debug)]
pub(in crate::accelerate) struct Peer {
    socket: PeerSocket,
    cred: PeerCred,
}

/// What a step of the search came to.
#[derive(Debug)]
pub(in crate::accelerate) enum Step {
    /// Nothing yet.
    Pending,
    /// A path to the peer exists.
    Paired(Box<Path>),
    /// It will not work: stay on TCP.
    Failed(FallbackReason),
}

/// The connection that is to be paired.
#[derive(Clone, Copy, Debug)]
pub(in crate::accelerate) struct Subject<'a> {
    pub(in crate::accelerate) socket: BorrowedFd<'a>,
    pub(in crate::accelerate) tuple: &'a Tuple,
    pub(in crate::accelerate) config: &'a Config,
    pub(in crate::accelerate) side: Option<Side>,
}

enum Next {
    Stay(Search),
    Paired(Box<Near>),
}

impl Search {
    pub(in crate::accelerate) fn new() -> Self {
        Self::Idle { fresh_link: false }
    }

    /// The descriptor whose readability means that a step can be taken.
    pub(in crate::accelerate) fn fd(&self) -> Option<RawFd> {
        match self {
            Self::Published(socket) => Some(socket.as_fd().as_raw_fd()),
            Self::Visited(Visit { visitor: peer, .. })
            | Self::Greeted { peer, .. }
            | Self::Asked { peer, .. } => Some(peer.socket.as_fd().as_raw_fd()),
            Self::Far(search) => search.fd(),
            Self::Idle { .. } | Self::Over => None,
        }
    }

    /// Whether nobody has been found so far.
    pub(in crate::accelerate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Far(search) => search.is_unanswered(),
            other => matches!(other, Self::Idle { .. } | Self::Published(_)),
        }
    }

    /// Whether the peer is looked for on another host.
    pub(in crate::accelerate) fn is_far(&self) -> bool {
        matches!(self, Self::Far(_))
    }

    /// Whether nothing can come of another step.
    pub(in crate::accelerate) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Takes as many steps as can be taken now. Never waits.
    pub(in crate::accelerate) fn step(&mut self, subject: Subject<'_>) -> Step {
        if let Self::Idle { .. } = self
            && remote::is_meant(subject.tuple)
        {
            match remote::Search::begin(subject) {
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
                Ok(Next::Paired(near)) => return Step::Paired(Box::new(Path::Soft(*near))),
                Err(reason) => return Step::Failed(reason),
            }
        }
    }

    fn next(self, subject: Subject<'_>) -> Result<Next, FallbackReason> {
        match self {
            Self::Idle { fresh_link } => match subject.tuple.role() {
                Some(Role::Publisher) => {
                    publish(subject.tuple).map(|fd| Next::Stay(Self::Published(fd)))
                }
                Some(Role::Finder) => find(subject, fresh_link),
                None => Err(FallbackReason::NoPeer),
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

fn unix_socket() -> Result<PeerSocket, FallbackReason> {
    if untrusted::is_flooded() {
        return Err(FallbackReason::Resources);
    }
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, UNIX_FLAGS, None)
        .map(PeerSocket::new)
        .map_err(|_| FallbackReason::Resources)
}

fn meeting_point(tuple: &Tuple) -> Result<SocketAddrUnix, FallbackReason> {
    SocketAddrUnix::new_abstract_name(tuple.meeting_name().as_bytes())
        .map_err(|_| FallbackReason::NoPeer)
}

/// The publisher's first step: put the name out.
fn publish(tuple: &Tuple) -> Result<PeerSocket, FallbackReason> {
    let fd = unix_socket()?;
    // Taken already: somebody squats on the name, or a former owner of the same addresses has not
    // gone yet. Either way this connection does without.
    bind(&fd, &meeting_point(tuple)?).map_err(|_| FallbackReason::Untrusted)?;
    listen(&fd, 4).map_err(|_| FallbackReason::Resources)?;
    Ok(fd)
}

fn receive_visitor(name: PeerSocket) -> Result<Search, FallbackReason> {
    if untrusted::is_flooded() {
        return Err(FallbackReason::Resources);
    }
    let socket = match accept_with(&name, UNIX_FLAGS).map(PeerSocket::new) {
        Ok(socket) => socket,
        Err(e) if is_shortage(e) => return Err(FallbackReason::Resources),
        Err(_) => return Ok(Search::Published(name)),
    };
    Ok(match credentials(&socket) {
        Ok(cred) => Search::Visited(Visit { name, visitor: Peer { socket, cred }, link: None }),
        // Another user's process, or one without an id: turned away; the rightful one may still come.
        Err(_) => {
            let _ = Message::new(Kind::Refusal).send(socket.as_fd(), &[]);
            Search::Published(name)
        }
    })
}

/// The finder's first step: look the name up, and greet or ask whoever is there.
fn find(subject: Subject<'_>, fresh_link: bool) -> Result<Next, FallbackReason> {
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
            let offer = ctx.offer().map_err(|_| FallbackReason::Resources)?;
            let (hello, fds) = offer.hello();
            let message = Message { hello, ..Message::new(Kind::Hello) };
            message.send(peer.socket.as_fd(), &fds).map_err(|_| FallbackReason::NoPeer)?;
            Ok(Next::Stay(Search::Greeted { peer, offer: Box::new(offer) }))
        }
    }
}

/// The finder's second step, where the processes were not linked: take the peer's hello.
fn greet(subject: Subject<'_>, peer: Peer, offer: Box<Offer>) -> Result<Next, FallbackReason> {
    match Message::receive(peer.socket.as_fd()) {
        Ok(Received::Message(reply, fds)) if reply.kind == Kind::Hello => {
            let link = offer.complete(&reply.hello, fds, peer.cred).map_err(|e| refusal(&e))?;
            ask(subject, peer, &link)
        }
        Ok(Received::Nothing) => Ok(Next::Stay(Search::Greeted { peer, offer })),
        // Gone before it answered: look again later.
        Ok(Received::End) => Ok(Next::Stay(Search::Idle { fresh_link: true })),
        Ok(Received::Message(..)) => Err(FallbackReason::NoPeer),
        Err(reason) => Err(reason),
    }
}

/// Sends the request, over a link that both processes know.
fn ask(subject: Subject<'_>, peer: Peer, link: &Arc<Link>) -> Result<Next, FallbackReason> {
    let ctx = open_device()?;
    let preparing =
        Preparing::new(&ctx, link, subject.config).map_err(|_| FallbackReason::Resources)?;
    let message = Message::about(Kind::Request, subject, link, &preparing)?;
    message.send(peer.socket.as_fd(), &[]).map_err(|_| FallbackReason::NoPeer)?;
    Ok(Next::Stay(Search::Asked { peer, preparing: Box::new(preparing) }))
}

/// The publisher's steps: answer a hello, then a request.
fn serve(subject: Subject<'_>, mut visit: Visit) -> Result<Next, FallbackReason> {
    let to = visit.visitor.socket.as_fd();
    match Message::receive(to) {
        Ok(Received::Nothing) => Ok(Next::Stay(Search::Visited(visit))),
        Ok(Received::Message(hello, fds)) if hello.kind == Kind::Hello && visit.link.is_none() => {
            let accepted = open_device()?
                .accept(&hello.hello, fds, visit.visitor.cred)
                .map_err(|e| refusal(&e));
            let (link, hello, segment) = match accepted {
                Ok(accepted) => accepted,
                Err(FallbackReason::Resources) => return refuse(to, FallbackReason::Resources),
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
        Err(FallbackReason::Resources) => refuse(to, FallbackReason::Resources),
        _ => Ok(Next::Stay(Search::Published(visit.name))),
    }
}

/// Checks a request, and connects.
fn answer(subject: Subject<'_>, visit: Visit, request: &Message) -> Result<Next, FallbackReason> {
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
    let connected = ConnData::decode(&request.conn_data)
        .map_err(|_| FallbackReason::PathFailed)
        .and_then(|peer| {
            let preparing = Preparing::new(&ctx, &link, subject.config)
                .map_err(|_| FallbackReason::Resources)?;
            let reply = Message::about(Kind::Reply, subject, &link, &preparing)?;
            let stream =
                preparing.connect(&peer, request.qp_num).map_err(|_| FallbackReason::PathFailed)?;
            Ok((stream, reply))
        });
    match connected {
        Ok((stream, reply)) => {
            reply.send(to, &[]).map_err(|_| FallbackReason::NoPeer)?;
            Ok(Next::Paired(Box::new(Near { stream, peer: request.socket })))
        }
        Err(reason) => refuse(to, reason),
    }
}

/// Gives up, and tells the finder not to look again.
fn refuse(finder: BorrowedFd<'_>, reason: FallbackReason) -> Result<Next, FallbackReason> {
    let _ = Message::new(Kind::Refusal).send(finder, &[]);
    Err(reason)
}

/// The finder's last step: read the reply, check it, connect.
fn complete(
    subject: Subject<'_>,
    peer: Peer,
    preparing: Box<Preparing<Soft>>,
) -> Result<Next, FallbackReason> {
    let reply = match Message::receive(peer.socket.as_fd()) {
        Ok(Received::Message(reply, _)) => reply,
        Ok(Received::Nothing) => return Ok(Next::Stay(Search::Asked { peer, preparing })),
        Ok(Received::End) => return Ok(Next::Stay(Search::Idle { fresh_link: true })),
        Err(reason) => return Err(reason),
    };
    match reply.kind {
        Kind::Reply => {}
        Kind::UnknownLink => return Ok(Next::Stay(Search::Idle { fresh_link: true })),
        Kind::Hello | Kind::Refusal | Kind::Request => return Err(FallbackReason::NoPeer),
    }
    if !is_other_end(subject.tuple, reply.socket)? {
        return Err(FallbackReason::Untrusted);
    }
    let data = ConnData::decode(&reply.conn_data).map_err(|_| FallbackReason::PathFailed)?;
    let stream = preparing.connect(&data, reply.qp_num).map_err(|_| FallbackReason::PathFailed)?;
    Ok(Next::Paired(Box::new(Near { stream, peer: reply.socket })))
}

fn open_device() -> Result<SoftContext, FallbackReason> {
    SoftContext::open().map_err(|_| FallbackReason::Resources)
}

/// Whether `claimed` is, by the kernel's word, the socket at the other end, and held by somebody.
fn is_other_end(tuple: &Tuple, claimed: SocketId) -> Result<bool, FallbackReason> {
    match verify::other_end(tuple) {
        Ok(found) => Ok(claimed.inode != 0 && found == claimed),
        Err(e) if Errno::from_io_error(&e).is_some_and(is_shortage) => {
            Err(FallbackReason::Resources)
        }
        Err(_) => Ok(false),
    }
}

/// Whether a call failed for lack of something that this process or host has run out of.
fn is_shortage(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::FBIG)
}

/// Why no link came about.
fn refusal(e: &Error) -> FallbackReason {
    match e {
        Error::Verb { .. } | Error::Exhausted(_) => FallbackReason::Resources,
        _ => FallbackReason::Untrusted,
    }
}

/// Who is at the other end of a Unix socket, if it is somebody we deal with.
fn credentials(socket: &PeerSocket) -> Result<PeerCred, FallbackReason> {
    let cred = PeerCred::of(socket).map_err(|_| FallbackReason::Untrusted)?;
    cred::check(cred).map_err(|_| FallbackReason::Untrusted)?;
    // A process that has no id here, of another namespace, could not be told from others of them: a link
    // to it would be taken for a link to any.
    if cred.pid == 0 { Err(FallbackReason::Untrusted) } else { Ok(cred) }
}
