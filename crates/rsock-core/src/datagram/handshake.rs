//! Handshakes with peers on this host. A sender asks its peer for a lane of the peer's queue.
//!
//! The handshake is the connection manager's, in the port space of datagrams. It advances in calls
//! that the program makes anyway.

use crate::datagram::header::{KEY, QueueHeader};
use crate::datagram::route::{Medium, Route};
use crate::datagram::source_check::SourceCheck;
use crate::sys;
use rsock_cm::manager::{Connected as _, Connecting as _, Listening as _};
use rsock_cm::soft::{
    SoftConnecting as Connecting, SoftEvent as Event, SoftListener as Listener,
    SoftProgress as Progress,
};
use rsock_cm::{Port, PortSpace};
use rsock_verbs::soft::{Path, SoftContext, SoftUd};
use rsock_verbs::{DatagramQueue, QpNum};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a peer has for its part of a handshake: it takes part when it receives or polls.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes under way at the same time. Further peers are reached by UDP until their turn.
const MOST: usize = 16;
/// Most peers that are answered at a time: others may ask without end.
const MOST_EVENTS: u32 = 16;

/// The result of a handshake that this end began.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) peer: SocketAddr,
    pub(super) number: QpNum,
    pub(super) route: Option<Arc<Route>>,
}

/// What a handshake needs to admit a peer: the queue, and the check of its senders' addresses.
type AdmittingQueue<'a> = (&'a SoftUd, &'a SourceCheck);

/// The handshakes of one socket.
#[derive(Debug)]
pub(super) struct Handshakes {
    ctx: SoftContext,
    port: Arc<Port>,
    listener: Listener,
    attempts: Vec<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    peer: SocketAddr,
    number: QpNum,
    connecting: Connecting,
}

impl Handshakes {
    /// Makes the socket findable by peers.
    ///
    /// # Errors
    /// `EADDRINUSE` if another socket is published under this address; when descriptors run out.
    pub(super) fn new(ctx: &SoftContext, port: &Arc<Port>) -> io::Result<Self> {
        let listener = Listener::listen(ctx, PortSpace::Udp, Arc::clone(port), BACKLOG)?;
        let (ctx, port) = (ctx.clone(), Arc::clone(port));
        Ok(Self { ctx, port, listener, attempts: Vec::new() })
    }

    /// Begins a handshake with queue `number` at canonical `peer`. False if that is not possible
    /// now.
    pub(super) fn begin(&mut self, peer: SocketAddr, number: QpNum, now: Instant) -> bool {
        if self.attempts.len() >= MOST {
            return false;
        }
        let port = Arc::clone(&self.port);
        let started =
            Connecting::start(&self.ctx, PortSpace::Udp, port, peer, now, now + HANDSHAKE_TIMEOUT);
        let Ok(connecting) = started else { return false };
        self.attempts.push(Attempt { peer, number, connecting });
        true
    }

    /// Advances the handshakes; never waits. The results of handshakes that this end began go to
    /// `done`.
    pub(super) fn progress(
        &mut self,
        to: AdmittingQueue<'_>,
        now: Instant,
        mut done: impl FnMut(Outcome),
    ) {
        self.serve(to, now);
        let port = &self.port;
        self.attempts.retain_mut(|attempt| match attempt.progress(port, to, now) {
            Ok(None) => true,
            result => {
                let route = result.ok().flatten();
                done(Outcome { peer: attempt.peer, number: attempt.number, route });
                false
            }
        });
    }

    /// Admits the peers that have asked for a lane.
    fn serve(&mut self, (ud, sources): AdmittingQueue<'_>, now: Instant) {
        for _ in 0..MOST_EVENTS {
            // An error is a shortage, which passes.
            let Ok(Some(event)) = self.listener.try_next(now) else { break };
            if let Event::Request(request) = event {
                let (sender, from) = (request.path.sender(), request.peer_addr);
                let is_let_in =
                    sources.verify(sender, from) && admit(&self.port, ud, &request.path).is_ok();
                let _ = if is_let_in {
                    self.listener.accept(request.id, ud.qp_num(), &[])
                } else {
                    self.listener.reject(request.id, &[])
                };
            }
        }
    }

    /// The descriptors to poll, for both roles.
    pub(super) fn poll_entries(&self, out: &mut Vec<libc::pollfd>) {
        out.push(entry(&self.listener, libc::POLLIN));
        for Attempt { connecting, .. } in &self.attempts {
            let events = sys::poll_bits(connecting.interest());
            if events != 0 {
                out.push(entry(connecting, events));
            }
        }
    }

    /// The latest time at which [`Self::progress`] must be called.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.attempts.iter().map(|attempt| attempt.connecting.next_timeout()).min()
    }
}

impl Attempt {
    /// Advances this handshake; `None` while it is under way.
    fn progress(
        &mut self,
        port: &Port,
        (ud, sources): AdmittingQueue<'_>,
        now: Instant,
    ) -> Result<Option<Arc<Route>>, io::Error> {
        loop {
            match self.connecting.progress(now)? {
                Progress::Pending => return Ok(None),
                Progress::Rejected(_) => return refused(),
                Progress::Path(_, path) => {
                    // The peer needs a lane of the local queue for its answers.
                    admit(port, ud, &path)?;
                    self.connecting.send_request(ud.qp_num(), &[])?;
                }
                Progress::Accepted(answer) => {
                    // The socket that answers under the address is not the one that told its number
                    // by UDP.
                    if answer.qp_num != self.number {
                        return refused();
                    }
                    let source = self.connecting.local_addr();
                    let connected = self.connecting.establish()?;
                    // The peer told this number by UDP, from that address.
                    sources.remember(connected.path().sender(), self.peer);
                    let to = ud.destination(connected.path(), self.number, KEY)?;
                    let header = QueueHeader { source }.encode();
                    return Ok(Some(Arc::new(Route { medium: Medium::SharedMemory(to), header })));
                }
            }
        }
    }
}

/// Admits a peer, with as much room as the UDP socket's receive buffer.
fn admit(port: &Port, ud: &SoftUd, path: &Path) -> Result<(), rsock_verbs::Error> {
    ud.set_room(sys::receive_buffer(port.as_fd()));
    ud.admit(path)
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
}

fn entry(of: &impl AsFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd: of.as_fd().as_raw_fd(), events, revents: 0 }
}

/// Peers that may wait for [`Handshakes::progress`].
const BACKLOG: u32 = 64;
