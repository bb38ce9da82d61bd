//! The listening side on the soft device: many handshakes at once, none of which delays the others.

use super::connection::SoftConnection;
use super::message_socket::{self, MessageSocket};
use super::peer_link;
use super::pending::{Pending, Service, Step};
use super::{SoftEvent, SoftManager, SoftRequest};
use crate::addr::{PortSpace, listen_name};
use crate::error::Error;
use crate::manager::{Listening, RequestId};
use crate::port::Port;
use rsock_verbs::QpNum;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::soft::SoftContext;
use rsock_verbs::untrusted::{self, PeerSocket};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Token of the listening socket in the epoll set; clients count from 2.
const LISTENING: u64 = 0;
/// Token of the timer.
const TIMER: u64 = 1;
/// Handshakes that may be under way however small the backlog is.
const MIN_PENDING: usize = 16;
/// Largest backlog; larger ones are cut, as `listen(2)` does.
const MAX_BACKLOG: u32 = 4096;
/// A client slower than this loses its place when another one needs it.
const SLOW: Duration = Duration::from_secs(1);
/// Events taken at once.
const BATCH: usize = 32;
/// Most looks at the clients in one call: they may come without end.
const MOST_LOOKS: u32 = 16;

/// A listener on the soft device.
///
/// Its one descriptor is readable when [`Self::try_next`] has something to do. Clients beyond the
/// backlog wait on their side. Dropping the listener refuses clients that are not established.
#[derive(Debug)]
pub struct SoftListener {
    ctx: SoftContext,
    service: Service,
    /// Holds the port for as long as the listener lives, unless the caller holds it.
    port: Option<Arc<Port>>,
    socket: PeerSocket,
    set: Set,
    backlog: u32,
}

/// The part that belongs to one process: a forked child makes its own.
#[derive(Debug)]
struct Set {
    owner: ProcessId,
    epoll: OwnedFd,
    pending: HashMap<u64, Pending>,
    next_id: u64,
    /// While set, too many handshakes are under way and the listening socket is not watched.
    pause: Option<OwnedFd>,
}

impl SoftListener {
    /// Listens on `port`, which is bound to an ephemeral port of the wildcard address if it is not
    /// bound yet. At most `backlog` clients wait for their turn.
    ///
    /// # Errors
    /// `AddressInUse`; `System` as `bind(2)` and `listen(2)`.
    pub fn listen(
        ctx: &SoftContext,
        space: PortSpace,
        port: Arc<Port>,
        backlog: u32,
    ) -> Result<Self, Error> {
        let v6_only = port.is_v6_only();
        port.bind_if_unbound()?;
        let local = port.local_addr()?;
        let mut listener = Self::listen_at(ctx, space, local, v6_only, backlog)?;
        port.make_exclusive()?;
        listener.port = Some(port);
        Ok(listener)
    }

    /// Listens for clients of the canonical address `local`, whose port the caller holds by other
    /// means for as long as this listener lives.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub fn listen_at(
        ctx: &SoftContext,
        space: PortSpace,
        local: SocketAddr,
        v6_only: bool,
        backlog: u32,
    ) -> Result<Self, Error> {
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        let socket = message_socket::socket()?;
        let name = message_socket::name(&listen_name(space, local, v6_only))?;
        net::bind(&socket, &name).map_err(|e| match e {
            Errno::ADDRINUSE => Error::AddressInUse,
            e => Error::System { call: "bind", source: e.into() },
        })?;
        set_backlog(&socket, backlog)?;
        let set = Set::new(&socket)?;
        let service = Service { space, local, v6_only };
        Ok(Self { ctx: ctx.clone(), service, port: None, socket, set, backlog })
    }

    /// The port that this listener holds.
    #[must_use]
    pub fn port(&self) -> Option<&Arc<Port>> {
        self.port.as_ref()
    }

    fn limit(&self) -> usize {
        usize::try_from(self.backlog).unwrap_or(usize::MAX).max(MIN_PENDING)
    }

    /// Takes one client from the listening socket.
    fn take_clients(&mut self, now: Instant) -> Result<Option<SoftEvent>, Error> {
        if self.set.pending.len() >= self.limit() {
            if let Some(event) = self.evict(now) {
                return Ok(Some(event));
            }
            self.set.pause(&self.socket)?;
            return Ok(None);
        }
        if untrusted::is_flooded() {
            self.set.pause(&self.socket)?;
            return Ok(None);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match net::accept_with(&self.socket, flags) {
            Ok(socket) => socket,
            // Another process that shares the listener was faster, or the client gave up.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
            Err(e) => return Err(Error::System { call: "accept", source: e.into() }),
        };
        let pending =
            match Pending::new(MessageSocket::new(PeerSocket::with_fixed_number(socket)), now) {
                Ok(pending) => pending,
                Err(e) => return Ok(Some(SoftEvent::Refused(e))),
            };
        let id = self.set.next_id;
        self.set.next_id += 1;
        self.set.watch(id, &pending)?;
        self.set.pending.insert(id, pending);
        Ok(None)
    }

    /// Refuses the slowest client, if it is slow enough and the next step is its own.
    fn evict(&mut self, now: Instant) -> Option<SoftEvent> {
        let slowest = self
            .set
            .pending
            .iter()
            .filter(|(_, p)| !p.is_requested() && now.duration_since(p.since) >= SLOW)
            .min_by_key(|(_, p)| p.since)
            .map(|(id, _)| *id)?;
        let pending = self.remove(slowest)?;
        Some(given_up(slowest, &pending, Error::TimedOut))
    }

    fn resume(&mut self, now: Instant) -> Option<SoftEvent> {
        let event = self.evict(now);
        if event.is_none() && self.set.pending.len() >= self.limit() {
            self.set.restart_timer();
        } else {
            self.set.unpause(&self.socket);
        }
        event
    }

    fn advance(&mut self, id: u64, flags: epoll::EventFlags) -> Option<SoftEvent> {
        let pending = self.set.pending.get_mut(&id)?;
        let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let result = if pending.is_requested() && hung_up {
            Err(Error::PeerGone)
        } else {
            pending.step(&self.ctx, &self.service)
        };
        match result {
            Ok(None | Some(Step::More)) => None,
            Ok(Some(Step::Request { local, peer, path, qp_num, data })) => {
                Some(SoftEvent::Request(SoftRequest {
                    id: RequestId(id),
                    local_addr: local,
                    peer_addr: peer,
                    ctx: self.ctx.clone(),
                    path,
                    qp_num,
                    private_data: data,
                }))
            }
            Ok(Some(Step::Established { local, peer, path })) => {
                let message_socket = self.remove(id)?.message_socket;
                let connection = SoftConnection::new(message_socket, path, local, peer, None);
                Some(SoftEvent::Established { id: RequestId(id), connection })
            }
            Err(error) => {
                let pending = self.remove(id)?;
                if matches!(error, Error::PeerVersion { .. }) {
                    // Its header tells the client the listener's version.
                    let _ = pending.reject(&[]);
                }
                Some(given_up(id, &pending, error))
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<Pending> {
        let pending = self.set.pending.remove(&id)?;
        let _ = epoll::delete(&self.set.epoll, &pending.message_socket);
        self.set.unpause(&self.socket);
        Some(pending)
    }
}

impl Listening<SoftManager> for SoftListener {
    fn local_addr(&self) -> SocketAddr {
        self.service.local
    }

    fn set_backlog(&mut self, backlog: u32) -> Result<(), Error> {
        self.backlog = backlog.clamp(1, MAX_BACKLOG);
        set_backlog(&self.socket, self.backlog)
    }

    fn try_next(&mut self, now: Instant) -> Result<Option<SoftEvent>, Error> {
        if self.set.owner != process() {
            // This is a forked child: the clients and the open device belong to the parent, the
            // listening socket to both.
            self.ctx = peer_link::of_this_process(&self.ctx)?;
            self.set = Set::new(&self.socket)?;
        }
        for _ in 0..MOST_LOOKS {
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }; BATCH];
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let n = match epoll::wait(&self.set.epoll, &mut events, Some(&zero)) {
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(Error::System { call: "epoll_wait", source: e.into() }),
            };
            if n == 0 {
                return Ok(None);
            }
            for event in &events[..n] {
                let found = match event.data.u64() {
                    LISTENING => self.take_clients(now)?,
                    TIMER => self.resume(now),
                    id => self.advance(id, event.flags),
                };
                // Other events stay in the set, which is level-triggered.
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    fn accept(&mut self, id: RequestId, qp_num: QpNum, private_data: &[u8]) -> Result<(), Error> {
        let pending =
            self.set.pending.get_mut(&id.0).ok_or(Error::LocalState("no such request"))?;
        pending.accept(qp_num, private_data)
    }

    fn reject(&mut self, id: RequestId, private_data: &[u8]) -> Result<(), Error> {
        let pending = self.set.pending.get(&id.0).ok_or(Error::LocalState("no such request"))?;
        // A client that is gone is rejected, too.
        if let Err(e @ Error::LocalPrivateData { .. }) = pending.reject(private_data) {
            return Err(e);
        }
        self.remove(id.0);
        Ok(())
    }

    fn n_pending(&self) -> usize {
        self.set.pending.len()
    }
}

/// Ends a handshake that failed.
fn given_up(id: u64, pending: &Pending, error: Error) -> SoftEvent {
    if pending.is_known_to_caller() {
        SoftEvent::Abandoned { id: RequestId(id), error }
    } else {
        SoftEvent::Refused(error)
    }
}

fn set_backlog(socket: &PeerSocket, backlog: u32) -> Result<(), Error> {
    // The kernel lets one more wait than the backlog says.
    let n = i32::try_from(backlog - 1).unwrap_or(i32::MAX);
    net::listen(socket, n).map_err(Error::system("listen"))
}

impl AsFd for SoftListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.epoll.as_fd()
    }
}

impl Set {
    fn new(socket: &PeerSocket) -> Result<Self, Error> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("epoll_create1"))?;
        let data = epoll::EventData::new_u64(LISTENING);
        epoll::add(&epoll, socket, data, epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))?;
        Ok(Self { owner: process(), epoll, pending: HashMap::new(), next_id: 2, pause: None })
    }

    fn watch(&self, id: u64, pending: &Pending) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(id);
        epoll::add(&self.epoll, &pending.message_socket, data, epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))
    }

    /// Stops watching the listening socket until a place is free or a slow client can be evicted.
    fn pause(&mut self, socket: &PeerSocket) -> Result<(), Error> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(Error::system("timerfd_create"))?;
        let data = epoll::EventData::new_u64(TIMER);
        epoll::add(&self.epoll, &timer, data, epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))?;
        self.pause = Some(timer);
        self.restart_timer();
        let data = epoll::EventData::new_u64(LISTENING);
        epoll::modify(&self.epoll, socket, data, epoll::EventFlags::empty())
            .map_err(Error::system("epoll_ctl"))
    }

    fn restart_timer(&self) {
        if let Some(timer) = &self.pause {
            let once = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec { tv_sec: 1, tv_nsec: 0 },
            };
            // A timer that cannot be set again stays expired, so the listener checks again at once.
            let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
        }
    }

    fn unpause(&mut self, socket: &PeerSocket) {
        if let Some(timer) = self.pause.take() {
            // Closing is not enough: a child forked meanwhile keeps the timer open, and an epoll
            // set drops an entry only when no process has its file open.
            let _ = epoll::delete(&self.epoll, &timer);
            let data = epoll::EventData::new_u64(LISTENING);
            let _ = epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN);
        }
    }
}
