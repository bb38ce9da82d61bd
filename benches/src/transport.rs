//! Connected byte streams of each kind, both ends in this process, for measuring them side by side.

use rsock::{Listener, Stream, rsockets};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

/// One end of a connection.
pub trait Conn: Read + Write + Send {}

impl<T: Read + Write + Send> Conn for T {}

/// A kind of connection.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Kernel TCP over loopback, without delay.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// rsock, TCP first: measured once it has moved to shared memory.
    Rsock,
    /// rsock, the rsockets protocol over shared memory from the first byte.
    Rsockets,
}

impl Kind {
    /// Every kind, the kernel's first.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Unix, Self::Rsock, Self::Rsockets];

    /// For the names of measurements.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Rsock => "rsock",
            Self::Rsockets => "rsockets",
        }
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// What the system answers.
    pub fn pair(self) -> io::Result<(Box<dyn Conn>, Box<dyn Conn>)> {
        Ok(match self {
            Self::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let client = TcpStream::connect(listener.local_addr()?)?;
                let (server, _) = listener.accept()?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                (Box::new(client), Box::new(server))
            }
            Self::Unix => {
                let (a, b) = UnixStream::pair()?;
                (Box::new(a), Box::new(b))
            }
            Self::Rsock => {
                let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let mut client = Stream::connect(listener.local_addr()?)?;
                let (mut server, _) = listener.accept()?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                settle(&mut client, &mut server)?;
                (Box::new(client), Box::new(server))
            }
            Self::Rsockets => {
                let listener = rsockets::Listener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let client = rsockets::connect(listener.local_addr()?)?;
                let (server, _) = listener.accept()?;
                (Box::new(client), Box::new(server))
            }
        })
    }
}

/// Talks until both directions have left TCP.
fn settle(client: &mut Stream, server: &mut Stream) -> io::Result<()> {
    const ENOUGH: usize = 10_000;
    let mut word = [0];
    for _ in 0..ENOUGH {
        if client.channels().are_accelerated() && server.channels().are_accelerated() {
            return Ok(());
        }
        client.write_all(&word)?;
        server.read_exact(&mut word)?;
        server.write_all(&word)?;
        client.read_exact(&mut word)?;
    }
    let why = client.fallback_reason().unwrap_or(rsock::FallbackReason::None);
    Err(io::Error::other(format!("the connection stays on TCP: {why}")))
}

/// A peer in a thread of its own, which ends when its connection does.
#[derive(Debug)]
pub struct Peer(Option<JoinHandle<io::Result<()>>>);

impl Peer {
    /// Runs `serve` over and over until the other end closes.
    #[must_use]
    pub fn spawn(
        mut conn: Box<dyn Conn>,
        serve: impl Fn(&mut dyn Conn) -> io::Result<()> + Send + 'static,
    ) -> Self {
        Self(Some(thread::spawn(move || {
            loop {
                match serve(&mut *conn) {
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                    other => other?,
                }
            }
        })))
    }

    /// Waits for its end; the connection must have been closed.
    ///
    /// # Panics
    /// If it failed: then what was measured was not the transport.
    pub fn join(mut self) {
        if let Some(thread) = self.0.take() {
            thread.join().expect("the peer does not panic").expect("the peer does not fail");
        }
    }
}
