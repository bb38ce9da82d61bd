//! Finding the peer's process on another host: the accepting end connects back over the connection
//! manager of RDMA devices, to the connecting end, which listens there at its own TCP address and port.
//!
//! So each process that holds a twin pairs by itself, and a peer that runs no rsock notices nothing: a
//! refusal costs it a packet on another protocol. Bytes keep flowing on TCP meanwhile, and no step
//! waits. Each end proves to the other that it has the hosts' key, or is trusted by a rule
//! ([`crate::trust`]): the connection manager says from which host somebody speaks, not who it is.

use super::pair::{Step, Subject};
use super::path::{Far, Path};
use super::tuple::Tuple;
use super::{PinReason, Side};
use crate::engine::{Preparing, Stream};
use crate::env::{self, Device};
use crate::proto::{CONN_DATA_LEN, ConnData};
use crate::sys;
use crate::trust::{CODE_LEN, Claim, trust};
use rsock_cm::Error;
use rsock_cm::manager::{Answer, Connecting as _, Listening as _, RequestId};
use rsock_cm::rdma::{Connecting, Event, Listener, Progress, Request};
use rsock_verbs::rdma::{Rdma, RdmaContext};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Where the search is.
#[derive(Debug)]
pub(super) enum Search {
    /// The connecting end: nobody came yet.
    Listening(Listener),
    /// Somebody came who may, and has been told so.
    Accepted { listener: Listener, id: RequestId, ctx: RdmaContext, stream: Box<Stream<Rdma>> },
    /// The accepting end: on its way to the peer.
    Connecting { connecting: Connecting, asked: Option<Asked> },
    /// The accepting end: the peer did not listen. To be tried again.
    Idle,
}

/// A request that has been sent.
#[derive(Debug)]
pub(super) struct Asked {
    ctx: RdmaContext,
    preparing: Box<Preparing<Rdma>>,
    code: [u8; CODE_LEN],
}

/// How long the peer may take to answer: the kernel repeats a request that was lost after about four
/// seconds. Somebody who does not listen refuses at once.
const PATIENCE: Duration = Duration::from_secs(15);

/// Whether a peer at the other end of `tuple` is to be looked for in this way.
pub(super) fn is_meant(tuple: &Tuple) -> bool {
    env::device() == Some(Device::Rdma) || !tuple.is_local()
}

impl Search {
    /// The first step.
    pub(super) fn begin(subject: Subject<'_>) -> Result<Self, PinReason> {
        let Subject { tuple, side, .. } = subject;
        let Some(side) = side else { return Err(PinReason::Remote) };
        if env::device() == Some(Device::Soft) || has_scope(tuple.peer.ip()) {
            return Err(PinReason::Remote);
        }
        if !trust().knows(tuple.peer.ip()) {
            return Err(PinReason::NoTrust);
        }
        match side {
            Side::Connected => Listener::at(tuple.local, 1).map(Self::Listening).map_err(|e| {
                // Its port there: another connection of that port, or somebody squats on it.
                if matches!(e, Error::AddressInUse) { PinReason::PathFailed } else { reason(&e) }
            }),
            Side::Accepted => Ok(Self::Idle),
        }
    }

    /// The descriptor whose readability means that a step can be taken.
    pub(super) fn fd(&self) -> Option<RawFd> {
        Some(match self {
            Self::Listening(listener) | Self::Accepted { listener, .. } => {
                listener.as_fd().as_raw_fd()
            }
            Self::Connecting { connecting, .. } => connecting.as_fd().as_raw_fd(),
            Self::Idle => return None,
        })
    }

    /// Whether nobody has been found so far.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Listening(_) | Self::Idle)
    }

    /// Takes as many steps as can be taken now. Never waits.
    pub(super) fn step(&mut self, subject: Subject<'_>) -> Step {
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

fn connect(subject: Subject<'_>) -> Result<Next, PinReason> {
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
) -> Result<Next, PinReason> {
    match (connecting.progress(sys::now()), asked) {
        (Ok(Progress::Pending), asked) => Ok(Next::Stay(Search::Connecting { connecting, asked })),
        // Again, where the peer still knew the queue pair's number from another connection.
        (Ok(Progress::Path(ctx, path)), _) => {
            let preparing = Preparing::new(&ctx, &path, subject.config);
            let preparing = Box::new(preparing.map_err(|_| PinReason::Resources)?);
            let (data, code) = words(subject, &preparing, None);
            let sent = connecting.send_request(preparing.qp_num(), &data);
            sent.map_err(|_| PinReason::PathFailed)?;
            let asked = Some(Asked { ctx, preparing, code });
            Ok(Next::Stay(Search::Connecting { connecting, asked }))
        }
        (Ok(Progress::Accepted(answer)), Some(asked)) => {
            let far = establish(subject, connecting, asked, &answer)?;
            Ok(Next::Paired(Box::new(far)))
        }
        // It listens, and does not believe us.
        (Ok(Progress::Rejected(_)), _) => Err(PinReason::Untrusted),
        // Not there yet, or not for us.
        (Err(Error::Refused | Error::TimedOut | Error::PeerGone), _) => {
            Ok(Next::Stay(Search::Idle))
        }
        (Err(e), _) => Err(reason(&e)),
        (Ok(_), _) => Err(PinReason::PathFailed),
    }
}

fn establish(
    subject: Subject<'_>,
    mut connecting: Connecting,
    asked: Asked,
    answer: &Answer,
) -> Result<Far, PinReason> {
    let bytes = answer.private_data.as_bytes();
    let peer = believed(subject, bytes, answer.qp_num.0, Some(&asked.code))?;
    let stream = asked.preparing.connect(&peer, answer.qp_num);
    let stream = stream.map_err(|_| PinReason::PathFailed)?;
    let connection = connecting.establish().map_err(|_| PinReason::PathFailed)?;
    Ok(Far::new(stream, connection, asked.ctx))
}

/// The connecting end's first step: answers whoever comes.
fn serve(subject: Subject<'_>, mut listener: Listener) -> Result<Next, PinReason> {
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
    let accepted = Preparing::new(&request.ctx, &request.path, subject.config)
        .map_err(|_| PinReason::Resources)
        .and_then(|preparing| {
            let (data, _) = words(subject, &preparing, Some(&code));
            let qp_num = preparing.qp_num();
            let stream = preparing.connect(&peer, request.qp_num);
            let stream = stream.map_err(|_| PinReason::PathFailed)?;
            // It may have gone meanwhile.
            listener.accept(request.id, qp_num, &data).map_err(|_| PinReason::PathFailed)?;
            Ok(Box::new(stream))
        });
    match accepted {
        Ok(stream) => {
            let (id, ctx) = (request.id, request.ctx);
            Ok(Next::Again(Search::Accepted { listener, id, ctx, stream }))
        }
        Err(reason) => {
            let _ = listener.reject(request.id, &[]);
            Err(reason)
        }
    }
}

/// Whether a request is the other end's, by what it says and proves; its connection data and code.
fn is_other_end(
    subject: Subject<'_>,
    request: &Request,
) -> Result<(ConnData, [u8; CODE_LEN]), PinReason> {
    if request.peer_addr.ip() != subject.tuple.peer.ip()
        || request.local_addr != subject.tuple.local
    {
        return Err(PinReason::Untrusted);
    }
    let bytes = request.private_data.as_bytes();
    let peer = believed(subject, bytes, request.qp_num.0, None)?;
    Ok((peer, code_in(bytes)?))
}

/// The connecting end's last step: the peer's queue pair runs.
fn finish(
    mut listener: Listener,
    accepted: RequestId,
    ctx: RdmaContext,
    stream: Box<Stream<Rdma>>,
) -> Result<Next, PinReason> {
    loop {
        match listener.try_next(sys::now()) {
            Ok(Some(Event::Established { id, connection })) if id == accepted => {
                return Ok(Next::Paired(Box::new(Far::new(*stream, connection, ctx))));
            }
            Ok(Some(Event::Abandoned { id, .. })) if id == accepted => {
                return Ok(Next::Again(Search::Listening(listener)));
            }
            Ok(Some(Event::Request(request))) => {
                let _ = listener.reject(request.id, &[]);
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                let next = Search::Accepted { listener, id: accepted, ctx, stream };
                return Ok(Next::Stay(next));
            }
            // The device is being taken away, which is said once, and waits until it is let go of.
            Err(e) => return Err(reason(&e)),
        }
    }
}

/// Private data of ours, and the code in it.
///
/// | off | size | field |
/// |---|---|---|
/// | 0 | 40 | connection data |
/// | 40 | 2 | our TCP port, big-endian: never 0, which is what C leaves there |
/// | 42 | 2 | version, 1, big-endian |
/// | 44 | 12 | code |
fn words(
    subject: Subject<'_>,
    preparing: &Preparing<Rdma>,
    request: Option<&[u8; CODE_LEN]>,
) -> ([u8; WORDS_LEN], [u8; CODE_LEN]) {
    let mut words = [0; WORDS_LEN];
    words[..CONN_DATA_LEN].copy_from_slice(&preparing.conn_data().encode());
    words[AT_PORT..AT_VERSION].copy_from_slice(&subject.tuple.local.port().to_be_bytes());
    words[AT_VERSION..AT_CODE].copy_from_slice(&VERSION.to_be_bytes());
    let qp_num = preparing.qp_num().0;
    let code = trust().code(claim(subject, qp_num, &words[..AT_CODE], request));
    words[AT_CODE..].copy_from_slice(&code);
    (words, code)
}

/// The peer's connection data, if it is the peer's.
fn believed(
    subject: Subject<'_>,
    bytes: &[u8],
    qp_num: u32,
    request: Option<&[u8; CODE_LEN]>,
) -> Result<ConnData, PinReason> {
    let code = code_in(bytes)?;
    let port = subject.tuple.peer.port().to_be_bytes();
    if bytes[AT_PORT..AT_VERSION] != port || bytes[AT_VERSION..AT_CODE] != VERSION.to_be_bytes() {
        return Err(PinReason::NoPeer);
    }
    let claim = claim(subject, qp_num, &bytes[..AT_CODE], request);
    if !trust().believes(subject.tuple.peer.ip(), claim, &code) {
        return Err(PinReason::Untrusted);
    }
    ConnData::decode(bytes).map_err(|_| PinReason::PathFailed)
}

fn code_in(bytes: &[u8]) -> Result<[u8; CODE_LEN], PinReason> {
    let code = bytes.get(AT_CODE..WORDS_LEN).and_then(|code| code.try_into().ok());
    code.ok_or(PinReason::NoPeer)
}

fn claim<'a>(
    subject: Subject<'_>,
    qp_num: u32,
    conn_data: &'a [u8],
    request: Option<&'a [u8; CODE_LEN]>,
) -> Claim<'a> {
    let Tuple { local, peer } = *subject.tuple;
    let [client, server]: [SocketAddr; 2] = match subject.side {
        Some(Side::Accepted) => [peer, local],
        _ => [local, peer],
    };
    Claim { client, server, qp_num, conn_data, request }
}

/// Why the connection manager does not help.
fn reason(e: &Error) -> PinReason {
    match e {
        // No device has our address, or none reaches the peer's.
        Error::Unreachable(_) | Error::Device(_) => PinReason::Remote,
        Error::System { source, .. } => match source.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENOENT) => PinReason::Remote,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => PinReason::Resources,
            _ => PinReason::PathFailed,
        },
        _ => PinReason::PathFailed,
    }
}

/// Whether an address means something on one link only: which one, the connection's numbers do not say.
fn has_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

const VERSION: u16 = 1;
const AT_PORT: usize = CONN_DATA_LEN;
const AT_VERSION: usize = AT_PORT + 2;
const AT_CODE: usize = AT_VERSION + 2;
const WORDS_LEN: usize = AT_CODE + CODE_LEN;
const _: () = assert!(WORDS_LEN == rsock_cm::PrivateData::REQUEST);
