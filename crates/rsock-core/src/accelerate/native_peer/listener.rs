//! Peers that speak rsockets alone, the listening side: beside a program's listening TCP socket, its
//! place in the ports of RDMA devices.
//!
//! Nobody looks after a door but the calls that wait on the socket: its one descriptor joins whatever they
//! sleep on, and what it shows is taken care of before they go to sleep again. Invariant: a door belongs
//! to the process that opened it. A forked child [abandons](NativeListener::abandon) it and opens its own, if it
//! comes to waiting and its parent has none any more.

#![forbid(unsafe_code)]

use crate::accelerate::native_peer::stream;
use crate::accelerate::path::RdmaPath;
use crate::accelerate::{AcceleratedStream, Side};
use crate::config::environment::{self, Device};
use crate::config::trusted_hosts::trust;
use crate::engine::{Config, Preparing, QpStream};
use crate::interrupt::Section;
use crate::sys;
use rsock_cm::manager::{Connected as _, Listening as _, RequestId};
use rsock_cm::rdma::{
    RdmaConnection as Connection, RdmaEvent as Event, RdmaListener as Listener,
    RdmaRequest as Request,
};
use rsock_proto::{CONN_DATA_LEN, ConnData};
use rsock_verbs::HighFd;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::rdma::{Rdma, RdmaContext};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{getsockname, ipproto, sockopt};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A listening socket's place in the ports of RDMA devices.
#[derive(Debug)]
pub struct NativeListener {
    owner: ProcessId,
    queue: Mutex<Queue>,
    /// Readable while somebody has come whom nobody has taken in.
    bell: HighFd,
    /// Readable when the connection manager has news, or the bell is.
    watch: HighFd,
}

#[derive(Debug)]
struct Queue {
    listener: Listener,
    /// Accepted, and waiting for the client to say that it runs.
    half_open: HashMap<RequestId, (RdmaContext, QpStream<Rdma>)>,
    ready: VecDeque<Visitor>,
}

/// Somebody who has come. Declared in the order in which the parts must go.
#[derive(Debug)]
struct Visitor {
    stream: QpStream<Rdma>,
    connection: Connection,
    ctx: RdmaContext,
}

/// Visitors that wait to be taken in, at most; others wait to be answered.
const MOST: usize = 128;

impl NativeListener {
    /// Whether the configuration wants doors at all.
    #[must_use]
    pub fn is_wanted() -> bool {
        is_wanted()
    }

    /// Opens a door at the address of a listening socket.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what is no listening TCP socket, or if the configuration wants no doors;
    /// `EADDRINUSE` if another process has a door there; `ENODEV` without a device; what the system answers.
    pub fn open(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let is_tcp = sockopt::socket_protocol(socket)? == Some(ipproto::TCP);
        if !is_wanted() || !is_tcp || !sockopt::socket_acceptconn(socket)? {
            return Err(Errno::OPNOTSUPP.into());
        }
        let local = SocketAddr::try_from(getsockname(socket)?)?;
        let v6_only = local.is_ipv6() && sockopt::ipv6_v6only(socket)?;
        let listener = Listener::beside(rsock_cm::canonical(local), v6_only, BACKLOG)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = HighFd::new(eventfd(0, flags)?);
        let watch = HighFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        for fd in [bell.as_fd(), listener.as_fd()] {
            sys::epoll_add(watch.as_fd(), fd.as_raw_fd())?;
        }
        let (half_open, ready) = (HashMap::new(), VecDeque::new());
        let queue = Mutex::new(Queue { listener, half_open, ready });
        Ok(Self { owner: process(), queue, bell, watch })
    }

    /// Whether this process opened it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.owner == process()
    }

    /// Whether [`Self::accept`] would have somebody. Takes care of what has come.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // A handler may wait for the same socket.
        let _section = Section::enter();
        !self.attended().ready.is_empty()
    }

    /// Takes in who has come, if anybody has: a descriptor for the program, of the kind that `listener`
    /// would have given, and its stream. The descriptor does not block and closes on exec.
    ///
    /// # Errors
    /// When descriptors or memory run out; then the visitor goes on waiting.
    pub fn accept(
        &self,
        listener: BorrowedFd<'_>,
    ) -> io::Result<Option<(OwnedFd, AcceleratedStream)>> {
        let _section = Section::enter();
        let visitor = {
            let mut queue = self.attended();
            let visitor = queue.ready.pop_front();
            if queue.ready.is_empty() {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            visitor
        };
        let Some(visitor) = visitor else { return Ok(None) };
        let (local, peer) = (visitor.connection.local_addr(), visitor.connection.peer_addr());
        match stream::placeholder(listener, local) {
            Ok((near, far)) => {
                let Visitor { stream, connection, ctx } = visitor;
                let path = RdmaPath::new(stream, connection, ctx);
                let twin =
                    AcceleratedStream::sole(near.as_fd(), far, path, Side::Accepted, (local, peer));
                Ok(twin.map(|twin| (near, twin)))
            }
            Err(e) => {
                self.lock().ready.push_front(visitor);
                self.ring();
                Err(e)
            }
        }
    }

    /// Lets go of the copy of the parent's door that a forked child has: closes what would keep it open, and
    /// touches nothing else.
    pub fn abandon(self) {
        let queue = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget((queue.half_open, queue.ready));
    }

    /// The queue, after everything that waited to be done has been.
    fn attended(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.lock();
        let before = queue.ready.len();
        // What keeps the connection manager from it is for no caller to know: TCP goes on.
        let _ = queue.attend();
        if queue.ready.len() > before {
            self.ring();
        }
        queue
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // It can only fail when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// The descriptor to wait for beside the listening socket's.
impl AsFd for NativeListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Queue {
    fn attend(&mut self) -> Result<(), rsock_cm::Error> {
        while self.ready.len() < MOST {
            match self.listener.try_next(sys::now())? {
                None => return Ok(()),
                Some(Event::Request(request)) => match answer(&mut self.listener, &request) {
                    Some(stream) => drop(self.half_open.insert(request.id, (request.ctx, stream))),
                    None => self.listener.reject(request.id, &[])?,
                },
                Some(Event::Established { id, connection }) => {
                    if let Some((ctx, stream)) = self.half_open.remove(&id) {
                        self.ready.push_back(Visitor { stream, connection, ctx });
                    }
                }
                Some(Event::Abandoned { id, .. }) => drop(self.half_open.remove(&id)),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The stream for a request, which has been told yes; `None` if it is to be told no.
fn answer(listener: &mut Listener, request: &Request) -> Option<QpStream<Rdma>> {
    if !trust().admits(request.peer_addr.ip()) {
        return None;
    }
    let bytes = request.private_data.as_bytes();
    if is_of_a_twin(bytes) {
        return None;
    }
    let peer = ConnData::decode(bytes).ok()?;
    let preparing = Preparing::new(&request.ctx, &request.path, &config()).ok()?;
    let (qp_num, data) = (preparing.qp_num(), preparing.conn_data().encode());
    let stream = preparing.connect(&peer, request.qp_num).ok()?;
    // It may have gone meanwhile.
    listener.accept(request.id, qp_num, &data).ok()?;
    Some(stream)
}

/// Whether a request's private data come from a twin that looks for its peer, who is not here.
fn is_of_a_twin(bytes: &[u8]) -> bool {
    bytes.get(CONN_DATA_LEN..CONN_DATA_LEN + 2).is_some_and(|port| port != [0; 2])
}

/// Of streams without TCP.
pub(in crate::accelerate) fn config() -> Config {
    Config { extensions: false, ..Config::default() }
}

/// Whether the configuration wants streams without TCP.
pub(in crate::accelerate) fn is_wanted() -> bool {
    environment::is_enabled() && environment::device() != Some(Device::Soft) && trust().admits_any()
}

/// Handshakes under way at a time.
const BACKLOG: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn there_is_no_door_without_a_word_in_the_configuration() {
        // The machine that tests run on has none.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let e = NativeListener::open(listener.as_fd()).expect_err("nobody asked for one");
        assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_twin_that_looks_for_its_peer_is_none_of_c() {
        let mut bytes = [0; 56];
        assert!(!is_of_a_twin(&bytes) && !is_of_a_twin(&bytes[..CONN_DATA_LEN]));
        bytes[CONN_DATA_LEN + 1] = 80;
        assert!(is_of_a_twin(&bytes));
    }
}
