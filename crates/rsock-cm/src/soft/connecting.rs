//! The connecting side of a handshake on the soft device.

use super::connection::SoftConnection;
use super::message_socket::{self, MessageSocket, Received};
use super::peer_link::{self, Path};
use super::wire::{self, Bare, Hello, Kind, LinkHalf, Reject, Reply, RequestMessage, Welcome};
use super::{SoftManager, SoftProgress};
use crate::addr::{PortSpace, connect_names, destination};
use crate::error::{Error, Violation};
use crate::manager::{Answer, Connecting};
use crate::port::Port;
use crate::route;
use rsock_verbs::QpNum;
use rsock_verbs::cred::PeerCred;
use rsock_verbs::soft::{Offer, SoftContext};
use rsock_verbs::untrusted::PeerSocket;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// First delay before a full listener is tried again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(64);

/// A connect that is under way.
///
/// Call [`Self::progress`] whenever the descriptor is ready for [`Self::interest`] or
/// [`Self::next_timeout`] has come. Dropping it gives up.
#[derive(Debug)]
pub struct SoftConnecting {
    ctx: SoftContext,
    port: Arc<Port>,
    local: SocketAddr,
    dest: SocketAddr,
    names: [String; 3],
    deadline: Instant,
    hello: Hello,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The listener's backlog is full. The socket is not connected yet.
    Full { socket: PeerSocket, again: Instant, pause: Duration },
    /// HELLO is sent, with the name of `likely`.
    HelloSent { message_socket: MessageSocket, likely: Option<Path> },
    /// OFFER is sent.
    OfferSent { message_socket: MessageSocket, offer: Offer, peer: PeerCred },
    /// The path is known; the caller has to send its request.
    Linked { message_socket: MessageSocket, path: Path, is_reported: bool },
    /// REQUEST is sent.
    RequestSent { message_socket: MessageSocket, path: Path },
    /// REPLY has come; the caller has to call [`SoftConnecting::establish`].
    Answered { message_socket: MessageSocket, path: Path },
    /// Failed, or rejected.
    Over,
}

impl SoftConnecting {
    /// Starts to connect to `remote` from `port`, which is bound here if it is not yet. It is
    /// `now`; the connect gives up at `deadline`.
    ///
    /// # Errors
    /// `Refused`, `Unreachable`, `PeerUntrusted`, or `System` as `bind(2)` and `connect(2)`.
    pub fn start(
        ctx: &SoftContext,
        space: PortSpace,
        port: Arc<Port>,
        remote: SocketAddr,
        now: Instant,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let dest = destination(remote);
        if dest.port() == 0 {
            return Err(Error::Refused);
        }
        let local = local_address(&port, dest)?;
        Self::start_as(ctx, space, port, (local, dest), now, deadline)
    }

    /// As [`Self::start`], between canonical addresses `local` and `dest`: for callers that hold
    /// `local` by other means than `port`, which is unbound then.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_as(
        ctx: &SoftContext,
        space: PortSpace,
        port: Arc<Port>,
        (local, dest): (SocketAddr, SocketAddr),
        now: Instant,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let hello = Hello::new(space as u16, local, dest);
        let names = connect_names(space, dest);
        let state = State::Full {
            socket: message_socket::socket()?,
            again: now + RETRY_MIN,
            pause: RETRY_MIN,
        };
        let mut this = Self { ctx: ctx.clone(), port, local, dest, names, deadline, hello, state };
        this.dial()?;
        Ok(this)
    }

    /// One step; `None` if there may be another at once.
    fn step(&mut self, now: Instant) -> Result<Option<SoftProgress>, Error> {
        const PENDING: Option<SoftProgress> = Some(SoftProgress::Pending);
        match &mut self.state {
            State::Full { again, .. } if now < *again => return Ok(PENDING),
            State::Full { .. } => {
                self.dial()?;
                if let State::Full { again, pause, .. } = &mut self.state {
                    *again = now + *pause;
                    *pause = (*pause * 2).min(RETRY_MAX);
                }
            }
            State::HelloSent { message_socket, .. } => {
                let Some(message) = receive(message_socket)? else { return Ok(PENDING) };
                self.welcomed(&message)?;
            }
            State::OfferSent { message_socket, .. } => {
                let Some(message) = receive(message_socket)? else { return Ok(PENDING) };
                self.linked(message)?;
            }
            State::Linked { path, is_reported, .. } => {
                if *is_reported {
                    return Ok(PENDING);
                }
                *is_reported = true;
                return Ok(Some(SoftProgress::Path(self.ctx.clone(), path.clone())));
            }
            State::RequestSent { message_socket, .. } => {
                let Some(message) = receive(message_socket)? else { return Ok(PENDING) };
                return self.answered(&message).map(Some);
            }
            State::Answered { .. } | State::Over => return Ok(PENDING),
        }
        Ok(None)
    }

    /// Tries the names in turn; sends HELLO to the first listener that accepts.
    fn dial(&mut self) -> Result<(), Error> {
        let State::Full { socket, .. } = &self.state else { return Ok(()) };
        let mut found = false;
        for name in &self.names {
            match net::connect(socket, &message_socket::name(name)?) {
                Ok(()) => {
                    found = true;
                    break;
                }
                Err(Errno::CONNREFUSED | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(Error::System { call: "connect", source: e.into() }),
            }
        }
        if !found {
            return Err(Error::Refused);
        }
        let State::Full { socket, .. } = std::mem::replace(&mut self.state, State::Over) else {
            return Ok(());
        };
        let message_socket = MessageSocket::new(socket);
        let peer = message_socket.peer()?;
        peer_link::check(peer)?;
        message_socket.enable_credentials()?;
        let likely = peer_link::likely(&self.ctx, peer);
        self.hello.set_link(likely.as_ref().map(|link| link.id()));
        message_socket.send(self.hello.as_bytes(), &[]).map_err(gone_means_refused)?;
        self.state = State::HelloSent { message_socket, likely };
        Ok(())
    }

    fn welcomed(&mut self, message: &Received) -> Result<(), Error> {
        let welcome: Welcome = parse_or_reject(message, Kind::Welcome)?;
        no_descriptors(message)?;
        let peer = message.sender.ok_or(Violation::Value)?;
        peer_link::check(peer)?;
        let State::HelloSent { message_socket, likely } =
            std::mem::replace(&mut self.state, State::Over)
        else {
            return Ok(());
        };
        if welcome.is_linked.get() != 0 {
            let path =
                likely.filter(|link| peer_link::is_with(link, peer)).ok_or(Violation::Link)?;
            self.state = State::Linked { message_socket, path, is_reported: false };
            return Ok(());
        }
        let offer = self.ctx.offer()?;
        {
            let (hello, fds) = offer.hello();
            let half = LinkHalf::new(Kind::Offer, hello);
            message_socket.send(half.as_bytes(), &fds).map_err(gone_means_refused)?;
        }
        self.state = State::OfferSent { message_socket, offer, peer };
        Ok(())
    }

    fn linked(&mut self, message: Received) -> Result<(), Error> {
        let half: LinkHalf = parse_or_reject(&message, Kind::Linked)?;
        let State::OfferSent { message_socket, offer, peer } =
            std::mem::replace(&mut self.state, State::Over)
        else {
            return Ok(());
        };
        if message.sender.is_none_or(|s| s.pid != peer.pid || s.uid != peer.uid) {
            return Err(Violation::Value.into());
        }
        let path = offer.complete(&half.hello, message.fds, peer)?;
        self.state = State::Linked { message_socket, path, is_reported: false };
        Ok(())
    }

    fn answered(&mut self, message: &Received) -> Result<SoftProgress, Error> {
        no_descriptors(message)?;
        if wire::kind(message.bytes())? == Kind::Reject as u16 {
            let reject: Reject = wire::parse(message.bytes(), Kind::Reject)?;
            return Ok(SoftProgress::Rejected(reject.private_data()?));
        }
        let reply: Reply = wire::parse(message.bytes(), Kind::Reply)?;
        let answer = Answer { qp_num: reply.qp_num()?, private_data: reply.private_data()? };
        if let State::RequestSent { message_socket, path } =
            std::mem::replace(&mut self.state, State::Over)
        {
            self.state = State::Answered { message_socket, path };
        }
        Ok(SoftProgress::Accepted(answer))
    }
}

impl Connecting<SoftManager> for SoftConnecting {
    fn progress(&mut self, now: Instant) -> Result<SoftProgress, Error> {
        loop {
            let result = self.step(now);
            match &result {
                Ok(None) => {}
                Ok(Some(SoftProgress::Rejected(_))) | Err(_) => {
                    self.state = State::Over;
                    return result.map(|p| p.unwrap_or(SoftProgress::Pending));
                }
                Ok(Some(SoftProgress::Pending)) if now >= self.deadline => {
                    self.state = State::Over;
                    return Err(Error::TimedOut);
                }
                Ok(Some(_)) => return result.map(|p| p.unwrap_or(SoftProgress::Pending)),
            }
        }
    }

    fn send_request(&mut self, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error> {
        let request = RequestMessage::new(qp_num, private_data)?;
        let State::Linked { message_socket, .. } = &self.state else {
            return Err(Error::LocalState("the path is not known, or the request is sent"));
        };
        message_socket.send(request.as_bytes(), &[]).map_err(gone_means_refused)?;
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Linked { message_socket, path, .. } => {
                State::RequestSent { message_socket, path }
            }
            other => other,
        };
        Ok(())
    }

    fn establish(&mut self) -> Result<SoftConnection, Error> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Answered { message_socket, path } => {
                message_socket.send(Bare::new(Kind::Ready).as_bytes(), &[])?;
                let port = Some(Arc::clone(&self.port));
                Ok(SoftConnection::new(message_socket, path, self.local, self.dest, port))
            }
            other => {
                self.state = other;
                Err(Error::LocalState("not accepted"))
            }
        }
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.dest
    }

    fn interest(&self) -> PollFlags {
        match self.state {
            State::Full { .. } | State::Linked { .. } | State::Answered { .. } | State::Over => {
                PollFlags::empty()
            }
            _ => PollFlags::IN,
        }
    }

    fn next_timeout(&self) -> Instant {
        match &self.state {
            State::Full { again, .. } => (*again).min(self.deadline),
            _ => self.deadline,
        }
    }
}

impl AsFd for SoftConnecting {
    /// The descriptor to poll; it can change with every [`Self::progress`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Full { socket, .. } => socket.as_fd(),
            State::HelloSent { message_socket, .. }
            | State::OfferSent { message_socket, .. }
            | State::Linked { message_socket, .. }
            | State::RequestSent { message_socket, .. }
            | State::Answered { message_socket, .. } => message_socket.as_fd(),
            State::Over => self.port.as_fd(),
        }
    }
}

/// The address to connect from; binds an unbound port to it.
fn local_address(port: &Port, dest: SocketAddr) -> Result<SocketAddr, Error> {
    let route = route::lookup(dest)?;
    if !route.is_local {
        return Err(Error::Unreachable(std::io::Error::from_raw_os_error(libc::EHOSTUNREACH)));
    }
    let mut local = port.local_addr()?;
    if local.port() != 0 && !local.ip().is_unspecified() {
        return if is_reachable_from(local.ip(), dest.ip()) {
            Ok(local)
        } else {
            Err(Error::Unreachable(std::io::Error::from_raw_os_error(libc::ENETUNREACH)))
        };
    }
    let source = route.source.filter(|s| s.is_ipv4() == dest.is_ipv4()).unwrap_or(dest.ip());
    if local.port() == 0 {
        port.bind((source, 0).into())?;
        local = port.local_addr()?;
    }
    local.set_ip(source);
    Ok(local)
}

/// A socket bound to an IPv4 address reaches no IPv6 address, and the other way round.
fn is_reachable_from(local: IpAddr, dest: IpAddr) -> bool {
    local.is_ipv4() == dest.is_ipv4()
}

fn receive(message_socket: &MessageSocket) -> Result<Option<Received>, Error> {
    message_socket.receive().map_err(gone_means_refused)
}

/// A hang-up before the answer is a refusal.
fn gone_means_refused(e: Error) -> Error {
    match e {
        Error::PeerGone => Error::Refused,
        other => other,
    }
}

/// Parses a message in a place where a listener may also send REJECT.
fn parse_or_reject<T: zerocopy::FromBytes>(message: &Received, kind: Kind) -> Result<T, Error> {
    if wire::kind(message.bytes())? == Kind::Reject as u16 {
        return Err(Error::Refused);
    }
    wire::parse(message.bytes(), kind)
}

fn no_descriptors(message: &Received) -> Result<(), Error> {
    if message.fds.is_empty() { Ok(()) } else { Err(Violation::Descriptors.into()) }
}
