//! A stream socket of the rsockets API, in any state: what a descriptor of `rsocket(3)` stands for.
//!
//! Each method has the meaning of the system call of its name. Any number of threads may call any
//! of them at once; a connected stream is reached without a lock.

mod closing;
mod connecting;
mod events;
mod option_bytes;
mod typed_options;

pub use closing::close_without_descriptor;

use crate::engine::CallerMemory;
use crate::interrupt::Watch;
use crate::rsocket::any_device::{AnyAcceptQueue, AnyConnection, AnyPendingConnect};
use crate::rsocket::connection::WaitPolicy;
use crate::rsocket::options::Options;
use crate::rsocket::system_defaults::SystemDefaults;
use crate::rsocket::{Family, RemoteAccess};
use crate::sys;
use rsock_cm::{Port, in_family};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A socket that speaks the rsockets protocol from its first byte.
#[derive(Debug)]
pub struct Socket {
    family: Family,
    nonblocking: AtomicBool,
    /// `SO_ERROR`: the errno that a non-blocking connect ended with, or 0.
    error: AtomicI32,
    options: Arc<Mutex<Options>>,
    /// The kernel's TCP socket that holds the port. An accepted socket shares its listener's port
    /// number and has none.
    port: Option<Arc<Port>>,
    connection: OnceLock<AnyConnection>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Bound or not.
    Idle,
    Connecting(Box<AnyPendingConnect>),
    Listening(Arc<AnyAcceptQueue>),
    /// The stream is in [`Socket::connection`].
    Connected,
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Blocking,
    Nonblocking,
}

impl Socket {
    /// A new stream socket of `family`.
    ///
    /// # Errors
    /// As `socket(2)`: `EMFILE`, `ENFILE`, `ENOMEM`; `EAFNOSUPPORT` where IPv6 is switched off.
    #[doc(alias = "rsocket")]
    pub fn new(family: Family) -> io::Result<Self> {
        let options = Options::new(&SystemDefaults::of_process());
        Ok(Self {
            family,
            nonblocking: AtomicBool::new(false),
            error: AtomicI32::new(0),
            options: Arc::new(Mutex::new(options)),
            port: Some(Arc::new(Port::open(family.is_v6())?)),
            connection: OnceLock::new(),
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
        if self.family.is_v6() {
            port.set_v6_only(options.v6_only)?;
        }
        Ok(port.bind(addr)?)
    }

    /// As `listen(2)`. A second call changes the backlog.
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
                let queue = AnyAcceptQueue::listen(port, backlog, options)?;
                *state = State::Listening(queue);
                Ok(())
            }
            State::Listening(queue) => queue.set_backlog(backlog),
            State::Connecting(_) | State::Connected => Err(errno(libc::EINVAL)),
        }
    }

    /// As `accept(2)`. COMPAT: the new socket inherits the listener's options, its non-blocking
    /// mode included, as in rdma-core since v63.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `EINVAL` for a socket that does not listen; `EMFILE`, `ENFILE`, `ENOMEM`.
    #[doc(alias = "raccept")]
    pub fn accept(&self) -> io::Result<Self> {
        let queue = match &*self.state() {
            State::Listening(queue) => Arc::clone(queue),
            _ => return Err(errno(libc::EINVAL)),
        };
        let watch = Watch::begin();
        let policy = self.policy(self.mode(), |o| o.recv_timeout);
        loop {
            match queue.try_accept(sys::now()) {
                Ok(connection) => return Ok(self.accepted(connection)),
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                Err(e) => match policy {
                    WaitPolicy::Nonblocking | WaitPolicy::NonblockingWatched => return Err(e),
                    WaitPolicy::Until(deadline) => queue.wait(deadline, watch)?,
                },
            }
        }
    }

    fn accepted(&self, connection: AnyConnection) -> Self {
        let options = self.options().clone();
        let cell = OnceLock::new();
        let _ = cell.set(connection);
        let socket = Self {
            family: self.family,
            nonblocking: AtomicBool::new(self.is_nonblocking()),
            error: AtomicI32::new(0),
            options: Arc::new(Mutex::new(options)),
            port: None,
            connection: cell,
            state: Mutex::new(State::Connected),
        };
        socket.follow_keepalive();
        socket
    }

    /// As `send(2)` for one or more buffers; of the flags `MSG_DONTWAIT` counts. A blocking call
    /// sends everything.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `ENOTCONN`; `ECONNRESET` once either end has closed this direction; the
    /// error that broke the connection.
    #[doc(alias = "rsend")]
    #[inline]
    pub fn send(&self, bufs: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let mode =
            if flags.contains(SendFlags::DONTWAIT) { Mode::Nonblocking } else { self.mode() };
        let Some(connection) = self.connection.get() else {
            self.await_connection(mode)?;
            return self.send(bufs, flags);
        };
        if let Some(n) = connection.send_at_once(bufs) {
            return Ok(n);
        }
        connection.send(bufs, self.policy(mode, |o| o.send_timeout))
    }

    /// As `recv(2)` for one or more buffers; `MSG_PEEK`, `MSG_WAITALL` and `MSG_DONTWAIT` count.
    /// 0 is the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; `ENOTCONN`; `ECONNRESET`; the error that broke the connection.
    #[doc(alias = "rrecv")]
    #[inline]
    pub fn recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let mode =
            if flags.contains(RecvFlags::DONTWAIT) { Mode::Nonblocking } else { self.mode() };
        let Some(connection) = self.connection.get() else {
            self.await_connection(mode)?;
            return self.recv(bufs, flags);
        };
        let policy = self.policy(mode, |o| o.recv_timeout);
        let flags = match mode {
            Mode::Blocking => flags,
            Mode::Nonblocking => flags - RecvFlags::WAITALL,
        };
        connection.recv(bufs, flags, policy)
    }

    /// The mode of a call without `MSG_DONTWAIT`.
    #[inline]
    fn mode(&self) -> Mode {
        if self.is_nonblocking() { Mode::Nonblocking } else { Mode::Blocking }
    }

    /// How long a call may wait, with the time limit that `limit` picks from the options.
    #[inline]
    fn policy(&self, mode: Mode, limit: impl FnOnce(&Options) -> Option<Duration>) -> WaitPolicy {
        match mode {
            Mode::Blocking => WaitPolicy::within(limit(&self.options())),
            Mode::Nonblocking => WaitPolicy::Nonblocking,
        }
    }

    /// Exposes the caller's memory to the peer's [`Self::write_remote`] under `offset`, or under
    /// its address; with [`RemoteAccess::None`] it is only registered. Returns the offset. The
    /// memory is the caller's again after [`Self::iounmap`], or once the socket is dropped.
    ///
    /// # Errors
    /// `EINVAL` if the socket is not connected; `ENOMEM` if the peer has no free iomap entry (it
    /// offers `RDMA_IOMAPSIZE` of them); `EOPNOTSUPP` if the device cannot expose this memory.
    #[doc(alias = "riomap")]
    pub fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        access: RemoteAccess,
    ) -> io::Result<u64> {
        let connection = self.connection.get().ok_or_else(|| errno(libc::EINVAL))?;
        connection.iomap(memory, offset, access)
    }

    /// Ends the mapping that [`Self::iomap`] made of this address and length.
    ///
    /// # Errors
    /// `EINVAL` if there is no such mapping.
    #[doc(alias = "riounmap")]
    pub fn iounmap(&self, addr: *const u8, len: usize) -> io::Result<()> {
        match self.connection.get() {
            Some(connection) if connection.iounmap(addr, len) => Ok(()),
            _ => Err(errno(libc::EINVAL)),
        }
    }

    /// Writes into the memory that the peer exposes under `offset`; of the flags `MSG_DONTWAIT`
    /// counts. The peer gets no notice of it, but bytes sent afterwards arrive afterwards. A
    /// blocking call writes everything, or up to the end of the region. Returns the bytes written.
    ///
    /// # Errors
    /// `EFAULT` if no region is exposed there; otherwise as [`Self::send`].
    #[doc(alias = "riowrite")]
    pub fn write_remote(&self, bytes: &[u8], offset: u64, flags: SendFlags) -> io::Result<usize> {
        let mode =
            if flags.contains(SendFlags::DONTWAIT) { Mode::Nonblocking } else { self.mode() };
        let Some(connection) = self.connection.get() else {
            self.await_connection(mode)?;
            return self.write_remote(bytes, offset, flags);
        };
        connection.write_remote(bytes, offset, self.policy(mode, |o| o.send_timeout))
    }

    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    #[doc(alias = "rshutdown")]
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let Some(connection) = self.connection.get() {
            connection.shutdown(how);
            return Ok(());
        }
        match &*self.state() {
            State::Listening(queue) if how != Shutdown::Write => {
                queue.shutdown();
                Ok(())
            }
            _ => Err(errno(libc::ENOTCONN)),
        }
    }

    /// As `getsockname(2)`.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    #[doc(alias = "rgetsockname")]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let canonical = if let Some(connection) = self.connection.get() {
            connection.local_addr()
        } else {
            match &*self.state() {
                State::Connecting(pending) => pending.local_addr(),
                State::Listening(queue) => match queue.local_addr() {
                    Some(addr) => addr,
                    None => self.port()?.local_addr()?,
                },
                State::Idle | State::Connected => self.port()?.local_addr()?,
            }
        };
        Ok(in_family(canonical, self.family.is_v6()))
    }

    /// As `getpeername(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    #[doc(alias = "rgetpeername")]
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let connection = self.connection.get().ok_or_else(|| errno(libc::ENOTCONN))?;
        Ok(in_family(connection.peer_addr(), self.family.is_v6()))
    }

    /// Whether calls that would wait return `EAGAIN` instead.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets the non-blocking mode, as `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(super) fn connection(&self) -> Option<&AnyConnection> {
        self.connection.get()
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
    /// A descriptor that this socket keeps open as long as it lives, so that its number stays
    /// taken. It must not be read, written or polled.
    #[expect(clippy::expect_used, reason = "a socket without a port is made connected")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.port {
            Some(port) => port.as_fd(),
            None => self.connection.get().expect("accepted").as_fd(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}
