//! The connector for clients of hyper-util and channels of tonic.

use crate::builder::Builder;
use crate::rsockets;
use crate::stream::Stream;
use crate::transport::{Accelerated, Rsockets, Transport};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// Connects to the authority of a URI with a [`Stream`]: an accelerated one, or with
/// `Connector<rsockets::Builder>` an [`rsockets::Stream`]. The scheme must be `http`; the port is
/// 80 unless given.
///
/// The connection's future fails with `InvalidInput` for another scheme or a URI without a host,
/// and otherwise as [`Stream::connect`] or [`rsockets::connect`]. Dropping it leaves no connection
/// behind.
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
#[derive(Clone, Copy, Debug)]
pub struct Connector<B = Builder> {
    settings: B,
}

impl Connector {
    /// A connector of accelerated streams with the default settings and `TCP_NODELAY`.
    #[must_use]
    pub fn new() -> Self {
        Self { settings: Builder::new().nodelay(true) }
    }
}

impl<B> Connector<B> {
    /// A connector with these settings: a [`Builder`] or an [`rsockets::Builder`].
    #[must_use]
    pub fn with(settings: B) -> Self {
        Self { settings }
    }
}

impl Default for Connector {
    fn default() -> Self {
        Self::new()
    }
}

/// The future of a connection.
type Connecting<T> = Pin<Box<dyn Future<Output = io::Result<Io<T>>> + Send>>;

impl Service<Uri> for Connector {
    type Response = Io;
    type Error = io::Error;
    type Future = Connecting<Accelerated>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let settings = self.settings;
        Box::pin(async move { settings.connect(authority(&to)?).await.map(Io::new) })
    }
}

impl Service<Uri> for Connector<rsockets::Builder> {
    type Response = Io<Rsockets>;
    type Error = io::Error;
    type Future = Connecting<Rsockets>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let settings = self.settings;
        Box::pin(async move { settings.connect(authority(&to)?).await.map(Io::new) })
    }
}

/// The host and the port of an `http` URI.
fn authority(of: &Uri) -> io::Result<(&str, u16)> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    if of.scheme_str().is_some_and(|scheme| scheme != "http") {
        return Err(invalid("not an http URI"));
    }
    let host = of.host().ok_or_else(|| invalid("a URI without a host"))?;
    Ok((host.trim_start_matches('[').trim_end_matches(']'), of.port_u16().unwrap_or(80)))
}

/// A [`Stream`] with hyper's traits; what a [`Connector`] returns.
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
pub struct Io<T: Transport = Accelerated>(TokioIo<Stream<T>>);

impl<T: Transport> Io<T> {
    fn new(stream: Stream<T>) -> Self {
        Self(TokioIo::new(stream))
    }

    /// The stream.
    #[must_use]
    pub fn get_ref(&self) -> &Stream<T> {
        self.0.inner()
    }

    /// The stream.
    #[must_use]
    pub fn into_inner(self) -> Stream<T> {
        self.0.into_inner()
    }
}

impl<T: Transport> Connection for Io<T> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl<T: Transport> Read for Io<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<T: Transport> Write for Io<T> {
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
