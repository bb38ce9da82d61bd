//! A listener for any TCP peer, as `std::net::TcpListener`.

use crate::{Builder, Side, Stream};
use std::io;
use std::iter::FusedIterator;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// A TCP listener, as [`TcpListener`], whose connections are [`Stream`]s.
///
/// ```
/// use rsock::{Listener, Stream};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let to = listener.local_addr()?;
/// let client = std::thread::spawn(move || Stream::connect(to)?.write_all(b"hello"));
/// for stream in listener.incoming().take(1) {
///     let mut text = String::new();
///     stream?.read_to_string(&mut text)?;
///     assert_eq!(text, "hello");
/// }
/// client.join().expect("the client does not panic")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    settings: Builder,
}

impl Builder {
    /// Listens at the first of the addresses that can be bound, as [`TcpListener::bind`].
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        Ok(Listener::new(TcpListener::bind(addr)?, *self))
    }

    /// Takes over a listening socket.
    #[must_use]
    pub fn listener(&self, socket: TcpListener) -> Listener {
        Listener::new(socket, *self)
    }
}

impl Listener {
    pub(crate) fn new(socket: TcpListener, settings: Builder) -> Self {
        Self { socket, settings }
    }

    /// Listens at the first of the addresses that can be bound; port 0 takes a free one. As
    /// [`TcpListener::bind`].
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr)
    }

    /// Takes the next connection, and says from which address it comes. Waits for one, unless the
    /// listener is non-blocking.
    ///
    /// # Errors
    /// As `accept(2)`: `EAGAIN`, `EINTR`, `ECONNABORTED`, `EMFILE`, `ENFILE`.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (socket, peer) = self.socket.accept()?;
        Ok((self.settings.adopt(socket, Side::Accepted)?, peer))
    }

    /// The connections, one after the other, as [`TcpListener::incoming`]. It never ends.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Another handle on the same listener.
    ///
    /// # Errors
    /// As `dup(2)`: `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, settings: self.settings })
    }
}

macro_rules! of_the_socket {
    (impl Listener {$(
        $(#[$doc:meta])*
        pub fn $name:ident(&self $(, $arg:ident: $ty:ty)?) -> $ret:ty;
    )*}) => {
        impl Listener {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As the method of the same name of [`TcpListener`].
            pub fn $name(&self $(, $arg: $ty)?) -> $ret {
                self.socket.$name($($arg)?)
            }
        )*}
    };
}

of_the_socket! {
    impl Listener {
        /// The address that it listens on (`getsockname(2)`).
        pub fn local_addr(&self) -> io::Result<SocketAddr>;
        /// Sets the non-blocking mode, in which [`Self::accept`] returns `WouldBlock` instead of
        /// waiting.
        pub fn set_nonblocking(&self, on: bool) -> io::Result<()>;
        /// `IP_TTL`: the number of hops that packets of the listener may take.
        pub fn ttl(&self) -> io::Result<u32>;
        /// Sets `IP_TTL`.
        pub fn set_ttl(&self, hops: u32) -> io::Result<()>;
        /// The pending error of the socket (`SO_ERROR`), which the call clears.
        pub fn take_error(&self) -> io::Result<Option<io::Error>>;
    }
}

/// The connections of a [`Listener`]; see [`Listener::incoming`].
#[derive(Debug)]
#[must_use = "iterators do nothing unless advanced"]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self::new(socket, Builder::new())
    }
}

impl From<Listener> for TcpListener {
    /// The kernel's listener. Connections that it has not accepted yet stay.
    fn from(listener: Listener) -> Self {
        listener.socket
    }
}

impl From<OwnedFd> for Listener {
    /// The descriptor must be a listening TCP socket; other kinds fail when they are used.
    fn from(fd: OwnedFd) -> Self {
        TcpListener::from(fd).into()
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.socket.into()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl IntoRawFd for Listener {
    fn into_raw_fd(self) -> RawFd {
        self.socket.into_raw_fd()
    }
}
