//! One client of a listener, from its HELLO until it is established.

use super::message_socket::{MessageSocket, Received};
use super::peer_link::{self, Path};
use super::wire::{self, Bare, Hello, Kind, LinkHalf, Reject, Reply, RequestMessage, Welcome};
use crate::addr::{PortSpace, covers};
use crate::error::{Error, Violation};
use crate::private_data::PrivateData;
use rsock_verbs::QpNum;
use rsock_verbs::cred::PeerCred;
use rsock_verbs::soft::SoftContext;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;
use zerocopy::IntoBytes;

/// The address and port space of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) space: PortSpace,
    pub(super) local: SocketAddr,
    pub(super) v6_only: bool,
}

/// A client in the middle of the handshake.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message_socket: MessageSocket,
    pub(super) since: Instant,
    client: PeerCred,
    stage: Stage,
}

/// The stage of the handshake.
#[derive(Clone, Debug)]
enum Stage {
    /// Waits for HELLO.
    New,
    /// WELCOME is sent; waits for OFFER, or for REQUEST where there is a link.
    Welcomed { local: SocketAddr, peer: SocketAddr, path: Option<Path> },
    /// Waits for the upper layer's answer.
    Requested { local: SocketAddr, peer: SocketAddr, path: Path },
    /// REPLY is sent; waits for READY.
    Accepted { local: SocketAddr, peer: SocketAddr, path: Path },
}

/// The effect of a message.
#[expect(clippy::large_enum_variant, reason = "lives for one call")]
#[derive(Debug)]
pub(super) enum Step {
    /// No event; wait for the next message.
    More,
    /// A request for the upper layer.
    Request { local: SocketAddr, peer: SocketAddr, path: Path, qp_num: QpNum, data: PrivateData },
    /// READY has come.
    Established { local: SocketAddr, peer: SocketAddr, path: Path },
}

impl Pending {
    /// A new client; refuses other users at once.
    pub(super) fn new(message_socket: MessageSocket, now: Instant) -> Result<Self, Error> {
        let client = message_socket.peer()?;
        peer_link::check(client)?;
        Ok(Self { message_socket, since: now, client, stage: Stage::New })
    }

    /// Whether the upper layer has to answer: then the client is not counted as slow.
    pub(super) fn is_requested(&self) -> bool {
        matches!(self.stage, Stage::Requested { .. })
    }

    /// Whether the upper layer knows it.
    pub(super) fn is_known_to_caller(&self) -> bool {
        matches!(self.stage, Stage::Requested { .. } | Stage::Accepted { .. })
    }

    /// Takes the next message, if there is one. `None` if there is none.
    pub(super) fn step(
        &mut self,
        ctx: &SoftContext,
        service: &Service,
    ) -> Result<Option<Step>, Error> {
        let Some(message) = self.message_socket.receive()? else { return Ok(None) };
        let step = match &self.stage {
            Stage::New => self.handle_hello(ctx, service, &message)?,
            Stage::Welcomed { local, peer, path } => {
                let (local, peer) = (*local, *peer);
                match path.clone() {
                    Some(path) => self.request(local, peer, path, &message)?,
                    None => self.link(ctx, local, peer, message)?,
                }
            }
            // No message of the client is expected.
            Stage::Requested { .. } => {
                return Err(Violation::Kind(wire::kind(message.bytes())?).into());
            }
            Stage::Accepted { local, peer, path } => {
                no_descriptors(&message)?;
                let _: Bare = wire::parse(message.bytes(), Kind::Ready)?;
                Step::Established { local: *local, peer: *peer, path: path.clone() }
            }
        };
        Ok(Some(step))
    }

    fn handle_hello(
        &mut self,
        ctx: &SoftContext,
        service: &Service,
        message: &Received,
    ) -> Result<Step, Error> {
        no_descriptors(message)?;
        let hello: Hello = wire::parse(message.bytes(), Kind::Hello)?;
        let (local, peer) = (hello.dest.parse()?, hello.source.parse()?);
        if hello.space.get() != service.space as u16
            || !covers(service.local, service.v6_only, local)
        {
            return Err(Violation::Address.into());
        }
        let path = hello.link().and_then(|id| peer_link::named(ctx, id, self.client));
        self.message_socket.send(Welcome::new(path.is_some()).as_bytes(), &[])?;
        self.stage = Stage::Welcomed { local, peer, path };
        Ok(Step::More)
    }

    fn link(
        &mut self,
        ctx: &SoftContext,
        local: SocketAddr,
        peer: SocketAddr,
        message: Received,
    ) -> Result<Step, Error> {
        let half: LinkHalf = wire::parse(message.bytes(), Kind::Offer)?;
        let (path, reply, segment) = ctx.accept(&half.hello, message.fds, self.client)?;
        let answer = LinkHalf::new(Kind::Linked, reply);
        self.message_socket.send(answer.as_bytes(), &[segment.as_fd()])?;
        self.stage = Stage::Welcomed { local, peer, path: Some(path) };
        Ok(Step::More)
    }

    fn request(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        path: Path,
        message: &Received,
    ) -> Result<Step, Error> {
        no_descriptors(message)?;
        let request: RequestMessage = wire::parse(message.bytes(), Kind::Request)?;
        let (qp_num, data) = (request.qp_num()?, request.private_data()?);
        path.note_peers_end();
        self.stage = Stage::Requested { local, peer, path: path.clone() };
        Ok(Step::Request { local, peer, path, qp_num, data })
    }

    /// Sends the accepting answer.
    pub(super) fn accept(&mut self, qp_num: QpNum, data: &[u8]) -> Result<(), Error> {
        let reply = Reply::new(qp_num, data)?;
        let Stage::Requested { local, peer, path } = &self.stage else {
            return Err(Error::LocalState("no such request"));
        };
        self.message_socket.send(reply.as_bytes(), &[])?;
        self.stage = Stage::Accepted { local: *local, peer: *peer, path: path.clone() };
        Ok(())
    }

    /// Sends a refusal, if the socket has room for it.
    pub(super) fn reject(&self, data: &[u8]) -> Result<(), Error> {
        self.message_socket.send(Reject::new(data)?.as_bytes(), &[])
    }
}

fn no_descriptors(message: &Received) -> Result<(), Error> {
    if message.fds.is_empty() { Ok(()) } else { Err(Violation::Descriptors.into()) }
}
