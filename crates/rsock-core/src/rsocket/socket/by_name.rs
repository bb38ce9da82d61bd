//! Options of a socket by level and name, as C lays them out.

use crate::rsocket::options::{About, Value, is_of_keepalive};
use crate::rsocket::socket::{Socket, State, errno};
use std::io;
use std::sync::atomic::Ordering;

impl Socket {
    /// As `setsockopt(2)`, with the value as C lays it out.
    ///
    /// # Errors
    /// `ENOTSUP` for an unknown option; `EINVAL` for a bad value, or for queue sizes once connecting.
    #[doc(alias = "rsetsockopt")]
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        let about = self.about();
        self.options().set(about, level, name, value)?;
        if is_of_keepalive(level, name) {
            self.follow_keepalive();
        }
        Ok(())
    }

    /// The stream, if there is one, keeps to what the options say.
    pub(super) fn follow_keepalive(&self) {
        if let Some(established) = self.established.get() {
            // Both under the lock: the last of two calls counts.
            let options = self.options();
            established.set_keepalive(options.keepalive());
        }
    }

    /// As `getsockopt(2)`: the value as C lays it out. `SO_ERROR` is cleared by asking.
    ///
    /// # Errors
    /// `ENOTSUP` for an unknown option.
    #[doc(alias = "rgetsockopt")]
    pub fn option(&self, level: i32, name: i32) -> io::Result<Vec<u8>> {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            return Ok(Value::Int(self.take_error_number()).to_bytes());
        }
        let about = self.about();
        Ok(self.options().value(about, level, name)?.to_bytes())
    }

    /// `SO_ERROR`: the error that a connect in the background came to, or that broke the
    /// connection; told once.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        match self.take_error_number() {
            0 => None,
            e => Some(errno(e)),
        }
    }

    fn take_error_number(&self) -> i32 {
        if self.is_opening() {
            // Nobody need have polled.
            let _ = self.drive();
        }
        match (self.error.swap(0, Ordering::Relaxed), self.established.get()) {
            (0, Some(established)) => established.take_error().unwrap_or(0),
            (e, _) => e,
        }
    }

    fn about(&self) -> About {
        let is_connected = self.established.get().is_some();
        let state = self.state();
        About {
            is_v6: self.is_v6,
            is_listening: matches!(*state, State::Listening(_)),
            is_connected,
            is_fixed: is_connected || matches!(*state, State::Opening(_)),
        }
    }
}
