//! Closing a socket in any state.

use crate::rsocket::socket::{Socket, State};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a close waits for bytes on their way without `SO_LINGER`.
const DEFAULT_LINGER: Duration = Duration::from_secs(10);

impl Socket {
    /// As `close(2)`: ends the connection, and calls that wait in other threads, where the kernel's
    /// `close` leaves them waiting: a connect ends with `EBADF`. On an RDMA device it waits until
    /// the peer has all bytes, for `SO_LINGER` at most, or ten seconds without; in shared memory
    /// the peer has them already. A linger of zero resets the connection.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        if !self.close_unconnected()
            && let Some(connection) = self.connection.get()
        {
            let linger = self.options().linger;
            connection.close(linger.unwrap_or(DEFAULT_LINGER));
        }
    }

    /// Closes a socket that is not connected. False if it is: another thread may finish the connect
    /// meanwhile.
    fn close_unconnected(&self) -> bool {
        if self.connection.get().is_some() {
            return false;
        }
        let mut state = self.state();
        match &*state {
            State::Connected => return false,
            State::Listening(queue) => queue.shutdown(),
            // What threads report that wait for the connect.
            State::Connecting(_) => self.error.store(libc::EBADF, Ordering::Relaxed),
            State::Idle => {}
        }
        *state = State::Idle;
        true
    }
}

/// As [`Socket::close`], after the program has closed the descriptor that the socket
/// [shows](std::os::fd::AsFd): its number may be that of another file, which is left alone. The
/// socket must not be dropped.
pub fn close_without_descriptor(socket: &Socket) {
    match socket.connection.get() {
        Some(connection) if socket.port.is_none() => connection.abandon(),
        _ => socket.close(),
    }
}
