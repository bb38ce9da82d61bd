//! Transports: what carries the bytes of a [`Stream`](crate::Stream).
//!
//! Below `stream`, above `waiter`. [`Accelerated`] is a TCP socket with a faster connection beside
//! it, [`Rsockets`] a connection of the rsockets protocol.

mod accelerated;
mod rsockets;

use crate::source::Mark;
use crate::waiter::Waiter;
use crate::waiting::{Direction, is_about_input};
use crate::wakers::WakerKey;
pub use accelerated::Accelerated;
pub use rsockets::Rsockets;
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// What carries the bytes of a [`Stream`](crate::Stream): [`Accelerated`] or [`Rsockets`].
///
/// Code that takes streams of both kinds is generic over it. There are no other implementations.
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream, Transport, rsockets};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// async fn echo_byte<T: Transport>(mut stream: Stream<T>) -> std::io::Result<()> {
///     let byte = stream.read_u8().await?;
///     stream.write_u8(byte).await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let mut client = Stream::connect(listener.local_addr()?).await?;
/// client.write_u8(1).await?;
/// echo_byte(listener.accept().await?.0).await?;
/// assert_eq!(client.read_u8().await?, 1);
///
/// let listener = rsockets::Listener::bind("127.0.0.1:0").await?;
/// let connecting = rsockets::connect(listener.local_addr()?);
/// let (mut client, (server, _)) = tokio::try_join!(connecting, listener.accept())?;
/// client.write_u8(2).await?;
/// echo_byte(server).await?;
/// assert_eq!(client.read_u8().await?, 2);
/// # Ok(())
/// # }
/// ```
#[expect(private_bounds, reason = "this crate alone adds transports")]
pub trait Transport: Operations + fmt::Debug + Send + Sync + Unpin + 'static {}

impl Transport for Accelerated {}
impl Transport for Rsockets {}

/// What a stream asks of its transport. Calls do not block.
pub(crate) trait Operations {
    /// Receives, or peeks if `flags` say so; `WouldBlock` if nothing has come.
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize>;

    /// Sends what there is room for; `WouldBlock` if there is none.
    fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Bytes that a receive could return now.
    fn bytes_readable(&self) -> io::Result<usize>;

    /// As [`Waitable::poll_sources`](crate::waiting::Waitable::poll_sources).
    fn poll_sources(
        &self,
        waiter: &Arc<Waiter>,
        direction: Direction,
        mark: Mark,
    ) -> Poll<io::Result<()>>;

    /// As [`Waitable::poll_socket`](crate::waiting::Waitable::poll_socket).
    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        key: WakerKey,
    ) -> Poll<io::Result<()>>;

    /// After [`Self::poll_socket`]: takes the task of `key` out of the wakers.
    fn unregister(&self, key: WakerKey);

    /// The socket, if it shows everything to the runtime.
    fn kernel_socket(&self) -> Option<&TcpStream> {
        None
    }

    /// As [`Waitable::current_readiness`](crate::waiting::Waitable::current_readiness).
    fn current_readiness(&self, interest: Interest) -> io::Result<Ready>;

    fn shutdown(&self, how: Shutdown) -> io::Result<()>;

    /// Ends the connection; on `runtime` if that has to wait for what the device has not sent yet.
    fn close(&self, runtime: Option<&Handle>);

    fn as_fd(&self) -> BorrowedFd<'_>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
    fn set_nodelay(&self, on: bool) -> io::Result<()>;
    fn nodelay(&self) -> io::Result<bool>;
    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()>;
    fn linger(&self) -> io::Result<Option<Duration>>;
}

/// Which of `interest` hold, by what `events` returns as `poll(2)` does.
///
/// # Errors
/// `WouldBlock` if none does.
fn readiness_of(
    interest: Interest,
    events: impl FnOnce(PollFlags) -> io::Result<PollFlags>,
) -> io::Result<Ready> {
    let mut asked = PollFlags::empty();
    if is_about_input(interest) {
        asked |= PollFlags::IN | PollFlags::RDHUP;
    }
    if interest.is_writable() {
        asked |= PollFlags::OUT;
    }
    let found = events(asked)?;
    let ended = PollFlags::ERR | PollFlags::HUP;
    let mut ready = Ready::EMPTY;
    if interest.is_readable() && found.intersects(PollFlags::IN | PollFlags::RDHUP | ended) {
        ready |= Ready::READABLE;
    }
    let shows_end = interest.is_readable() || interest.is_priority();
    if shows_end && found.intersects(PollFlags::RDHUP | PollFlags::HUP) {
        ready |= Ready::READ_CLOSED;
    }
    if interest.is_writable() && found.intersects(PollFlags::OUT | ended) {
        ready |= Ready::WRITABLE;
    }
    if interest.is_writable() && found.intersects(ended) {
        ready |= Ready::WRITE_CLOSED;
    }
    if interest.is_error() && found.intersects(PollFlags::ERR) {
        ready |= Ready::ERROR;
    }
    if ready.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(ready) }
}
