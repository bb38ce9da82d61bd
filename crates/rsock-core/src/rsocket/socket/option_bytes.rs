//! Options of a socket by level and name, as C lays them out; `typed_options` has them by method.

use crate::rsocket::options::{OptionValue, SocketState, is_of_keepalive};
use crate::rsocket::socket::{Socket, State, errno};
use std::io;
use std::sync::atomic::Ordering;

impl Socket {
    /// As `setsockopt(2)`, with the value as C lays it out.
    ///
    /// # Errors
    /// `ENOTSUP` for an unknown option; `EINVAL` for a bad value, or for queue sizes once
    /// connecting.
    #[doc(alias = "rsetsockopt")]
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        let state = self.state_for_options();
        self.options().set(state, level, name, value)?;
        if is_of_keepalive(level, name) {
            self.follow_keepalive();
        }
        Ok(())
    }

    /// Gives the options for keepalive to the stream, if there is one.
    pub(super) fn follow_keepalive(&self) {
        if let Some(connection) = self.connection.get() {
            // Under the lock of the options, so that the later of two calls counts.
            let options = self.options();
            connection.set_keepalive(options.keepalive());
        }
    }

    /// As `getsockopt(2)`: the value as C lays it out. `SO_ERROR` is cleared by the call.
    ///
    /// # Errors
    /// `ENOTSUP` for an unknown option.
    #[doc(alias = "rgetsockopt")]
    pub fn option(&self, level: i32, name: i32) -> io::Result<Vec<u8>> {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            return Ok(OptionValue::Int(self.take_error_number()).to_bytes());
        }
        let state = self.state_for_options();
        Ok(self.options().value(state, level, name)?.to_bytes())
    }

    /// `SO_ERROR`: the error that a non-blocking connect ended with, or that broke the connection.
    /// It is reported once.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        match self.take_error_number() {
            0 => None,
            e => Some(errno(e)),
        }
    }

    fn take_error_number(&self) -> i32 {
        if self.is_connecting() {
            // The program need not have polled.
            let _ = self.progress_connect();
        }
        match (self.error.swap(0, Ordering::Relaxed), self.connection.get()) {
            (0, Some(connection)) => connection.take_error().unwrap_or(0),
            (e, _) => e,
        }
    }

    pub(super) fn state_for_options(&self) -> SocketState {
        let is_connected = self.connection.get().is_some();
        let state = self.state();
        SocketState {
            is_v6: self.family.is_v6(),
            is_listening: matches!(*state, State::Listening(_)),
            is_connected,
            is_fixed: is_connected || matches!(*state, State::Connecting(_)),
        }
    }
}
