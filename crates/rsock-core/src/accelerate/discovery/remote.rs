//! Finding the peer's process on another host: the accepting end connects back over the connection
//! manager of RDMA devices, to the connecting end, which listens there at its own TCP address and port.
//!
//! So each process that holds a twin pairs by itself, and a peer that runs no rsock notices nothing: a
//! refusal costs it a packet on another protocol. Bytes keep flowing on TCP meanwhile, and no step
//! waits. Each end proves to the other that it has the hosts' key, or is trusted by a rule
//! ([`crate::config::trusted_hosts`]): the connection manager says from which host somebody speaks, not who it is.

mod auth_message;
mod handshake_events;

#[cfg(any(test, fuzzing))]
pub use auth_message::check_words;

use crate::accelerate::discovery::local::{Step, Subject};
use crate::accelerate::four_tuple::Tuple;
use crate::accelerate::path::{Far, Path};
use crate::accelerate::{FallbackReason, Side};
use crate::config::environment::{self, Device};
use crate::config::trusted_hosts::{CODE_LEN, trust};
use crate::engine::{Preparing, QpStream};
use crate::sys;
use auth_message::Talk;
use handshake_events::{Heard, hear};
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

/// Where the search is.
#[derive(Debug)]
pub(in crate::accelerate) enum Search {
    /// The connecting end: nobody came yet.
    Listening(Listener),
    /// Somebody came who may, and has been told so.
    Accepted { listener: Listener, id: RequestId, ctx: RdmaContext, stream: Box<QpStream<Rdma>> },
    /// The accepting end: on its way to the peer.
    Connecting { connecting: Connecting, asked: Option<Asked> },
    /// The accepting end: the peer did not listen. To be tried again.
    Idle,
}

/// A request that has been sent.
#[derive(Debug)]
pub(in crate::accelerate) struct Asked {
    ctx: RdmaContext,
    preparing: Box<Preparing<Rdma>>,
    code: [u8; CODE_LEN],
}

/// How long the peer may take to answer: the kernel repeats a request that was lost after about four
/// seconds. Somebody who does not listen refuses at once.
const PATIENCE: Duration = Duration::from_secs(15);

/// Whether a peer at the other end of `tuple` is to be looked for in this way.
pub(in crate::accelerate) fn is_meant(tuple: &Tuple) -> bool {
    environment::device() == Some(Device::Rdma) || !tuple.is_local()
}

impl Search {
    /// The first step.
    pub(in crate::accelerate) fn begin(subject: Subject<'_>) -> Result<Self, FallbackReason> {
        let Subject { tuple, side, .. } = subject;
        let Some(side) = side else { return Err(FallbackReason::Remote) };
        if environment::device() == Some(Device::Soft) || has_scope(tuple.peer.ip()) {
            return Err(FallbackReason::Remote);
        }
        if !trust().knows(tuple.peer.ip()) {
            return Err(FallbackReason::NoTrust);
        }
        match side {
            Side::Connected => Listener::at(tuple.local, 1).map(Self::Listening).map_err(|e| {
                // Its port there: another connection of that port, or somebody squats on it.
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

    /// Whether nobody has been found so far.
    pub(in crate::accelerate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Listening(_) | Self::Idle)
    }

    /// Takes as many steps as can be taken now. Never waits.
    pub(in crate::accelerate) fn step(&mut self, subject: Subject<'_>) -> Step {
        loop {
            let state = std::mem::replace(self, Self::Idle);
            let next = match state {
                Self::Idle => connect(subject),
                Self::Connecting { connecting, asked } => ask(subject, connecting, asked),
                Self::Listening(listener) => serve(subject, listener),
                Self::Accepted { listener, id, ctx, stream } => finish(listener, id, ctx, stream),
            };
            match next {
                Ok(Next::Again(next)) => *self = next,
                Ok(Next::Stay(next)) => {
                    *self = next;
                    return Step::Pending;
                }
                Ok(Next::Paired(far)) => return Step::Paired(Box::new(Path::Rdma(*far))),
                Err(reason) => return Step::Failed(reason),
            }
        }
    }
}

enum Next {
    /// There may be more to do.
    Again(Search),
    Stay(Search),
    Paired(Box<Far>),
}

fn connect(subject: Subject<'_>) -> Result<Next, FallbackReason> {
    let Tuple { local, peer } = *subject.tuple;
    let now = sys::now();
    let connecting = Connecting::from(local.ip(), peer, now, now + PATIENCE);
    let connecting = connecting.map_err(|e| reason(&e))?;
    Ok(Next::Again(Search::Connecting { connecting, asked: None }))
}

/// The accepting end's further steps.
fn ask(
    subject: Subject<'_>,
    mut connecting: Connecting,
    asked: Option<Asked>,
) -> Result<Next, FallbackReason> {
    match (connecting.progress(sys::now()), asked) {
        (Ok(Progress::Pending), asked) => Ok(Next::Stay(Search::Connecting { connecting, asked })),
        // Again, where the peer still knew the queue pair's number from another connection.
        (Ok(Progress::Path(ctx, path)), _) => {
            let preparing = Preparing::new(&ctx, &path, subject.config);
            let preparing = Box::new(preparing.map_err(|_| FallbackReason::Resources)?);
            let (qp_num, conn_data) = (preparing.qp_num(), preparing.conn_data());
            let (data, code) = Talk::of(subject).words(qp_num, &conn_data, None);
            let sent = connecting.send_request(qp_num, &data);
            sent.map_err(|_| FallbackReason::PathFailed)?;
            let asked = Some(Asked { ctx, preparing, code });
            Ok(Next::Stay(Search::Connecting { connecting, asked }))
        }
        (Ok(Progress::Accepted(answer)), Some(asked)) => {
            let far = establish(subject, connecting, asked, &answer)?;
            Ok(Next::Paired(Box::new(far)))
        }
        // It listens, and does not believe us.
        (Ok(Progress::Rejected(_)), _) => Err(FallbackReason::Untrusted),
        // Not there yet, or not for us.
        (Err(Error::Refused | Error::TimedOut | Error::PeerGone), _) => {
            Ok(Next::Stay(Search::Idle))
        }
        (Err(e), _) => Err(reason(&e)),
        (Ok(_), _) => Err(FallbackReason::PathFailed),
    }
}

fn establish(
    subject: Subject<'_>,
    mut connecting: Connecting,
    asked: Asked,
    answer: &Answer,
) -> Result<Far, FallbackReason> {
    let bytes = answer.private_data.as_bytes();
    let (peer, _) = Talk::of(subject).believed(answer.qp_num, bytes, Some(&asked.code))?;
    let stream = asked.preparing.connect(&peer, answer.qp_num);
    let stream = stream.map_err(|_| FallbackReason::PathFailed)?;
    let connection = connecting.establish().map_err(|_| FallbackReason::PathFailed)?;
    Ok(Far::new(stream, connection, asked.ctx))
}

/// The connecting end's first step: answers whoever comes.
fn serve(subject: Subject<'_>, mut listener: Listener) -> Result<Next, FallbackReason> {
    let event = listener.try_next(sys::now()).map_err(|e| reason(&e))?;
    let Some(event) = event else { return Ok(Next::Stay(Search::Listening(listener))) };
    let Event::Request(request) = event else {
        return Ok(Next::Again(Search::Listening(listener)));
    };
    let Ok((peer, code)) = is_other_end(subject, &request) else {
        // The rightful one may still come.
        let _ = listener.reject(request.id, &[]);
        return Ok(Next::Again(Search::Listening(listener)));
    };
    match answer(subject, &mut listener, &request, &peer, &code) {
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

/// Accepts a request. An error has the reason to stay on TCP, or none if this asker alone will not do.
fn answer(
    subject: Subject<'_>,
    listener: &mut Listener,
    request: &Request,
    peer: &ConnData,
    code: &[u8; CODE_LEN],
) -> Result<Box<QpStream<Rdma>>, Option<FallbackReason>> {
    let preparing = Preparing::new(&request.ctx, &request.path, subject.config)
        .map_err(|_| Some(FallbackReason::Resources))?;
    let (qp_num, conn_data) = (preparing.qp_num(), preparing.conn_data());
    let (data, _) = Talk::of(subject).words(qp_num, &conn_data, Some(code));
    let stream = preparing.connect(peer, request.qp_num).map_err(|e| match e {
        rsock_verbs::Error::PeerViolation(_) => None,
        _ => Some(FallbackReason::PathFailed),
    })?;
    // It may have gone meanwhile.
    listener.accept(request.id, qp_num, &data).map_err(|_| Some(FallbackReason::PathFailed))?;
    Ok(Box::new(stream))
}

/// Whether a request is the other end's, by what it says and proves; its connection data and code.
fn is_other_end(
    subject: Subject<'_>,
    request: &Request,
) -> Result<(ConnData, [u8; CODE_LEN]), FallbackReason> {
    let talk = Talk::of(subject);
    if !talk.is_between(request.peer_addr, request.local_addr) {
        return Err(FallbackReason::Untrusted);
    }
    talk.believed(request.qp_num, request.private_data.as_bytes(), None)
}

/// The connecting end's last step: the peer's queue pair runs.
fn finish(
    mut listener: Listener,
    accepted: RequestId,
    ctx: RdmaContext,
    stream: Box<QpStream<Rdma>>,
) -> Result<Next, FallbackReason> {
    match hear(&mut listener, accepted) {
        Ok(Heard::Established(connection)) => {
            Ok(Next::Paired(Box::new(Far::new(*stream, connection, ctx))))
        }
        Ok(Heard::Abandoned) => Ok(Next::Again(Search::Listening(listener))),
        Ok(Heard::Nothing) => {
            Ok(Next::Stay(Search::Accepted { listener, id: accepted, ctx, stream }))
        }
        Err(e) => Err(reason(&e)),
    }
}

/// Why the connection manager does not help.
fn reason(e: &Error) -> FallbackReason {
    match e {
        // No device has our address, or none reaches the peer's.
        Error::Unreachable(_) | Error::Device(_) => FallbackReason::Remote,
        Error::System { source, .. } => match source.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENOENT) => FallbackReason::Remote,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => FallbackReason::Resources,
            _ => FallbackReason::PathFailed,
        },
        _ => FallbackReason::PathFailed,
    }
}

/// Whether an address means something on one link only: which one, the connection's numbers do not say.
fn has_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
