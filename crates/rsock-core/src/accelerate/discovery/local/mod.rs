//! Local discovery: finding the peer's process on this host, and agreeing on a path, without a
//! daemon, a thread or a time-out: every step is taken by a call that the program makes anyway, and
//! none waits.
//!
//! One end (by [`Role`]) publishes an abstract Unix socket named after the connection. The other
//! looks for it, first at each call, then at growing intervals. They exchange one request and one
//! reply: the TCP socket that each holds (to be checked against the kernel's view of the
//! connection), the segments they share, the connection data of an rsockets stream. Bytes keep
//! flowing on TCP meanwhile.
//!
//! Two processes that have a link make the exchange in its memory first: see [`by_link`].

pub(in crate::accelerate) mod by_link;
mod message;
mod offers;
pub(in crate::accelerate) mod recent_links;

#[cfg(any(test, fuzzing))]
pub use message::check_message;

use crate::accelerate::FallbackReason;
use crate::accelerate::discovery::candidate::{Candidate, Step};
use crate::accelerate::discovery::remote;
use crate::accelerate::four_tuple::{FourTuple, Role};
use crate::accelerate::path::{Path, SoftPath};
use crate::accelerate::verify::{self, SocketId};
use crate::engine::Preparing;
use message::{Kind, Message, Received};
use offers::PendingOffer;
use rsock_proto::ConnData;
use rsock_verbs::Error;
use rsock_verbs::cred::{self, PeerCred};
use rsock_verbs::soft::{ConnectionEntry, Link, LinkId, Offer, Soft, SoftContext};
use rsock_verbs::untrusted::{self, PeerSocket};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::sync::Arc;

/// The state of the search for the peer.
#[derive(Debug)]
pub(in crate::accelerate) enum Search {
    /// Not begun, or to be tried again.
    Idle {
        /// The link that the last request named, which the peer did not know, or did not answer.
        refused: Option<LinkId>,
        /// The finder's socket, where it has looked for the meeting point and not found it, and
        /// will look again soon.
        unconnected: Option<PeerSocket>,
    },
    /// The publisher: it is in the connection tables of links, and no finder has answered.
    Listed(Vec<ConnectionEntry>),
    /// The finder: its request is in the connection table of a link.
    Asked(by_link::Request),
    /// The publisher: the meeting point is there, no finder has connected yet.
    Published(PeerSocket),
    /// The publisher: a finder has connected; its next message has not arrived yet.
    Serving(Exchange),
    /// The finder: it has connected to the meeting point. Another stream is making the link between
    /// the processes.
    Connected { peer: Peer, refused: Option<LinkId> },
    /// The finder: it has offered the peer a link and waits for the answer.
    Offered { peer: Peer, offer: Box<Offer>, pending: PendingOffer },
    /// The finder: it has sent the request and waits for the reply.
    Requested { peer: Peer, link: LinkId, preparing: Box<Preparing<Soft>> },
    /// The search is for a peer on another host. PERF: boxed, as all streams would have room for
    /// it.
    Remote(Box<remote::Search>),
    /// The search is over, with or without a result.
    Over,
}

/// The publisher's part of an exchange with one finder.
#[derive(Debug)]
pub(in crate::accelerate) struct Exchange {
    meeting_point: PeerSocket,
    finder: Peer,
    /// Kept alive until the request names it.
    link: Option<Arc<Link>>,
}

/// A Unix socket and the credentials of the process at its other end.
#[derive(Debug)]
pub(in crate::accelerate) struct Peer {
    socket: PeerSocket,
    cred: PeerCred,
}

enum Next {
    Stay(Search),
    Found(Box<Path>),
}

impl Search {
    pub(in crate::accelerate) fn new() -> Self {
        Self::look_again(None)
    }

    /// The finder's state after an exchange that led to nothing: `refused` is the link that it was
    /// about.
    fn look_again(refused: Option<LinkId>) -> Self {
        Self::Idle { refused, unconnected: None }
    }

    /// The descriptor whose readability means that a step can be taken.
    pub(in crate::accelerate) fn fd(&self) -> Option<RawFd> {
        match self {
            Self::Published(socket) => Some(socket.as_fd().as_raw_fd()),
            Self::Serving(Exchange { finder: peer, .. })
            | Self::Offered { peer, .. }
            | Self::Requested { peer, .. } => Some(peer.socket.as_fd().as_raw_fd()),
            Self::Remote(search) => search.fd(),
            // Nothing comes from a publisher that was sent nothing, and the memory of a link wakes
            // no thread.
            Self::Idle { .. }
            | Self::Listed(_)
            | Self::Asked(_)
            | Self::Connected { .. }
            | Self::Over => None,
        }
    }

    /// Whether the next step is to look for the meeting point, or to begin.
    pub(in crate::accelerate) fn is_idle(&self) -> bool {
        match self {
            Self::Remote(search) => search.fd().is_none(),
            other => matches!(other, Self::Idle { .. }),
        }
    }

    /// Whether the next step may open descriptors, unless the candidate has links.
    pub(in crate::accelerate) fn is_opening(&self) -> bool {
        self.is_idle() || matches!(self, Self::Connected { .. })
    }

    /// Whether the exchange has begun in the memory of a link.
    pub(in crate::accelerate) fn is_by_link(&self) -> bool {
        matches!(self, Self::Listed(_) | Self::Asked(_))
    }

    /// Whether descriptors are open for a search on this host.
    pub(in crate::accelerate) fn has_descriptors(&self) -> bool {
        match self {
            Self::Idle { unconnected, .. } => unconnected.is_some(),
            Self::Listed(_) | Self::Asked(_) | Self::Remote(_) | Self::Over => false,
            _ => true,
        }
    }

    /// Whether its descriptors would be closed if it ended now.
    pub(in crate::accelerate) fn can_be_closed(&self) -> bool {
        match self {
            Self::Published(socket) => socket.can_be_closed(),
            Self::Serving(Exchange { meeting_point, finder, .. }) => {
                meeting_point.can_be_closed() && finder.socket.can_be_closed()
            }
            Self::Connected { peer, .. }
            | Self::Offered { peer, .. }
            | Self::Requested { peer, .. } => peer.socket.can_be_closed(),
            Self::Idle { .. } | Self::Listed(_) | Self::Asked(_) | Self::Remote(_) | Self::Over => {
                true
            }
        }
    }

    /// Closes the socket of a finder that will not look again soon: many streams may search in
    /// vain.
    pub(in crate::accelerate) fn forget_socket(&mut self) {
        if let Self::Idle { unconnected, .. } = self {
            *unconnected = None;
        }
    }

    /// Whether no peer has answered so far.
    pub(in crate::accelerate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Remote(search) => search.is_unanswered(),
            other => {
                matches!(other, Self::Idle { .. } | Self::Listed(_) | Self::Published(_))
            }
        }
    }

    /// Whether the search is for a peer on another host.
    pub(in crate::accelerate) fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Whether the search is over.
    pub(in crate::accelerate) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// Takes as many steps as can be taken now. Never waits.
    pub(in crate::accelerate) fn step(&mut self, candidate: Candidate<'_>) -> Step {
        let begins = matches!(self, Self::Idle { .. });
        if self.is_remote() || begins && remote::is_for_remote(candidate.tuple) {
            return self.step_remote(candidate);
        }
        let mut state = std::mem::replace(self, Self::Over);
        loop {
            let before = std::mem::discriminant(&state);
            match state.next(candidate) {
                Ok(Next::Stay(next)) if std::mem::discriminant(&next) == before => {
                    *self = next;
                    return Step::Pending;
                }
                Ok(Next::Stay(next @ (Self::Idle { .. } | Self::Published(_)))) => {
                    // The finder was refused, or did not find the meeting point: no further try in
                    // this call.
                    *self = next;
                    return Step::Pending;
                }
                Ok(Next::Stay(next)) => state = next,
                Ok(Next::Found(path)) => return Step::Found(path),
                Err(reason) => return Step::Failed(reason),
            }
        }
    }

    /// Takes the steps of a search for a peer on another host, which it begins if need be.
    #[inline(never)]
    fn step_remote(&mut self, candidate: Candidate<'_>) -> Step {
        let mut search = match std::mem::replace(self, Self::Over) {
            Self::Remote(search) => search,
            _ => match remote::Search::begin(candidate) {
                Ok(search) => Box::new(search),
                Err(reason) => return Step::Failed(reason),
            },
        };
        let step = search.step(candidate);
        if matches!(step, Step::Pending) {
            *self = Self::Remote(search);
        }
        step
    }

    /// The next step. None of them is inlined: a thread may have little stack, on which their
    /// frames would add up.
    fn next(self, candidate: Candidate<'_>) -> Result<Next, FallbackReason> {
        match self {
            Self::Idle { refused, unconnected } => {
                match (candidate.tuple.role(), candidate.links) {
                    (Some(Role::Publisher), []) => {
                        publish(candidate.tuple).map(|fd| Next::Stay(Self::Published(fd)))
                    }
                    (Some(Role::Finder), []) => find(candidate, refused, unconnected),
                    (Some(Role::Publisher), _) => Ok(by_link::list(candidate)),
                    (Some(Role::Finder), _) => by_link::find(candidate),
                    (None, _) => Err(FallbackReason::NoPeer),
                }
            }
            Self::Listed(entries) => by_link::serve(candidate, entries),
            Self::Asked(request) => by_link::complete(candidate, request),
            Self::Connected { peer, refused } => use_link(candidate, peer, refused),
            Self::Published(name) => accept_finder(name).map(Next::Stay),
            Self::Serving(exchange) => serve(candidate, exchange),
            Self::Offered { peer, offer, pending } => {
                complete_link(candidate, peer, offer, pending)
            }
            Self::Requested { peer, link, preparing } => complete(candidate, peer, link, preparing),
            Self::Remote(_) | Self::Over => Ok(Next::Stay(self)),
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

fn meeting_point(tuple: &FourTuple) -> Result<SocketAddrUnix, FallbackReason> {
    SocketAddrUnix::new_abstract_name(tuple.meeting_name().as_bytes())
        .map_err(|_| FallbackReason::NoPeer)
}

/// The publisher's first step: publishes the meeting point.
#[inline(never)]
fn publish(tuple: &FourTuple) -> Result<PeerSocket, FallbackReason> {
    let fd = unix_socket()?;
    // The name is taken: by another process, or by a former owner of the same addresses that has
    // not gone yet. Either way this connection stays on TCP.
    bind(&fd, &meeting_point(tuple)?).map_err(|_| FallbackReason::Untrusted)?;
    listen(&fd, 4).map_err(|_| FallbackReason::Resources)?;
    Ok(fd)
}

#[inline(never)]
fn accept_finder(meeting_point: PeerSocket) -> Result<Search, FallbackReason> {
    if untrusted::is_flooded() {
        return Err(FallbackReason::Resources);
    }
    let socket = match accept_with(&meeting_point, UNIX_FLAGS).map(PeerSocket::new) {
        Ok(socket) => socket,
        Err(e) if is_shortage(e) => return Err(FallbackReason::Resources),
        Err(_) => return Ok(Search::Published(meeting_point)),
    };
    Ok(match credentials(&socket) {
        Ok(cred) => {
            Search::Serving(Exchange { meeting_point, finder: Peer { socket, cred }, link: None })
        }
        // Another user's process, or one without an id, is refused; the peer may still connect.
        Err(_) => {
            let _ = Message::new(Kind::Refusal).send(socket.as_fd(), &[]);
            Search::Published(meeting_point)
        }
    })
}

/// The finder's first step: connects to the meeting point.
#[inline(never)]
fn find(
    candidate: Candidate<'_>,
    refused: Option<LinkId>,
    unconnected: Option<PeerSocket>,
) -> Result<Next, FallbackReason> {
    let socket = match unconnected {
        Some(socket) => socket,
        None => {
            let mut socket = unix_socket()?;
            socket.refuse_descriptors();
            socket
        }
    };
    if rustix::net::connect(&socket, &meeting_point(candidate.tuple)?).is_err() {
        // The meeting point is not there yet, or busy: look again later.
        return Ok(Next::Stay(Search::Idle { refused, unconnected: Some(socket) }));
    }
    let cred = credentials(&socket)?;
    use_link(candidate, Peer { socket, cred }, refused)
}

/// The finder's second step: sends the request over the link between the processes, or offers one,
/// unless another stream does.
#[inline(never)]
fn use_link(
    candidate: Candidate<'_>,
    mut peer: Peer,
    refused: Option<LinkId>,
) -> Result<Next, FallbackReason> {
    let ctx = open_device()?;
    if let Some(link) = ctx.link_to_pid(peer.cred.pid, refused).filter(|link| link.probe()) {
        recent_links::note(&link, true);
        return send_request(candidate, peer, &link);
    }
    let Some(pending) = PendingOffer::begin(peer.cred.pid) else {
        return Ok(Next::Stay(Search::Connected { peer, refused }));
    };
    let offer = ctx.offer().map_err(|_| FallbackReason::Resources)?;
    // The answer comes with the memory of the link.
    peer.socket.accept_descriptors();
    let (hello, fds) = offer.hello();
    let message = Message { hello, ..Message::new(Kind::Hello) };
    match message.send(peer.socket.as_fd(), &fds) {
        Ok(()) => Ok(Next::Stay(Search::Offered { peer, offer: Box::new(offer), pending })),
        Err(e) => after_failed_send(e),
    }
}

/// What follows where the finder cannot send: it looks again later if the publisher has gone.
fn after_failed_send(e: Errno) -> Result<Next, FallbackReason> {
    match e {
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Ok(Next::Stay(Search::look_again(None))),
        _ => Err(FallbackReason::NoPeer),
    }
}

/// The finder's next step, where the processes had no link: takes the peer's answer to the offer.
#[inline(never)]
fn complete_link(
    candidate: Candidate<'_>,
    peer: Peer,
    offer: Box<Offer>,
    pending: PendingOffer,
) -> Result<Next, FallbackReason> {
    match Message::receive(peer.socket.as_fd()) {
        Ok(Received::Message(reply, fds)) if reply.kind == Kind::Hello => {
            let link = offer.complete(&reply.hello, fds, peer.cred).map_err(|e| refusal(&e))?;
            recent_links::note(&link, false);
            send_request(candidate, peer, &link)
        }
        Ok(Received::Nothing) => Ok(Next::Stay(Search::Offered { peer, offer, pending })),
        // The publisher went away before it answered: look again later.
        Ok(Received::End) => Ok(Next::Stay(Search::look_again(None))),
        Ok(Received::Message(..)) => Err(FallbackReason::NoPeer),
        Err(reason) => Err(reason),
    }
}

/// Sends the request, over a link that both processes know.
#[inline(never)]
fn send_request(
    candidate: Candidate<'_>,
    peer: Peer,
    link: &Arc<Link>,
) -> Result<Next, FallbackReason> {
    let ctx = open_device()?;
    let preparing = Preparing::new(&ctx, link, &candidate.config.on_one_host())
        .map_err(|_| FallbackReason::Resources)?;
    let message = Message::about(Kind::Request, candidate, link, &preparing)?;
    match message.send(peer.socket.as_fd(), &[]) {
        Ok(()) => {
            let (link, preparing) = (link.id(), Box::new(preparing));
            Ok(Next::Stay(Search::Requested { peer, link, preparing }))
        }
        Err(e) => after_failed_send(e),
    }
}

/// The publisher's steps: answers an offer of a link, then a request.
#[inline(never)]
fn serve(candidate: Candidate<'_>, mut exchange: Exchange) -> Result<Next, FallbackReason> {
    let to = exchange.finder.socket.as_fd();
    match Message::receive(to) {
        Ok(Received::Nothing) => Ok(Next::Stay(Search::Serving(exchange))),
        Ok(Received::Message(hello, fds))
            if hello.kind == Kind::Hello && exchange.link.is_none() =>
        {
            let accepted = open_device()?
                .accept(&hello.hello, fds, exchange.finder.cred)
                .map_err(|e| refusal(&e));
            let (link, hello, segment) = match accepted {
                Ok(accepted) => accepted,
                Err(FallbackReason::Resources) => return refuse(to, FallbackReason::Resources),
                Err(_) => return Ok(Next::Stay(Search::Published(exchange.meeting_point))),
            };
            let message = Message { hello, ..Message::new(Kind::Hello) };
            let sent = message.send(to, &[segment.as_fd()]);
            exchange.link = Some(link);
            // Not the same state to the caller: the request may have arrived already.
            match sent {
                Ok(()) => serve(candidate, exchange),
                Err(_) => Ok(Next::Stay(Search::Published(exchange.meeting_point))),
            }
        }
        Ok(Received::Message(request, _)) if request.kind == Kind::Request => {
            answer(candidate, exchange, &request)
        }
        Err(FallbackReason::Resources) => refuse(to, FallbackReason::Resources),
        _ => Ok(Next::Stay(Search::Published(exchange.meeting_point))),
    }
}

/// Checks a request, and connects.
#[inline(never)]
fn answer(
    candidate: Candidate<'_>,
    exchange: Exchange,
    request: &Message,
) -> Result<Next, FallbackReason> {
    let to = exchange.finder.socket.as_fd();
    let is_other_end = match is_other_end(candidate.tuple, request.socket) {
        Ok(is_other_end) => is_other_end,
        Err(reason) => return refuse(to, reason),
    };
    if !is_other_end {
        return Ok(Next::Stay(Search::Published(exchange.meeting_point)));
    }
    let ctx = open_device()?;
    let Some(link) = ctx.link_by_id(request.link).filter(|l| l.peer_cred() == exchange.finder.cred)
    else {
        // The peer means a link to a former process with this process's id: it must use another.
        let _ = Message::new(Kind::UnknownLink).send(to, &[]);
        return Ok(Next::Stay(Search::Published(exchange.meeting_point)));
    };
    link.note_peers_end();
    recent_links::note(&link, exchange.link.is_none());
    match connect(candidate, &link, request) {
        Ok((path, reply)) => {
            reply.send(to, &[]).map_err(|_| FallbackReason::NoPeer)?;
            Ok(Next::Found(path))
        }
        Err(reason) => refuse(to, reason),
    }
}

/// Connects to the queue pair of a finder, whose `request` has been checked. Returns the reply to
/// it, too.
#[inline(never)]
fn connect(
    candidate: Candidate<'_>,
    link: &Arc<Link>,
    request: &Message,
) -> Result<(Box<Path>, Message), FallbackReason> {
    let peer = ConnData::decode(&request.conn_data).map_err(|_| FallbackReason::PathFailed)?;
    let preparing = Preparing::new(&open_device()?, link, &candidate.config.on_one_host())
        .map_err(|_| FallbackReason::Resources)?;
    let reply = Message::about(Kind::Reply, candidate, link, &preparing)?;
    let stream =
        preparing.connect(&peer, request.qp_num).map_err(|_| FallbackReason::PathFailed)?;
    Ok((Box::new(Path::Soft(SoftPath { stream, peer: request.socket })), reply))
}

/// Gives up, and tells the finder not to look again.
fn refuse(finder: BorrowedFd<'_>, reason: FallbackReason) -> Result<Next, FallbackReason> {
    let _ = Message::new(Kind::Refusal).send(finder, &[]);
    Err(reason)
}

/// The finder's last step: reads the reply, checks it, connects.
#[inline(never)]
fn complete(
    candidate: Candidate<'_>,
    peer: Peer,
    link: LinkId,
    preparing: Box<Preparing<Soft>>,
) -> Result<Next, FallbackReason> {
    let reply = match Message::receive(peer.socket.as_fd()) {
        Ok(Received::Message(reply, _)) => reply,
        Ok(Received::Nothing) => {
            return Ok(Next::Stay(Search::Requested { peer, link, preparing }));
        }
        Ok(Received::End) => return Ok(Next::Stay(Search::look_again(Some(link)))),
        Err(reason) => return Err(reason),
    };
    match reply.kind {
        Kind::Reply => {}
        Kind::UnknownLink => return Ok(Next::Stay(Search::look_again(Some(link)))),
        Kind::Hello
        | Kind::Published
        | Kind::Answering
        | Kind::Withdrawn
        | Kind::Refusal
        | Kind::Request => return Err(FallbackReason::NoPeer),
    }
    finish(candidate, &reply, *preparing)
}

/// Checks the reply of a publisher, and connects to its queue pair.
#[inline(never)]
fn finish(
    candidate: Candidate<'_>,
    reply: &Message,
    preparing: Preparing<Soft>,
) -> Result<Next, FallbackReason> {
    if !is_other_end(candidate.tuple, reply.socket)? {
        return Err(FallbackReason::Untrusted);
    }
    let data = ConnData::decode(&reply.conn_data).map_err(|_| FallbackReason::PathFailed)?;
    let stream = preparing.connect(&data, reply.qp_num).map_err(|_| FallbackReason::PathFailed)?;
    Ok(Next::Found(Box::new(Path::Soft(SoftPath { stream, peer: reply.socket }))))
}

fn open_device() -> Result<SoftContext, FallbackReason> {
    SoftContext::open().map_err(|_| FallbackReason::Resources)
}

/// Whether `claimed` is, according to the kernel, the socket at the other end, and a process holds
/// it.
fn is_other_end(tuple: &FourTuple, claimed: SocketId) -> Result<bool, FallbackReason> {
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

/// The fallback reason for an error of a link.
fn refusal(e: &Error) -> FallbackReason {
    match e {
        Error::Verb { .. } | Error::Exhausted(_) => FallbackReason::Resources,
        _ => FallbackReason::Untrusted,
    }
}

/// The credentials of the process at the other end of a Unix socket, if streams with it are
/// permitted.
fn credentials(socket: &PeerSocket) -> Result<PeerCred, FallbackReason> {
    let cred = PeerCred::of(socket).map_err(|_| FallbackReason::Untrusted)?;
    cred::check(cred).map_err(|_| FallbackReason::Untrusted)?;
    // A process of another namespace has no id here, so all such processes look the same: a link to
    // one would be taken for a link to any.
    if cred.pid == 0 { Err(FallbackReason::Untrusted) } else { Ok(cred) }
}
