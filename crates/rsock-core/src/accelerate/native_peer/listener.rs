//! Native listeners: they accept peers that speak rsockets alone, at the port of RDMA devices with
//! the same number as that of a program's listening TCP socket.
//!
//! A native listener has no thread of its own. The calls that wait on the socket serve it: they
//! sleep on its one descriptor too, and process its events before they sleep again. Invariant: a
//! native listener belongs to the process that opened it. A forked child
//! [abandons](NativeListener::abandon) it and opens its own, if it waits for connections and its
//! parent has none any more.

#![forbid(unsafe_code)]

use crate::accelerate::native_peer::{NativeStream, placeholder};
use crate::accelerate::path::RdmaPath;
use crate::config::environment::{self, Device};
use crate::config::trusted_hosts::{is_configured, trust};
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

/// A listener at a port of RDMA devices, beside a listening TCP socket.
#[derive(Debug)]
pub struct NativeListener {
    owner: ProcessId,
    queue: Mutex<Queue>,
    /// Readable while an established connection awaits `accept`.
    bell: HighFd,
    /// Readable when the connection manager has events, or the bell is readable.
    watch: HighFd,
}

#[derive(Debug)]
struct Queue {
    listener: Listener,
    /// Accepted connections for which the connecting side has not confirmed yet that it runs.
    half_open: HashMap<RequestId, (RdmaContext, QpStream<Rdma>)>,
    ready: VecDeque<Established>,
}

/// An established connection. Fields are declared in the order in which they must be dropped.
#[derive(Debug)]
struct Established {
    stream: QpStream<Rdma>,
    connection: Connection,
    ctx: RdmaContext,
}

/// Established connections at most; further requests wait for an answer.
const MOST: usize = 128;

impl NativeListener {
    /// Whether the configuration allows native listeners.
    #[inline]
    #[must_use]
    pub fn is_wanted() -> bool {
        is_wanted()
    }

    /// Opens a native listener at the address of a listening socket.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a descriptor that is no listening TCP socket, or if the configuration
    /// allows no native listeners; `EADDRINUSE` if another process has one there; `ENODEV` without
    /// a device; errors of system calls.
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

    /// Whether this process opened the listener.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.owner == process()
    }

    /// Whether [`Self::accept`] would return a stream. Serves the listener first.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // A signal handler may wait for the same socket.
        let _section = Section::enter();
        !self.served().ready.is_empty()
    }

    /// The next established connection, if there is one: a descriptor for the program, of the kind
    /// that `listener` would have given, and its stream. The descriptor does not block and closes
    /// on exec.
    ///
    /// # Errors
    /// When descriptors or memory run out; then the connection stays in the queue.
    pub fn accept(&self, listener: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, NativeStream)>> {
        let _section = Section::enter();
        let next = {
            let mut queue = self.served();
            let next = queue.ready.pop_front();
            if queue.ready.is_empty() {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            next
        };
        let Some(established) = next else { return Ok(None) };
        let (local, peer) =
            (established.connection.local_addr(), established.connection.peer_addr());
        match placeholder::accepted(listener, local) {
            Ok((program, kept)) => {
                let Established { stream, connection, ctx } = established;
                let path = RdmaPath::new(stream, connection, ctx);
                let stream = NativeStream::new(program.as_fd(), kept, path.into(), (local, peer));
                Ok(stream.map(|stream| (program, stream)))
            }
            Err(e) => {
                self.lock().ready.push_front(established);
                self.ring();
                Err(e)
            }
        }
    }

    /// Drops the copy of the parent's listener that a forked child has: closes the descriptors that
    /// would keep it open, and touches nothing else.
    pub fn abandon(self) {
        let queue = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget((queue.half_open, queue.ready));
    }

    /// The queue, after the events of the connection manager have been processed.
    fn served(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.lock();
        let before = queue.ready.len();
        // Its errors are not reported: the TCP socket is not affected.
        let _ = queue.serve();
        if queue.ready.len() > before {
            self.ring();
        }
        queue
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A write can only fail when the counter is full, and then the bell is readable.
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
    fn serve(&mut self) -> Result<(), rsock_cm::Error> {
        while self.ready.len() < MOST {
            match self.listener.try_next(sys::now())? {
                None => return Ok(()),
                Some(Event::Request(request)) => match answer(&mut self.listener, &request) {
                    Some(stream) => drop(self.half_open.insert(request.id, (request.ctx, stream))),
                    None => self.listener.reject(request.id, &[])?,
                },
                Some(Event::Established { id, connection }) => {
                    if let Some((ctx, stream)) = self.half_open.remove(&id) {
                        self.ready.push_back(Established { stream, connection, ctx });
                    }
                }
                Some(Event::Abandoned { id, .. }) => drop(self.half_open.remove(&id)),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The stream for a request, which has been accepted; `None` if it is to be rejected.
fn answer(listener: &mut Listener, request: &Request) -> Option<QpStream<Rdma>> {
    if !trust().admits(request.peer_addr.ip()) {
        return None;
    }
    let bytes = request.private_data.as_bytes();
    if is_of_accelerated_stream(bytes) {
        return None;
    }
    let peer = ConnData::decode(bytes).ok()?;
    let preparing = Preparing::new(&request.ctx, &request.path, &config()).ok()?;
    let (qp_num, data) = (preparing.qp_num(), preparing.conn_data().encode());
    let stream = preparing.connect(&peer, request.qp_num).ok()?;
    // The peer may have gone meanwhile.
    listener.accept(request.id, qp_num, &data).ok()?;
    Some(stream)
}

/// Whether a request's private data come from an accelerated stream, which has a TCP connection to
/// its peer.
fn is_of_accelerated_stream(bytes: &[u8]) -> bool {
    bytes.get(CONN_DATA_LEN..CONN_DATA_LEN + 2).is_some_and(|port| port != [0; 2])
}

/// The configuration of native streams.
pub(in crate::accelerate) fn config() -> Config {
    Config { extensions: false, ..Config::default() }
}

/// Whether the configuration allows native streams.
pub(in crate::accelerate) fn is_wanted() -> bool {
    is_configured()
        && environment::is_enabled()
        && environment::device() != Some(Device::Soft)
        && trust().admits_any()
}

/// Handshakes under way at a time.
const BACKLOG: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_native_listener_needs_trusted_hosts_in_the_configuration() {
        // The machine that tests run on has none.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let e = NativeListener::open(listener.as_fd()).expect_err("not in the configuration");
        assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_request_of_an_accelerated_stream_differs_from_one_of_a_native_peer() {
        let mut bytes = [0; 56];
        assert!(!is_of_accelerated_stream(&bytes));
        assert!(!is_of_accelerated_stream(&bytes[..CONN_DATA_LEN]));
        bytes[CONN_DATA_LEN + 1] = 80;
        assert!(is_of_accelerated_stream(&bytes));
    }
}
