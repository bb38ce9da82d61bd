//! Connecting a socket: blocking, or in the background for a non-blocking socket.

use crate::interrupt::Watch;
use crate::rsocket::any_device::{self, AnyPendingConnect};
use crate::rsocket::pending_connect::{CONNECT_LIMIT, CONNECT_SLEEP};
use crate::rsocket::socket::{Mode, Socket, State, errno};
use crate::sys;
use rsock_cm::canonical;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Socket {
    /// As `connect(2)`, for `limit` at most; without a limit `SO_SNDTIMEO` counts, and 127 seconds
    /// in any case.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`, `EACCES` (the listener belongs
    /// to another user), `ENOTSUP` (another protocol version), `EADDRINUSE`, `EINPROGRESS`,
    /// `EALREADY`, `EISCONN`, `EINTR`; `EBADF` if another thread [closes](Self::close) the socket.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, to: SocketAddr, limit: Option<Duration>) -> io::Result<()> {
        {
            let mut state = self.state();
            match &*state {
                State::Idle => {}
                State::Connecting(_) => return Err(errno(libc::EALREADY)),
                State::Listening(_) | State::Connected => return Err(errno(libc::EISCONN)),
            }
            if !self.family.is_v6() && canonical(to).is_ipv6() {
                return Err(errno(libc::EAFNOSUPPORT));
            }
            let options = self.options();
            let limit = limit.or(options.send_timeout).unwrap_or(CONNECT_LIMIT);
            let (now, config) = (sys::now(), options.config());
            drop(options);
            let deadline = now.checked_add(limit.min(CONNECT_LIMIT)).unwrap_or(now);
            self.error.store(0, Ordering::Relaxed);
            let pending = AnyPendingConnect::start(self.port()?, to, config, [now, deadline])?;
            *state = State::Connecting(Box::new(pending));
        }
        // A process that connects to its own listener advances that handshake, too.
        any_device::progress(&any_device::listeners(), sys::now());
        if self.is_nonblocking() {
            return match self.progress_connect() {
                Err(e) => {
                    self.error.store(0, Ordering::Relaxed);
                    Err(e)
                }
                Ok(true) => Ok(()),
                Ok(false) => Err(errno(libc::EINPROGRESS)),
            };
        }
        let result = self.finish_connect();
        if !matches!(&result, Err(e) if e.kind() == io::ErrorKind::Interrupted) {
            // This call reports the error, so `SO_ERROR` does not.
            self.error.store(0, Ordering::Relaxed);
        }
        result
    }

    /// Waits until a connect under way has succeeded or failed.
    pub(super) fn finish_connect(&self) -> io::Result<()> {
        let watch = Watch::begin();
        while !self.progress_connect()? {
            let (entry, until) = match &*self.state() {
                State::Connecting(pending) => pending.poll_entry(),
                _ => continue,
            };
            let listeners = any_device::listeners();
            let mut fds = vec![entry];
            for listener in &listeners {
                fds.extend(listener.handshake_entries());
            }
            let limit = sys::time_left(Some(until)).map(|left| left.min(CONNECT_SLEEP));
            match sys::sleep(&mut fds, limit, None, watch) {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) && !watch.must_end() => {}
                Err(e) => return Err(e),
                Ok(_) => {}
            }
            if fds[1..].iter().any(|fd| fd.revents != 0) {
                any_device::progress(&listeners, sys::now());
            }
        }
        Ok(())
    }

    /// Advances a connect under way without waiting. True once the socket is connected. An error is
    /// also kept for `SO_ERROR`, and the socket is idle again.
    pub(in crate::rsocket) fn progress_connect(&self) -> io::Result<bool> {
        if self.connection.get().is_some() {
            return Ok(true);
        }
        let mut state = self.state();
        let State::Connecting(pending) = &mut *state else {
            // Another thread may have finished the connect.
            return match (&*state, self.error.load(Ordering::Relaxed)) {
                (State::Connected, _) => Ok(true),
                (_, 0) => Err(errno(libc::ENOTCONN)),
                (_, e) => Err(errno(e)),
            };
        };
        match pending.progress(sys::now()) {
            Ok(None) => Ok(false),
            Ok(Some(connection)) => {
                let _ = self.connection.set(connection);
                self.follow_keepalive();
                *state = State::Connected;
                Ok(true)
            }
            Err(e) => {
                self.error.store(e.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
                *state = State::Idle;
                Err(e)
            }
        }
    }

    /// As [`Self::progress_connect`], and advances the handshakes of this process's listeners, for
    /// a process that connects to itself. The caller reports an error, so `SO_ERROR` does not.
    pub(in crate::rsocket) fn progress_connect_and_listeners(&self) -> io::Result<bool> {
        any_device::progress(&any_device::listeners(), sys::now());
        let result = self.progress_connect();
        if result.is_err() {
            self.error.store(0, Ordering::Relaxed);
        }
        result
    }

    /// For a call on a socket that is not connected: waits for a connect under way.
    #[cold]
    pub(super) fn await_connection(&self, mode: Mode) -> io::Result<()> {
        if !self.is_connecting() {
            return Err(match self.error.swap(0, Ordering::Relaxed) {
                0 => errno(libc::ENOTCONN),
                e => errno(e),
            });
        }
        if mode == Mode::Nonblocking {
            return if self.progress_connect()? { Ok(()) } else { Err(errno(libc::EAGAIN)) };
        }
        self.finish_connect()
    }

    pub(in crate::rsocket) fn is_connecting(&self) -> bool {
        self.connection.get().is_none() && matches!(*self.state(), State::Connecting(_))
    }
}
