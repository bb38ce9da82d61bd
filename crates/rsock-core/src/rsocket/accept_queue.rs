//! The listening side, on one device: finishes handshakes and queues connections for `accept`.
//!
//! There is no service thread. Each call that accepts from or polls a listener advances all of its
//! handshakes.

use crate::engine::{Preparing, QpStream, ThreadBell};
use crate::metrics;
use crate::rsocket::connection::Connection;
use crate::rsocket::options::Options;
use crate::sys;
use rsock_cm::Port;
use rsock_cm::manager::{ContextOf, Event, Listening, Manager, Request, RequestId};
use rsock_proto::ConnData;
use rsock_verbs::family::{ProcessId, process};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What a listening socket has on one device.
#[derive(Debug)]
pub(super) struct AcceptQueue<M: Manager> {
    path: metrics::Transport,
    options: Arc<Mutex<Options>>,
    local: SocketAddr,
    /// The process that began to listen, and the number of its forks before.
    creator: ProcessId,
    forks: u32,
    queue: Mutex<Queue<M>>,
}

#[derive(Debug)]
struct Queue<M: Manager> {
    owner: ProcessId,
    /// An eventfd, of the owner alone: readable while established connections await `accept`.
    ready_fd: OwnedFd,
    /// `None` after a shutdown.
    listener: Option<M::Listener>,
    /// Answered, and waiting for the client to confirm.
    half_open: HashMap<RequestId, (ContextOf<M>, QpStream<M::Backend>)>,
    ready: VecDeque<Connection<M>>,
    backlog: usize,
}

fn ready_fd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Manager> AcceptQueue<M>
where
    M::Backend: ThreadBell,
{
    /// Listens on `port`.
    pub(super) fn listen(
        manager: &M,
        path: metrics::Transport,
        port: Arc<Port>,
        backlog: u32,
        options: Arc<Mutex<Options>>,
    ) -> io::Result<Self> {
        let listener = manager.listen(port, backlog)?;
        Ok(Self {
            path,
            options,
            local: listener.local_addr(),
            creator: process(),
            forks: sys::forks(),
            queue: Mutex::new(Queue {
                owner: process(),
                ready_fd: ready_fd()?,
                listener: Some(listener),
                half_open: HashMap::new(),
                ready: VecDeque::new(),
                backlog: backlog_limit(backlog),
            }),
        })
    }

    /// Changes the backlog.
    pub(super) fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        let mut queue = lock(&self.queue);
        queue.backlog = backlog_limit(backlog);
        match &mut queue.listener {
            Some(listener) => Ok(listener.set_backlog(backlog)?),
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Takes the next finished connection; never waits.
    ///
    /// # Errors
    /// `EAGAIN`; `EINVAL` after a shutdown; what broke the listener; `EMFILE`, `ENFILE`.
    pub(super) fn try_accept(&self, now: Instant) -> io::Result<Connection<M>> {
        let mut queue = self.owned()?;
        let progress = self.progress_queue(&mut queue, now);
        if let Some(established) = queue.ready.pop_front() {
            if queue.ready.is_empty() {
                queue.clear_ready();
            }
            return Ok(established);
        }
        if queue.listener.is_none() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        progress?;
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Whether `accept` would return at once. Advances handshakes first.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        // `accept` reports an error.
        let Ok(mut queue) = self.owned() else { return true };
        self.progress_queue(&mut queue, now).is_err()
            || !queue.ready.is_empty()
            || queue.listener.is_none()
    }

    /// What to poll: handshakes, then the queue.
    pub(super) fn poll_entries(&self) -> [libc::pollfd; 2] {
        let Ok(queue) = self.owned() else { return [-1; 2].map(entry) };
        [queue.handshakes(), queue.ready_fd.as_raw_fd()].map(entry)
    }

    /// What to poll for handshakes alone, if [`Self::progress`] advances them.
    pub(super) fn handshake_entry(&self) -> libc::pollfd {
        entry(if self.is_of_one_process() { lock(&self.queue).handshakes() } else { -1 })
    }

    /// Adds the descriptor of the handshakes to the epoll set `set`, as
    /// [`Self::handshake_entry`]. The lock is held meanwhile, so that another thread cannot close
    /// the descriptor in between.
    pub(super) fn add_handshakes_to(&self, set: BorrowedFd<'_>) -> io::Result<()> {
        if !self.is_of_one_process() {
            return Ok(());
        }
        let queue = lock(&self.queue);
        match queue.handshakes() {
            -1 => Ok(()),
            fd => sys::epoll_add(set, fd),
        }
    }

    /// Whether no other process may accept here. A forked child does not advance what its parent
    /// listens on, and may have inherited the lock from a thread that it does not have; its parent
    /// does not either, because the child may accept here.
    fn is_of_one_process(&self) -> bool {
        self.creator == process() && self.forks == sys::forks()
    }

    /// Stops listening. Calls that wait in `accept` end with `EINVAL`.
    pub(super) fn shutdown(&self) {
        let mut queue = lock(&self.queue);
        queue.listener = None;
        queue.half_open.clear();
        // What a child has not taken over is its parent's.
        if queue.owner == process() {
            queue.set_ready();
        }
    }

    /// Advances handshakes, for a thread of this process that waits in a connect.
    pub(super) fn progress(&self, now: Instant) {
        // If another thread holds the lock, it advances the handshakes.
        if self.is_of_one_process()
            && let Ok(mut queue) = self.queue.try_lock()
        {
            let _ = self.progress_queue(&mut queue, now);
        }
    }

    /// The queue, as this process's own. A forked child drops the handshakes and connections that
    /// it inherited: they belong to its parent.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: nothing is taken over.
    fn owned(&self) -> io::Result<MutexGuard<'_, Queue<M>>> {
        let mut queue = lock(&self.queue);
        if queue.owner != process() {
            queue.ready_fd = ready_fd()?;
            queue.owner = process();
            queue.half_open.clear();
            queue.ready.clear();
        }
        Ok(queue)
    }

    fn progress_queue(&self, queue: &mut Queue<M>, now: Instant) -> io::Result<()> {
        while !queue.is_full() {
            let Some(listener) = &mut queue.listener else { return Ok(()) };
            match listener.try_next(now)? {
                None => return Ok(()),
                Some(Event::Request(request)) => {
                    let id = request.id;
                    match self.answer(listener, &request) {
                        Ok(stream) => drop(queue.half_open.insert(id, (request.ctx, stream))),
                        // Bad connection data, or no memory: the client gets ECONNREFUSED.
                        Err(_) => listener.reject(id, &[])?,
                    }
                }
                Some(Event::Established { id, connection }) => {
                    if let Some((ctx, stream)) = queue.half_open.remove(&id) {
                        let path = self.path;
                        queue.ready.push_back(Connection::new(&ctx, stream, connection, path));
                        queue.set_ready();
                    }
                }
                Some(Event::Abandoned { id, .. }) => drop(queue.half_open.remove(&id)),
                // A rejected client, and events that later versions add.
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        listener: &mut M::Listener,
        request: &Request<M>,
    ) -> io::Result<QpStream<M::Backend>> {
        let peer = ConnData::decode(request.private_data.as_bytes())
            .map_err(crate::rsocket::pending_connect::peer_error)?;
        let config = lock(&self.options).config();
        let half = Preparing::new(&request.ctx, &request.path, &config)?;
        let (qp_num, data) = (half.qp_num(), half.conn_data().encode());
        let stream = half.connect(&peer, request.qp_num)?;
        listener.accept(request.id, qp_num, &data)?;
        Ok(stream)
    }
}

impl<M: Manager> Queue<M> {
    fn set_ready(&self) {
        // A write fails only when the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&self.ready_fd, &1u64.to_ne_bytes());
    }

    fn clear_ready(&self) {
        let _ = rustix::io::read(&self.ready_fd, &mut [0; 8]);
    }

    /// The descriptor of the handshakes, or -1 where the next connection would find no room.
    fn handshakes(&self) -> RawFd {
        let watched = self.listener.as_ref().filter(|_| !self.is_full());
        watched.map_or(-1, |listener| listener.as_fd().as_raw_fd())
    }

    fn is_full(&self) -> bool {
        self.ready.len() >= self.backlog
    }
}

fn backlog_limit(backlog: u32) -> usize {
    usize::try_from(backlog).unwrap_or(usize::MAX).max(1)
}
