//! The listening side of the pure mode: finishes connections and queues them for `accept`.
//!
//! There is no service thread. Whoever accepts or polls a listener makes its handshakes progress,
//! all of them; and so does whoever waits for a connect in the same process, because a program
//! may connect to itself before it accepts. (Not once it has forked: the listener may be a child's
//! by then.)

use super::device;
use super::established::Established;
use super::options::Options;
use crate::engine::{Preparing, Stream};
use crate::interrupt::Watch;
use crate::proto::ConnData;
use crate::sys;
use rsock_cm::soft::{Event, Listener, Request, RequestId};
use rsock_cm::{Port, PortSpace};
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::soft::Soft;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Listeners of this process, for those who wait in a connect.
static LISTENERS: Mutex<Vec<Weak<Accepting>>> = Mutex::new(Vec::new());

/// A listening socket's inner side.
#[derive(Debug)]
pub(super) struct Accepting {
    options: Arc<Mutex<Options>>,
    local: SocketAddr,
    /// Forks of this process when it began to listen.
    forks: u32,
    /// Readable while connections are queued.
    bell: OwnedFd,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    owner: ProcessId,
    /// `None` once shut down.
    listener: Option<Listener>,
    /// Accepted, and waiting for the client to say that it runs.
    half_open: HashMap<RequestId, Stream<Soft>>,
    ready: VecDeque<Established>,
    backlog: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Accepting {
    /// Listens on `port`.
    pub(super) fn listen(
        port: Arc<Port>,
        backlog: u32,
        options: Arc<Mutex<Options>>,
    ) -> io::Result<Arc<Self>> {
        let listener = Listener::listen(&device::open()?, PortSpace::Tcp, port, backlog)?;
        let accepting = Arc::new(Self {
            options,
            local: listener.local_addr(),
            forks: sys::forks(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            queue: Mutex::new(Queue {
                owner: process(),
                listener: Some(listener),
                half_open: HashMap::new(),
                ready: VecDeque::new(),
                backlog: backlog_limit(backlog),
            }),
        });
        let mut all = lock(&LISTENERS);
        all.retain(|l| l.strong_count() > 0);
        all.push(Arc::downgrade(&accepting));
        Ok(accepting)
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
    /// `EAGAIN`; `EINVAL` after a shutdown; what keeps the listener from working.
    pub(super) fn try_accept(&self, now: Instant) -> io::Result<Established> {
        let mut queue = self.owned();
        let progress = self.progress_queue(&mut queue, now);
        if let Some(established) = queue.ready.pop_front() {
            if queue.ready.is_empty() {
                self.silence();
            }
            return Ok(established);
        }
        if queue.listener.is_none() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        progress?;
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Whether `accept` would return at once. Makes progress first.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        let mut queue = self.owned();
        // An error is for `accept` to tell.
        self.progress_queue(&mut queue, now).is_err()
            || !queue.ready.is_empty()
            || queue.listener.is_none()
    }

    /// Waits until `accept` may have something.
    pub(super) fn wait(&self, deadline: Option<Instant>, watch: Watch) -> io::Result<()> {
        let mut fds = self.poll_entries();
        let left = sys::time_left(deadline);
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        match sys::sleep(&mut fds, left, None, watch) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) && !watch.must_end() => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Ok(()),
        }
    }

    /// What to poll: handshakes, and the queue.
    pub(super) fn poll_entries(&self) -> [libc::pollfd; 2] {
        let queue = lock(&self.queue);
        let listener = queue.listener.as_ref().filter(|_| !queue.is_full());
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        [entry(listener.map_or(-1, |l| l.as_fd().as_raw_fd())), entry(self.bell.as_raw_fd())]
    }

    /// Stops listening; those that wait in `accept` are told.
    pub(super) fn shutdown(&self) {
        let mut queue = lock(&self.queue);
        queue.listener = None;
        queue.half_open.clear();
        self.ring();
    }

    fn progress(&self, now: Instant) {
        // A forked child may be the one that accepts here. Whoever else holds the lock makes the
        // progress.
        if self.forks == sys::forks()
            && let Ok(mut queue) = self.queue.try_lock()
            && queue.owner == process()
        {
            let _ = self.progress_queue(&mut queue, now);
        }
    }

    /// The queue, as this process's own: what a forked child inherits half done is its parent's.
    fn owned(&self) -> MutexGuard<'_, Queue> {
        let mut queue = lock(&self.queue);
        if queue.owner != process() {
            queue.owner = process();
            queue.half_open.clear();
            queue.ready.clear();
        }
        queue
    }

    fn progress_queue(&self, queue: &mut Queue, now: Instant) -> io::Result<()> {
        while !queue.is_full() {
            let Some(listener) = &mut queue.listener else { return Ok(()) };
            match listener.try_next(now)? {
                None => return Ok(()),
                Some(Event::Request(request)) => {
                    let id = request.id;
                    match self.answer(listener, &request) {
                        Ok(stream) => drop(queue.half_open.insert(id, stream)),
                        // Not acceptable, or no memory: the client hears a refusal.
                        Err(_) => listener.reject(id, &[])?,
                    }
                }
                Some(Event::Established { id, connection }) => {
                    if let Some(stream) = queue.half_open.remove(&id) {
                        let ctx = device::open()?;
                        queue.ready.push_back(Established::new(&ctx, stream, connection));
                        self.ring();
                    }
                }
                Some(Event::Abandoned { id, .. }) => drop(queue.half_open.remove(&id)),
                // A client that was turned away, and kinds of events to come.
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn answer(&self, listener: &mut Listener, request: &Request) -> io::Result<Stream<Soft>> {
        let peer = ConnData::decode(request.private_data.as_bytes())
            .map_err(super::opening::peer_error)?;
        let config = lock(&self.options).config();
        let half = Preparing::new(&device::open()?, &request.path, &config)?;
        let (qp_num, data) = (half.qp_num(), half.conn_data().encode());
        let stream = half.connect(&peer, request.qp_num)?;
        listener.accept(request.id, qp_num, &data)?;
        Ok(stream)
    }

    fn ring(&self) {
        // It can only fail when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

impl Queue {
    fn is_full(&self) -> bool {
        self.ready.len() >= self.backlog
    }
}

fn backlog_limit(backlog: u32) -> usize {
    usize::try_from(backlog).unwrap_or(usize::MAX).max(1)
}

/// Every listener of this process, for a thread that waits in a connect.
pub(super) fn listeners() -> Vec<Arc<Accepting>> {
    lock(&LISTENERS).iter().filter_map(Weak::upgrade).collect()
}

/// Makes progress on all of `listeners`.
pub(super) fn progress(listeners: &[Arc<Accepting>], now: Instant) {
    for listener in listeners {
        listener.progress(now);
    }
}
