//! Kernel TCP and rsock under one name, for measurements whose source differs in the stream's type
//! alone.

use rsock_tokio::Builder;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// A family of asynchronous streams.
pub trait Net: Copy + Send + Sync + 'static {
    /// For the names of measurements.
    const NAME: &'static str;
    /// A connected stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// What accepts them.
    type Listener: axum::serve::Listener<Io = Self::Stream, Addr = SocketAddr> + Sync;

    /// Listens at a free port.
    fn bind() -> impl Future<Output = io::Result<(Self::Listener, SocketAddr)>> + Send;
    /// The next connection.
    fn accept(from: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    /// Connects, without delay.
    fn connect(to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Whether the bytes of `stream` go the way that is to be measured.
    ///
    /// # Errors
    /// One that says why not.
    fn check(_: &Self::Stream) -> io::Result<()> {
        Ok(())
    }
}

/// Takes turns on a new stream until its bytes go the way that is to be measured. A measurement
/// without this may be one of something else.
///
/// # Errors
/// Those of the turns; one that says why the stream goes another way, after so many of them that it
/// will not change.
pub async fn settle<N: Net>(
    stream: &mut N::Stream,
    turn: impl AsyncFn(&mut N::Stream) -> io::Result<()>,
) -> io::Result<()> {
    const ENOUGH: usize = 1_000;
    for _ in 0..ENOUGH {
        turn(stream).await?;
        if N::check(stream).is_ok() {
            return Ok(());
        }
    }
    N::check(stream)
}

/// Kernel TCP by Tokio's own streams.
#[derive(Clone, Copy, Debug)]
pub struct Tcp;

/// rsock as it comes.
#[derive(Clone, Copy, Debug)]
pub struct Rsock;

/// rsock without active waiting.
#[derive(Clone, Copy, Debug)]
pub struct RsockAsleep;

const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

impl Net for Tcp {
    const NAME: &'static str = "tcp";
    type Stream = TcpStream;
    type Listener = TcpListener;

    async fn bind() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind(ANY).await?;
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    }

    async fn accept(from: &TcpListener) -> io::Result<TcpStream> {
        let (stream, _) = from.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Both kinds of rsock: they differ in their settings.
macro_rules! rsock {
    ($kind:ty, $name:literal, $settings:expr) => {
        impl Net for $kind {
            const NAME: &'static str = $name;
            type Stream = rsock_tokio::Stream;
            type Listener = rsock_tokio::Listener;

            async fn bind() -> io::Result<(Self::Listener, SocketAddr)> {
                let listener = $settings.bind(ANY).await?;
                let addr = listener.local_addr()?;
                Ok((listener, addr))
            }

            async fn accept(from: &Self::Listener) -> io::Result<Self::Stream> {
                let (stream, _) = from.accept().await?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }

            async fn connect(to: SocketAddr) -> io::Result<Self::Stream> {
                let stream = $settings.connect(to).await?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }

            fn check(stream: &Self::Stream) -> io::Result<()> {
                if stream.channels().are_accelerated() {
                    return Ok(());
                }
                let why = stream.fallback_reason();
                Err(io::Error::other(format!("the connection stays on TCP: {why:?}")))
            }
        }
    };
}

rsock!(Rsock, "rsock", Builder::new());
rsock!(RsockAsleep, "rsock, no spinning", Builder::new().spin(Duration::ZERO));
