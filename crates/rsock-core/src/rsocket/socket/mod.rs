//! One socket of the pure mode, in any state: what `rsocket(2)`'s descriptor stands for.
//!
//! Every method has the meaning of the system call of its name. All of them may be called from
//! any thread at once; an established stream is reached without a lock.

mod by_name;
mod connecting;
mod events;

use crate::engine::CallerMemory;
use crate::interrupt::Watch;
use crate::rsocket::any_device::{Accepting, Established, Opening};
use crate::rsocket::connection::Patience;
use crate::rsocket::defaults::Defaults;
use crate::rsocket::options::Options;
use crate::sys;
use rsock_cm::{Port, in_family};
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long a close waits for bytes on their way, if nobody said.
const LINGER: Duration = Duration::from_secs(10);

/// A socket that speaks the rsockets protocol from its first byte.
#[derive(Debug)]
pub struct Socket {
    is_v6: bool,
    nonblocking: AtomicBool,
    /// `SO_ERROR`: what a connect in the background came to.
    error: AtomicI32,
    options: Arc<Mutex<Options>>,
    /// Holds the address. An accepted socket has none: its listener's port is not its own.
    port: Option<Arc<Port>>,
    established: OnceLock<Established>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Bound or not.
    Idle,
    Opening(Box<Opening>),
    Listening(Arc<Accepting>),
    /// See [`Socket::established`].
    Connected,
}

impl Socket {
    /// A new stream socket, of the IPv6 family if `v6`.
    ///
    /// # Errors
    /// As `socket(2)`.
    #[doc(alias = "rsocket")]
    pub fn new(v6: bool) -> io::Result<Self> {
        let options = Options::new(&Defaults::of_process());
        Ok(Self {
            is_v6: v6,
            nonblocking: AtomicBool::new(false),
            error: AtomicI32::new(0),
            options: Arc::new(Mutex::new(options)),
            port: Some(Arc::new(Port::open(v6)?)),
            established: OnceLock::new(),
            state: Mutex::new(State::Idle),
        })
    }

    /// As `bind(2)`.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`; `EINVAL` if it is bound already.
    #[doc(alias = "rbind")]
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let state = self.state();
        if !matches!(*state, State::Idle) {
            return Err(errno(libc::EINVAL));
        }
        let port = self.port()?;
        let options = self.options();
        port.set_reuse_address(options.reuse_address)?;
        if self.is_v6 {
            port.set_v6_only(options.v6_only)?;
        }
        Ok(port.bind(addr)?)
    }

    /// As `listen(2)`. Listening again changes the backlog.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EINVAL` for a socket that is connecting or connected.
    #[doc(alias = "rlisten")]
    pub fn listen(&self, backlog: u32) -> io::Result<()> {
        let mut state = self.state();
        match &*state {
            State::Idle => {
                let port = Arc::clone(self.port()?);
                let options = Arc::clone(&self.options);
                let accepting = Accepting::listen(port, backlog, options)?;
                *state = State::Listening(accepting);
                Ok(())
            }
            State::Listening(accepting) => accepting.set_backlog(backlog),
            State::Opening(_) | State::Connected => Err(errno(libc::EINVAL)),
        }
    }

    /// As `accept(2)`. COMPAT: the new socket inherits the listener's options, its non-blocking mode
    /// included, as in rdma-core since v63.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `EINVAL` for a socket that does not listen; what keeps new descriptors
    /// from being made.
    #[doc(alias = "raccept")]
    pub fn accept(&self) -> io::Result<Self> {
        let accepting = match &*self.state() {
            State::Listening(accepting) => Arc::clone(accepting),
            _ => return Err(errno(libc::EINVAL)),
        };
        let (watch, limit) = (Watch::begin(), self.options().recv_timeout);
        let patience = Patience::new(self.is_nonblocking(), limit);
        loop {
            match accepting.try_accept(sys::now()) {
                Ok(established) => return Ok(self.accepted(established)),
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                Err(e) => match patience {
                    Patience::None | Patience::Watched => return Err(e),
                    Patience::Until(deadline) => accepting.wait(deadline, watch)?,
                },
            }
        }
    }

    fn accepted(&self, established: Established) -> Self {
        let options = self.options().clone();
        let cell = OnceLock::new();
        let _ = cell.set(established);
        let socket = Self {
            is_v6: self.is_v6,
            nonblocking: AtomicBool::new(self.is_nonblocking()),
            error: AtomicI32::new(0),
            options: Arc::new(Mutex::new(options)),
            port: None,
            established: cell,
            state: Mutex::new(State::Connected),
        };
        socket.follow_keepalive();
        socket
    }

    /// As `send(2)` for one or more buffers; `dont_wait` as `MSG_DONTWAIT`. A blocking call
    /// sends everything.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `ENOTCONN`; `ECONNRESET` once either end has closed this direction; the
    /// error that broke the connection.
    #[doc(alias = "rsend")]
    #[inline]
    pub fn send(&self, bufs: &[IoSlice<'_>], dont_wait: bool) -> io::Result<usize> {
        let nonblocking = dont_wait || self.is_nonblocking();
        let Some(established) = self.established.get() else {
            self.await_connection(nonblocking)?;
            return self.send(bufs, dont_wait);
        };
        established.send(bufs, self.patience(nonblocking, |o| o.send_timeout))
    }

    /// As `recv(2)` for one or more buffers; `MSG_PEEK`, `MSG_WAITALL` and `MSG_DONTWAIT` count.
    /// 0 is the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `ENOTCONN`; `ECONNRESET`; the error that broke the connection.
    #[doc(alias = "rrecv")]
    #[inline]
    pub fn recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let nonblocking = flags.contains(RecvFlags::DONTWAIT) || self.is_nonblocking();
        let Some(established) = self.established.get() else {
            self.await_connection(nonblocking)?;
            return self.recv(bufs, flags);
        };
        let patience = self.patience(nonblocking, |o| o.recv_timeout);
        let (peek, all) =
            (flags.contains(RecvFlags::PEEK), flags.contains(RecvFlags::WAITALL) && !nonblocking);
        established.recv(bufs, peek, all, patience)
    }

    fn patience(
        &self,
        nonblocking: bool,
        limit: impl FnOnce(&Options) -> Option<Duration>,
    ) -> Patience {
        if nonblocking {
            return Patience::None;
        }
        Patience::new(false, limit(&self.options()))
    }

    /// Opens memory of the caller's to the peer's [`Self::put`] under `offset`, or under its
    /// address; with `open` false it is registered only. Returns the offset. The memory is taken
    /// back by [`Self::iounmap`], or when the socket is dropped.
    ///
    /// # Errors
    /// `EINVAL` if the socket is not connected; `ENOMEM` if the peer has no entry for it (it offers
    /// `RDMA_IOMAPSIZE` of them); `EOPNOTSUPP` where this memory cannot be opened.
    #[doc(alias = "riomap")]
    pub fn iomap(&self, memory: &CallerMemory, offset: Option<u64>, open: bool) -> io::Result<u64> {
        let established = self.established.get().ok_or_else(|| errno(libc::EINVAL))?;
        established.iomap(memory, offset, open)
    }

    /// Takes memory back that was given to [`Self::iomap`] with this address and length.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    #[doc(alias = "riounmap")]
    pub fn iounmap(&self, addr: *const u8, len: usize) -> io::Result<()> {
        match self.established.get() {
            Some(established) if established.iounmap(addr, len) => Ok(()),
            _ => Err(errno(libc::EINVAL)),
        }
    }

    /// Writes into the memory that the peer opened under `offset`. The peer is not told; what is
    /// sent afterwards arrives afterwards. A blocking call writes everything, or up to the end of
    /// what is open.
    ///
    /// # Errors
    /// `EFAULT` if nothing is open there; otherwise as [`Self::send`].
    #[doc(alias = "riowrite")]
    pub fn put(&self, bytes: &[u8], offset: u64, dont_wait: bool) -> io::Result<usize> {
        let nonblocking = dont_wait || self.is_nonblocking();
        let Some(established) = self.established.get() else {
            self.await_connection(nonblocking)?;
            return self.put(bytes, offset, dont_wait);
        };
        established.put(bytes, offset, self.patience(nonblocking, |o| o.send_timeout))
    }

    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    #[doc(alias = "rshutdown")]
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let Some(established) = self.established.get() {
            established.shutdown(how);
            return Ok(());
        }
        match &*self.state() {
            State::Listening(accepting) if how != Shutdown::Write => {
                accepting.shutdown();
                Ok(())
            }
            _ => Err(errno(libc::ENOTCONN)),
        }
    }

    /// As `close(2)`: ends the connection. In shared memory what was sent is at the peer already; on an
    /// RDMA device this waits until it is, for `SO_LINGER`'s time at most, or ten seconds. Time zero
    /// resets the connection. Calls that wait in other threads end.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        if let Some(established) = self.established.get() {
            let linger = self.options().linger;
            let reset = linger.is_some_and(|linger| linger.is_zero());
            established.close(reset, linger.unwrap_or(LINGER));
            return;
        }
        let mut state = self.state();
        if let State::Listening(accepting) = &*state {
            accepting.shutdown();
        }
        *state = State::Idle;
    }

    /// As `getsockname(2)`.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    #[doc(alias = "rgetsockname")]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let canonical = if let Some(established) = self.established.get() {
            established.local_addr()
        } else {
            match &*self.state() {
                State::Opening(opening) => opening.local_addr(),
                State::Listening(accepting) => match accepting.local_addr() {
                    Some(addr) => addr,
                    None => self.port()?.local_addr()?,
                },
                State::Idle | State::Connected => self.port()?.local_addr()?,
            }
        };
        Ok(in_family(canonical, self.is_v6))
    }

    /// As `getpeername(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    #[doc(alias = "rgetpeername")]
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let established = self.established.get().ok_or_else(|| errno(libc::ENOTCONN))?;
        Ok(in_family(established.peer_addr(), self.is_v6))
    }

    /// Whether calls that cannot go on at once answer `EAGAIN`.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// As `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(super) fn established(&self) -> Option<&Established> {
        self.established.get()
    }

    fn port(&self) -> io::Result<&Arc<Port>> {
        self.port.as_ref().ok_or_else(|| errno(libc::EINVAL))
    }

    fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn errno(e: i32) -> io::Error {
    io::Error::from_raw_os_error(e)
}

impl AsFd for Socket {
    /// A descriptor that is this socket's for as long as it lives: its number is free for nobody
    /// else. It is not a descriptor to read, write or poll.
    #[expect(clippy::expect_used, reason = "a socket without a port is made connected")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.port {
            Some(port) => port.as_fd(),
            None => self.established.get().expect("accepted").as_fd(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}
