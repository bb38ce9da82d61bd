//! Remote discovery: finding the peer's process on another host. The accepting end connects back
//! over the connection manager of RDMA devices, to the connecting end, which listens there at its
//! own TCP address and port.
//!
//! So each process that holds an accelerated stream finds its peer by itself, and a peer that does
//! not run rsock notices nothing: refusing costs it one packet of another protocol. Bytes keep
//! flowing on TCP meanwhile, and no step waits. Each end proves to the other that it has the hosts'
//! key, or is trusted by a rule ([`crate::config::trusted_hosts`]): the connection manager says
//! from which host a request comes, but does not prove it.

mod auth_message;
mod handshake_events;

#[cfg(any(test, fuzzing))]
pub use auth_message::check_auth_message;

use crate::accelerate::discovery::candidate::{Candidate, Step};
use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::path::{Path, RdmaPath};
use crate::accelerate::{FallbackReason, Side};
use crate::config::environment::{self, Device};
use crate::config::trusted_hosts::{CODE_LEN, trust};
use crate::engine::{Preparing, QpStream};
use crate::sys;
use auth_message::Authenticator;
use handshake_events::{HandshakeState, poll_handshake};
use rsock_cm::Error;
use rsock_cm::manager::{Answer, Connecting as _, Listening as _, RequestId};
use rsock_cm::rdma::{
    RdmaConnecting as Connecting, RdmaEvent as Event, RdmaListener as Listener,
    RdmaProgress as Progress, RdmaRequest as Request,
};
use rsock_proto::ConnData;
use rsock_verbs::rdma::{Rdma, RdmaContext};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::net::IpAddr;
use std::time::Duration;

/// The state of the search.
#[derive(Debug)]
pub(in crate::accelerate) enum Search {
    /// The connecting end: no request has been accepted yet.
    Listening(Listener),
    /// The connecting end: a verified request has been accepted, and the answer was sent.
    Accepted { listener: Listener, id: RequestId, ctx: RdmaContext, stream: Box<QpStream<Rdma>> },
    /// The accepting end: connecting to the peer.
    Connecting { connecting: Connecting, request: Option<SentRequest> },
    /// The accepting end: the peer did not listen. To be tried again.
    Idle,
}

/// A request that has been sent.
#[derive(Debug)]
pub(in crate::accelerate) struct SentRequest {
    ctx: RdmaContext,
    preparing: Box<Preparing<Rdma>>,
    code: [u8; CODE_LEN],
}

/// How long the peer may take to answer: the kernel repeats a lost request after about four
/// seconds. A host that does not listen refuses at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Whether remote discovery is for the peer at the other end of `tuple`.
pub(in crate::accelerate) fn is_for_remote(tuple: &FourTuple) -> bool {
    environment::device() == Some(Device::Rdma) || !tuple.is_local()
}

impl Search {
    /// The first step.
    pub(in crate::accelerate) fn begin(candidate: Candidate<'_>) -> Result<Self, FallbackReason> {
        let Candidate { tuple, side, .. } = candidate;
        let Some(side) = side else { return Err(FallbackReason::Remote) };
        if environment::device() == Some(Device::Soft) || has_scope(tuple.peer.ip()) {
            return Err(FallbackReason::Remote);
        }
        if !trust().knows(tuple.peer.ip()) {
            return Err(FallbackReason::NoTrust);
        }
        match side {
            Side::Connected => Listener::at(tuple.local, 1).map(Self::Listening).map_err(|e| {
                // The port is in use there: by another connection of that port, or by another
                // process.
                if matches!(e, Error::AddressInUse) {
                    FallbackReason::PathFailed
                } else {
                    reason(&e)
                }
            }),
            Side::Accepted => Ok(Self::Idle),
        }
    }

    /// The descriptor whose readability means that a step can be taken.
    pub(in crate::accelerate) fn fd(&self) -> Option<RawFd> {
        Some(match self {
            Self::Listening(listener) | Self::Accepted { listener, .. } => {
                listener.as_fd().as_raw_fd()
            }
            Self::Connecting { connecting, .. } => connecting.as_fd().as_raw_fd(),
            Self::Idle => return None,
        })
    }

    /// Whether no peer has answered so far.
    pub(in crate::accelerate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Listening(_) | Self::Idle)
    }

    /// Takes as many steps as can be taken now. Never waits.
    pub(in crate::accelerate) fn step(&mut self, candidate: Candidate<'_>) -> Step {
        loop {
            let state = std::mem::replace(self, Self::Idle);
            let next = match state {
                Self::Idle => connect(candidate),
                Self::Connecting { connecting, request } => {
                    progress(candidate, connecting, request)
                }
                Self::Listening(listener) => serve(candidate, listener),
                Self::Accepted { listener, id, ctx, stream } => finish(listener, id, ctx, stream),
            };
            match next {
                Ok(Next::Again(next)) => *self = next,
                Ok(Next::Stay(next)) => {
                    *self = next;
                    return Step::Pending;
                }
                Ok(Next::Found(path)) => return Step::Found(Box::new(Path::Rdma(path))),
                Err(reason) => return Step::Failed(reason),
            }
        }
    }
}

enum Next {
    /// There may be more to do.
    Again(Search),
    Stay(Search),
    Found(Box<RdmaPath>),
}

fn connect(candidate: Candidate<'_>) -> Result<Next, FallbackReason> {
    let FourTuple { local, peer } = *candidate.tuple;
    let now = sys::now();
    let connecting = Connecting::from(local.ip(), peer, now, now + ANSWER_LIMIT);
    let connecting = connecting.map_err(|e| reason(&e))?;
    Ok(Next::Again(Search::Connecting { connecting, request: None }))
}

/// The further steps of the accepting end.
fn progress(
    candidate: Candidate<'_>,
    mut connecting: Connecting,
    request: Option<SentRequest>,
) -> Result<Next, FallbackReason> {
    match (connecting.progress(sys::now()), request) {
        (Ok(Progress::Pending), request) => {
            Ok(Next::Stay(Search::Connecting { connecting, request }))
        }
        // Again, if the peer still knew the queue pair's number from another connection.
        (Ok(Progress::Path(ctx, path)), _) => {
            let preparing = Preparing::new(&ctx, &path, candidate.config);
            let preparing = Box::new(preparing.map_err(|_| FallbackReason::Resources)?);
            let (qp_num, conn_data) = (preparing.qp_num(), preparing.conn_data());
            let (data, code) = Authenticator::of(candidate).message(qp_num, &conn_data, None);
            let sent = connecting.send_request(qp_num, &data);
            sent.map_err(|_| FallbackReason::PathFailed)?;
            let request = Some(SentRequest { ctx, preparing, code });
            Ok(Next::Stay(Search::Connecting { connecting, request }))
        }
        (Ok(Progress::Accepted(answer)), Some(request)) => {
            let path = establish(candidate, connecting, request, &answer)?;
            Ok(Next::Found(Box::new(path)))
        }
        // The peer listens, and does not trust this end.
        (Ok(Progress::Rejected(_)), _) => Err(FallbackReason::Untrusted),
        // The peer does not listen yet, or not for this end.
        (Err(Error::Refused | Error::TimedOut | Error::PeerGone), _) => {
            Ok(Next::Stay(Search::Idle))
        }
        (Err(e), _) => Err(reason(&e)),
        (Ok(_), _) => Err(FallbackReason::PathFailed),
    }
}

fn establish(
    candidate: Candidate<'_>,
    mut connecting: Connecting,
    request: SentRequest,
    answer: &Answer,
) -> Result<RdmaPath, FallbackReason> {
    let bytes = answer.private_data.as_bytes();
    let (peer, _) =
        Authenticator::of(candidate).verify(answer.qp_num, bytes, Some(&request.code))?;
    let stream = request.preparing.connect(&peer, answer.qp_num);
    let stream = stream.map_err(|_| FallbackReason::PathFailed)?;
    let connection = connecting.establish().map_err(|_| FallbackReason::PathFailed)?;
    Ok(RdmaPath::new(stream, connection, request.ctx))
}

/// The first step of the connecting end: answers requests.
fn serve(candidate: Candidate<'_>, mut listener: Listener) -> Result<Next, FallbackReason> {
    let event = listener.try_next(sys::now()).map_err(|e| reason(&e))?;
    let Some(event) = event else { return Ok(Next::Stay(Search::Listening(listener))) };
    let Event::Request(request) = event else {
        return Ok(Next::Again(Search::Listening(listener)));
    };
    let Ok((peer, code)) = is_other_end(candidate, &request) else {
        // The peer's request may still come.
        let _ = listener.reject(request.id, &[]);
        return Ok(Next::Again(Search::Listening(listener)));
    };
    match answer(candidate, &mut listener, &request, &peer, &code) {
        Ok(stream) => {
            let (id, ctx) = (request.id, request.ctx);
            Ok(Next::Again(Search::Accepted { listener, id, ctx, stream }))
        }
        Err(refusal) => {
            let _ = listener.reject(request.id, &[]);
            refusal.map_or(Ok(Next::Again(Search::Listening(listener))), Err)
        }
    }
}

/// Accepts a request. An error has the reason to stay on TCP, or none if only this request is
/// unusable.
fn answer(
    candidate: Candidate<'_>,
    listener: &mut Listener,
    request: &Request,
    peer: &ConnData,
    code: &[u8; CODE_LEN],
) -> Result<Box<QpStream<Rdma>>, Option<FallbackReason>> {
    let preparing = Preparing::new(&request.ctx, &request.path, candidate.config)
        .map_err(|_| Some(FallbackReason::Resources))?;
    let (qp_num, conn_data) = (preparing.qp_num(), preparing.conn_data());
    let (data, _) = Authenticator::of(candidate).message(qp_num, &conn_data, Some(code));
    let stream = preparing.connect(peer, request.qp_num).map_err(|e| match e {
        rsock_verbs::Error::PeerViolation(_) => None,
        _ => Some(FallbackReason::PathFailed),
    })?;
    // The peer may have gone meanwhile.
    listener.accept(request.id, qp_num, &data).map_err(|_| Some(FallbackReason::PathFailed))?;
    Ok(Box::new(stream))
}

/// Checks by its addresses and its proof that a request comes from the other end; its connection
/// data and code.
fn is_other_end(
    candidate: Candidate<'_>,
    request: &Request,
) -> Result<(ConnData, [u8; CODE_LEN]), FallbackReason> {
    let authenticator = Authenticator::of(candidate);
    if !authenticator.has_addresses(request.peer_addr, request.local_addr) {
        return Err(FallbackReason::Untrusted);
    }
    authenticator.verify(request.qp_num, request.private_data.as_bytes(), None)
}

/// The last step of the connecting end: the peer's queue pair runs.
fn finish(
    mut listener: Listener,
    accepted: RequestId,
    ctx: RdmaContext,
    stream: Box<QpStream<Rdma>>,
) -> Result<Next, FallbackReason> {
    match poll_handshake(&mut listener, accepted) {
        Ok(HandshakeState::Established(connection)) => {
            Ok(Next::Found(Box::new(RdmaPath::new(*stream, connection, ctx))))
        }
        Ok(HandshakeState::Abandoned) => Ok(Next::Again(Search::Listening(listener))),
        Ok(HandshakeState::Pending) => {
            Ok(Next::Stay(Search::Accepted { listener, id: accepted, ctx, stream }))
        }
        Err(e) => Err(reason(&e)),
    }
}

/// The fallback reason for an error of the connection manager.
fn reason(e: &Error) -> FallbackReason {
    match e {
        // No device has the local address, or none reaches the peer's.
        Error::Unreachable(_) | Error::Device(_) => FallbackReason::Remote,
        Error::System { source, .. } => match source.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENOENT) => FallbackReason::Remote,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => FallbackReason::Resources,
            _ => FallbackReason::PathFailed,
        },
        _ => FallbackReason::PathFailed,
    }
}

/// Whether an address has a meaning on one link only: the connection's addresses do not say on
/// which.
fn has_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
