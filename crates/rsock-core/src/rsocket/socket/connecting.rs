//! From an idle socket to an established one, at once or in the background.

use crate::interrupt::Watch;
use crate::rsocket::any_device::{self, Opening};
use crate::rsocket::opening::CONNECT_LIMIT;
use crate::rsocket::socket::{Socket, State, errno};
use crate::sys;
use rsock_cm::canonical;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Socket {
    /// As `connect(2)`; takes `limit` at most, two minutes if `None`.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`, `EACCES` (the listener belongs
    /// to another user), `ENOTSUP` (another protocol version), `EADDRINUSE`, `EINPROGRESS`,
    /// `EALREADY`, `EISCONN`, `EINTR`.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, to: SocketAddr, limit: Option<Duration>) -> io::Result<()> {
        {
            let mut state = self.state();
            match &*state {
                State::Idle => {}
                State::Opening(_) => return Err(errno(libc::EALREADY)),
                State::Listening(_) | State::Connected => return Err(errno(libc::EISCONN)),
            }
            if !self.is_v6 && canonical(to).is_ipv6() {
                return Err(errno(libc::EAFNOSUPPORT));
            }
            let options = self.options();
            let limit = limit.or(options.send_timeout).unwrap_or(CONNECT_LIMIT);
            let (now, config) = (sys::now(), options.config());
            drop(options);
            let deadline = now.checked_add(limit.min(CONNECT_LIMIT)).unwrap_or(now);
            self.error.store(0, Ordering::Relaxed);
            let opening = Opening::start(self.port()?, to, config, [now, deadline])?;
            *state = State::Opening(Box::new(opening));
        }
        // Whoever connects to itself finds its own listener ready at once.
        any_device::progress(&any_device::listeners(), sys::now());
        if self.is_nonblocking() {
            return match self.drive() {
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
            // Told here, so not told again.
            self.error.store(0, Ordering::Relaxed);
        }
        result
    }

    /// Waits until a connect under way has come to its end.
    pub(super) fn finish_connect(&self) -> io::Result<()> {
        let watch = Watch::begin();
        while !self.drive()? {
            let (entry, until) = match &*self.state() {
                State::Opening(opening) => opening.poll_entry(),
                _ => continue,
            };
            let listeners = any_device::listeners();
            let mut fds = vec![entry];
            for listener in &listeners {
                fds.extend(listener.handshake_entries());
            }
            match sys::sleep(&mut fds, sys::time_left(Some(until)), None, watch) {
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

    /// Makes a connect under way progress. True once connected; an error is also kept for
    /// `SO_ERROR`, and the socket is as it was before the connect.
    pub(in crate::rsocket) fn drive(&self) -> io::Result<bool> {
        if self.established.get().is_some() {
            return Ok(true);
        }
        let mut state = self.state();
        let State::Opening(opening) = &mut *state else {
            // Another thread may have seen it through, or seen it fail.
            return match (&*state, self.error.load(Ordering::Relaxed)) {
                (State::Connected, _) => Ok(true),
                (_, 0) => Err(errno(libc::ENOTCONN)),
                (_, e) => Err(errno(e)),
            };
        };
        match opening.progress(sys::now()) {
            Ok(None) => Ok(false),
            Ok(Some(established)) => {
                let _ = self.established.set(established);
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

    /// As [`Self::drive`], and who connects to itself finds its own listener at work. An error is told
    /// here, so `SO_ERROR` does not tell it again.
    pub(in crate::rsocket) fn drive_alone(&self) -> io::Result<bool> {
        any_device::progress(&any_device::listeners(), sys::now());
        let result = self.drive();
        if result.is_err() {
            self.error.store(0, Ordering::Relaxed);
        }
        result
    }

    /// For a call on a socket that is not connected: waits for a connect under way.
    #[cold]
    pub(super) fn await_connection(&self, nonblocking: bool) -> io::Result<()> {
        if !self.is_opening() {
            return Err(match self.error.swap(0, Ordering::Relaxed) {
                0 => errno(libc::ENOTCONN),
                e => errno(e),
            });
        }
        if nonblocking {
            return if self.drive()? { Ok(()) } else { Err(errno(libc::EAGAIN)) };
        }
        self.finish_connect()
    }

    pub(in crate::rsocket) fn is_opening(&self) -> bool {
        self.established.get().is_none() && matches!(*self.state(), State::Opening(_))
    }
}
