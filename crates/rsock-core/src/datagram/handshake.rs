//! Meeting peers on this host: whoever sends to us asks for a lane of our queue, and we ask those
//! that we send to. The handshake is the connection manager's, in the port space of datagrams; it
//! makes progress in calls that the program makes anyway.

use crate::datagram::header::QueueHeader;
use crate::datagram::route::{Over, Way};
use crate::datagram::sources::Sources;
use crate::sys;
use rsock_cm::soft::{
    SoftConnecting as Connecting, SoftEvent as Event, SoftListener as Listener,
    SoftProgress as Progress,
};
use rsock_cm::{Port, PortSpace};
use rsock_verbs::soft::{Path, SoftContext, SoftUd};
use rsock_verbs::{DatagramQueue, QKey, QpNum};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// WIRE: the Q_Key of every datagram rsocket.
pub(super) const KEY: QKey = QKey(0x0123_4567);
/// How long a peer has for its part of a handshake: it takes part when it receives or polls.
const PATIENCE: Duration = Duration::from_secs(5);
/// Handshakes under way at the same time. Others wait for their turn, on UDP.
const MOST: usize = 16;

/// What came of a handshake that we began.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) peer: SocketAddr,
    pub(super) number: QpNum,
    pub(super) way: Option<Arc<Way>>,
}

/// What a handshake opens: the queue, and what is known of who may send to it from where.
type NativeListener<'a> = (&'a SoftUd, &'a Sources);

/// The handshakes of one socket.
#[derive(Debug)]
pub(super) struct Meeting {
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

impl Meeting {
    /// From here on peers find us.
    ///
    /// # Errors
    /// `EADDRINUSE` if somebody else is found under our address; when descriptors run out.
    pub(super) fn new(ctx: &SoftContext, port: &Arc<Port>) -> io::Result<Self> {
        let listener = Listener::listen(ctx, PortSpace::Udp, Arc::clone(port), BACKLOG)?;
        let (ctx, port) = (ctx.clone(), Arc::clone(port));
        Ok(Self { ctx, port, listener, attempts: Vec::new() })
    }

    /// Begins to look for queue `number` at canonical `peer`; false if that cannot be now.
    pub(super) fn seek(&mut self, peer: SocketAddr, number: QpNum, now: Instant) -> bool {
        if self.attempts.len() >= MOST {
            return false;
        }
        let port = Arc::clone(&self.port);
        let started = Connecting::start(&self.ctx, PortSpace::Udp, port, peer, now, now + PATIENCE);
        let Ok(connecting) = started else { return false };
        self.attempts.push(Attempt { peer, number, connecting });
        true
    }

    /// Makes what progress there is; never waits. What came of our own handshakes goes to `done`.
    pub(super) fn progress(
        &mut self,
        to: NativeListener<'_>,
        now: Instant,
        mut done: impl FnMut(Outcome),
    ) {
        self.serve(to, now);
        let port = &self.port;
        self.attempts.retain_mut(|attempt| match attempt.progress(port, to, now) {
            Ok(None) => true,
            result => {
                let way = result.ok().flatten();
                done(Outcome { peer: attempt.peer, number: attempt.number, way });
                false
            }
        });
    }

    /// Lets those in who ask.
    fn serve(&mut self, (ud, sources): NativeListener<'_>, now: Instant) {
        // An error is a shortage, which passes.
        while let Ok(Some(event)) = self.listener.try_next(now) {
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

    /// What to poll, for both roles.
    pub(super) fn poll_entries(&self, out: &mut Vec<libc::pollfd>) {
        out.push(entry(&self.listener, libc::POLLIN));
        for Attempt { connecting, .. } in &self.attempts {
            let events = sys::poll_bits(connecting.interest());
            if events != 0 {
                out.push(entry(connecting, events));
            }
        }
    }

    /// When to call [`Self::progress`] at the latest.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.attempts.iter().map(|attempt| attempt.connecting.next_timeout()).min()
    }
}

impl Attempt {
    /// `None` while it is under way.
    fn progress(
        &mut self,
        port: &Port,
        (ud, sources): NativeListener<'_>,
        now: Instant,
    ) -> Result<Option<Arc<Way>>, io::Error> {
        loop {
            match self.connecting.progress(now)? {
                Progress::Pending => return Ok(None),
                Progress::Rejected(_) => return refused(),
                Progress::Path(_, path) => {
                    // It will want to answer.
                    admit(port, ud, &path)?;
                    self.connecting.send_request(ud.qp_num(), &[])?;
                }
                Progress::Accepted(answer) => {
                    // What is found under the address is not who answered from it.
                    if answer.qp_num != self.number {
                        return refused();
                    }
                    let source = self.connecting.local_addr();
                    let met = self.connecting.establish()?;
                    // It told the number by UDP, from that address.
                    sources.remember(met.path().sender(), self.peer);
                    let to = ud.destination(met.path(), self.number, KEY)?;
                    let header = QueueHeader { source }.encode();
                    return Ok(Some(Arc::new(Way { over: Over::Memory(to), header })));
                }
            }
        }
    }
}

/// Lets a peer in, with as much room as the UDP socket has.
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

/// Peers that may wait for us to look.
const BACKLOG: u32 = 64;
