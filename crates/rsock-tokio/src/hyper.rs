//! Clients of hyper-util, and channels of tonic, over rsock.

use crate::builder::Builder;
use crate::rsockets;
use crate::stream::Stream;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// Connects to the authority of a URI with an rsock [`Stream`], of either mode; `http` only, port
/// 80 unless given.
///
/// # Examples
///
/// ```
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use rsock_tokio::{Connector, Listener};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let uri = format!("http://{}/", listener.local_addr()?).parse()?;
/// tokio::spawn(async move {
///     // A very small server.
///     let (mut stream, _) = listener.accept().await?;
///     stream.read(&mut [0; 1024]).await?;
///     stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await
/// });
/// let client: Client<_, String> = Client::builder(TokioExecutor::new()).build(Connector::new());
/// assert_eq!(client.get(uri).await?.status(), 204);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Connector {
    mode: Mode,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    TcpFirst(Builder),
    Pure(rsockets::Builder),
}

impl Default for Mode {
    fn default() -> Self {
        Self::TcpFirst(Builder::new().nodelay(true))
    }
}

impl Connector {
    /// With the default settings and `TCP_NODELAY`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With settings of your own.
    #[must_use]
    pub fn with(settings: Builder) -> Self {
        Self { mode: Mode::TcpFirst(settings) }
    }

    /// In the pure mode.
    #[must_use]
    pub fn rsockets(settings: rsockets::Builder) -> Self {
        Self { mode: Mode::Pure(settings) }
    }
}

impl Service<Uri> for Connector {
    type Response = Io;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Io>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let mode = self.mode;
        Box::pin(async move {
            let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
            if to.scheme_str().is_some_and(|scheme| scheme != "http") {
                return Err(invalid("not an http URI"));
            }
            let host = to.host().ok_or_else(|| invalid("a URI without a host"))?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let to = (host, to.port_u16().unwrap_or(80));
            let stream = match mode {
                Mode::TcpFirst(settings) => settings.connect(to).await?,
                Mode::Pure(settings) => settings.connect(to).await?,
            };
            Ok(Io(TokioIo::new(stream)))
        })
    }
}

/// A [`Stream`] with hyper's traits; made by [`Connector`].
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Connector, Listener};
/// use tower_service::Service;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let to = format!("http://{}/", listener.local_addr()?).parse()?;
/// let io = Connector::new().call(to).await?;
/// assert_eq!(io.get_ref().peer_addr()?, listener.local_addr()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Io(TokioIo<Stream>);

impl Io {
    /// The stream.
    #[must_use]
    pub fn get_ref(&self) -> &Stream {
        self.0.inner()
    }

    /// The stream.
    #[must_use]
    pub fn into_inner(self) -> Stream {
        self.0.into_inner()
    }
}

impl Connection for Io {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
