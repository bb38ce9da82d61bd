//! Connected byte streams of each kind, both ends in this process, for measuring them side by side.

use rsock_core::rsocket::{Listener, Socket, Stream};
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
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
                let listener = Socket::new(false)?;
                listener.bind((Ipv4Addr::LOCALHOST, 0).into())?;
                listener.listen(1)?;
                let to = listener.local_addr()?;
                let client = Socket::new(false)?;
                // The handshake needs both ends to take part.
                let server = thread::scope(|scope| {
                    let accepting = scope.spawn(|| listener.accept());
                    client.connect(to, None)?;
                    accepting.join().map_err(|_| io::Error::other("accepting panicked"))?
                })?;
                (Box::new(Rsocket(client)), Box::new(Rsocket(server)))
            }
        })
    }
}

/// Talks until both directions have left TCP.
fn settle(client: &mut Stream, server: &mut Stream) -> io::Result<()> {
    const ENOUGH: usize = 10_000;
    let mut word = [0];
    for _ in 0..ENOUGH {
        if client.on_ring() == (true, true) && server.on_ring() == (true, true) {
            return Ok(());
        }
        client.write_all(&word)?;
        server.read_exact(&mut word)?;
        server.write_all(&word)?;
        client.read_exact(&mut word)?;
    }
    let why = client.pin_reason();
    Err(io::Error::other(format!("the connection stays on TCP: {why:?}")))
}

/// An rsockets stream as a byte stream.
#[derive(Debug)]
struct Rsocket(Socket);

impl Read for Rsocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.recv(&mut [IoSliceMut::new(buf)], RecvFlags::empty())
    }
}

impl Write for Rsocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(buf)], false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
