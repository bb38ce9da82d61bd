//! What is decided before a [`Socket`] connects or listens.

use crate::rsocket::{Family, Socket};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Backlog of a listener, which is what `std::net` asks for.
const BACKLOG: u32 = 128;

/// Settings of sockets that are going to connect or listen.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketSettings {
    iomap_slots: Option<u16>,
    receive_memory: Option<u32>,
}

impl SocketSettings {
    /// How many regions the peer may expose to this socket at once; 0 by default. The protocol
    /// can express 0 to 128, then multiples of 256 up to 32512: others are rounded down.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.iomap_slots = Some(n);
        self
    }

    /// Receive memory of a stream, in bytes.
    #[must_use]
    pub fn receive_memory(mut self, bytes: u32) -> Self {
        self.receive_memory = Some(bytes);
        self
    }

    /// A socket with these settings, which neither connects nor listens yet.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn socket(&self, family: Family) -> io::Result<Socket> {
        let socket = Socket::new(family)?;
        if let Some(n) = self.iomap_slots {
            socket.set_iomap_slots(n)?;
        }
        if let Some(bytes) = self.receive_memory {
            socket.set_receive_memory(bytes);
        }
        Ok(socket)
    }

    /// A socket that is connected to `to`, after `limit` at most.
    ///
    /// # Errors
    /// As [`Socket::connect`].
    pub fn connect(&self, to: SocketAddr, limit: Option<Duration>) -> io::Result<Socket> {
        let socket = self.socket(Family::of(&to))?;
        socket.connect(to, limit)?;
        Ok(socket)
    }

    /// A socket that listens at `at`, with `SO_REUSEADDR`; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Socket::bind`] and [`Socket::listen`].
    pub fn listen(&self, at: SocketAddr) -> io::Result<Socket> {
        let socket = self.socket(Family::of(&at))?;
        socket.set_reuse_address(true);
        socket.bind(at)?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    }
}
