//! A connect that is under way, on one device.

use crate::engine::{Config, Preparing, ThreadBell};
use crate::metrics;
use crate::rsocket::connection::Connection;
use rsock_cm::Port;
use rsock_cm::manager::{Answer, Connecting, ContextOf, Manager, Progress};
use rsock_proto::{ConnData, PeerError};
use rustix::event::PollFlags;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a connect takes at most: what kernel TCP takes to give up.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(127);

/// Longest sleep on a connect: a second thread that advances the same connect takes the messages
/// that would have ended the sleep, and one that closes the socket sends none.
pub(super) const CONNECT_SLEEP: Duration = Duration::from_millis(20);

/// A connect under way. [`Self::progress`] advances it and never waits.
#[derive(Debug)]
pub(super) struct PendingConnect<M: Manager> {
    connecting: M::Connecting,
    config: Config,
    path: metrics::Transport,
    /// Made once the path is known, consumed when the peer has answered.
    half: Option<(ContextOf<M>, Preparing<M::Backend>)>,
}

impl<M: Manager> PendingConnect<M>
where
    M::Backend: ThreadBell,
{
    /// Starts to connect to `to`, until `deadline`.
    pub(super) fn start(
        manager: &M,
        path: metrics::Transport,
        port: &Arc<Port>,
        to: SocketAddr,
        config: Config,
        [now, deadline]: [Instant; 2],
    ) -> Result<Self, rsock_cm::Error> {
        let connecting = manager.connect(Arc::clone(port), to, now, deadline)?;
        Ok(Self { connecting, config, path, half: None })
    }

    /// Advances the handshake as far as it goes without waiting. A connection or an error is the
    /// last answer.
    pub(super) fn progress(&mut self, now: Instant) -> io::Result<Option<Connection<M>>> {
        loop {
            match self.connecting.progress(now)? {
                Progress::Pending => return Ok(None),
                Progress::Path(ctx, path) => {
                    let half = Preparing::new(&ctx, &path, &self.config)?;
                    let data = half.conn_data().encode();
                    self.connecting.send_request(half.qp_num(), &data)?;
                    self.half = Some((ctx, half));
                }
                Progress::Accepted(answer) => return self.finish(&answer).map(Some),
                Progress::Rejected(_) => {
                    return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
                }
            }
        }
    }

    fn finish(&mut self, answer: &Answer) -> io::Result<Connection<M>> {
        let peer = ConnData::decode(answer.private_data.as_bytes()).map_err(peer_error)?;
        let (ctx, half) = self.half.take().ok_or(io::ErrorKind::InvalidInput)?;
        let stream = half.connect(&peer, answer.qp_num)?;
        let connection = self.connecting.establish()?;
        Ok(Connection::new(&ctx, stream, connection, self.path))
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.connecting.local_addr()
    }

    /// What to poll, and until when.
    pub(super) fn poll_entry(&self) -> (libc::pollfd, Instant) {
        use std::os::fd::AsFd;
        let interest = self.connecting.interest();
        // Without interest only a timeout advances the handshake. The descriptor is left out then,
        // because a lasting hang-up would end every poll at once.
        let fd: RawFd = if interest.is_empty() { -1 } else { self.connecting.as_fd().as_raw_fd() };
        let events = crate::sys::poll_bits(interest & PollFlags::IN);
        (libc::pollfd { fd, events, revents: 0 }, self.connecting.next_timeout())
    }
}

/// The errno for a peer that breaks the protocol in its connection data.
pub(super) fn peer_error(e: PeerError) -> io::Error {
    io::Error::from_raw_os_error(match e {
        PeerError::Version(_) => libc::ENOTSUP,
        _ => libc::EPROTO,
    })
}
