//! Native connectors: after TCP has refused a connection, they try the same address and port over
//! RDMA devices, where a peer that speaks rsockets alone may listen.
//!
//! The program's socket becomes the placeholder: it is connected to a socket of this process, so
//! that event loops that wait for it, or a program that asks how the connect went, learn from the
//! kernel that it has succeeded. Connecting blocks the caller. Only an address that has just
//! refused TCP is tried, so its host is up and answers.

#![forbid(unsafe_code)]

use crate::accelerate::native_peer::{NativeStream, listener};
use crate::accelerate::path::RdmaPath;
use crate::accelerate::socket_proxy;
use crate::config::trusted_hosts::trust;
use crate::engine::Preparing;
use crate::sys;
use rsock_cm::canonical;
use rsock_cm::manager::{Answer, Connected as _, Connecting as _};
use rsock_cm::rdma::{RdmaConnecting as Connecting, RdmaProgress as Progress};
use rsock_proto::ConnData;
use rsock_verbs::rdma::{Rdma, RdmaContext};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::net::{getsockname, ipproto, sockopt};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

impl NativeStream {
    /// Whether the configuration allows connections by rsockets alone to any peer.
    #[must_use]
    #[inline]
    pub fn may_connect_anywhere() -> bool {
        listener::is_wanted()
    }

    /// Whether the configuration allows a connection to `remote` by rsockets alone, if it refuses
    /// TCP.
    #[must_use]
    pub fn may_connect(remote: SocketAddr) -> bool {
        listener::is_wanted() && trust().admits(remote.ip()) && remote.port() != 0
    }

    /// Connects to `remote`, which has refused a TCP connection to `socket`, within `limit`. Then
    /// `socket` is the placeholder of the stream.
    ///
    /// # Errors
    /// `ECONNREFUSED`, the error of TCP, if the peer does not answer; errors of system calls, and
    /// `ENOMEM`.
    pub fn connect(
        socket: BorrowedFd<'_>,
        remote: SocketAddr,
        limit: Duration,
    ) -> io::Result<Self> {
        let refused = || io::Error::from(rustix::io::Errno::CONNREFUSED);
        let is_tcp = || Ok::<_, io::Error>(sockopt::socket_protocol(socket)? == Some(ipproto::TCP));
        if !Self::may_connect(remote) || !is_tcp()? {
            return Err(refused());
        }
        let deadline = sys::now() + limit;
        let connected =
            begin(socket, canonical(remote), deadline).and_then(|mut c| answer(&mut c, deadline));
        // Without a device, a route, a listener or an answer, the program gets TCP's error.
        let (path, addrs) = connected.ok_or_else(refused)?;
        let domain = sockopt::socket_domain(socket)?;
        let kept = socket_proxy::connect_kept_end(domain, &socket, addrs.0.ip())?;
        Self::new(socket, kept, path.into(), addrs).ok_or_else(|| rustix::io::Errno::NOMEM.into())
    }
}

/// Begins to connect, from the address that the program has bound, if it has bound one.
fn begin(socket: BorrowedFd<'_>, remote: SocketAddr, deadline: Instant) -> Option<Connecting> {
    let local = SocketAddr::try_from(getsockname(socket).ok()?).ok()?.ip().to_canonical();
    let now = sys::now();
    if local.is_unspecified() {
        Connecting::to(remote, now, deadline).ok()
    } else {
        Connecting::from(local, remote, now, deadline).ok()
    }
}

/// The stream, once the peer has answered, and its addresses.
fn answer(
    connecting: &mut Connecting,
    deadline: Instant,
) -> Option<(RdmaPath, (SocketAddr, SocketAddr))> {
    let mut asked: Option<(RdmaContext, Preparing<Rdma>)> = None;
    loop {
        match (connecting.progress(sys::now()).ok()?, asked.take()) {
            (Progress::Pending, before) => {
                asked = before;
                let fd = connecting.as_fd().as_raw_fd();
                let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
                // A signal handler does not end the wait, which is short.
                let _ = sys::ppoll(&mut fds, sys::time_left(Some(deadline)), None);
            }
            // Tries again if the peer still knew the queue pair's number from another connection.
            (Progress::Path(ctx, path), before) => {
                let preparing = Preparing::new(&ctx, &path, &listener::config()).ok()?;
                drop(before);
                let data = preparing.conn_data().encode();
                connecting.send_request(preparing.qp_num(), &data).ok()?;
                asked = Some((ctx, preparing));
            }
            (Progress::Accepted(answer), Some((ctx, preparing))) => {
                return establish(connecting, ctx, preparing, &answer);
            }
            (Progress::Accepted(_), None) | (Progress::Rejected(_), _) => return None,
        }
    }
}

fn establish(
    connecting: &mut Connecting,
    ctx: RdmaContext,
    preparing: Preparing<Rdma>,
    answer: &Answer,
) -> Option<(RdmaPath, (SocketAddr, SocketAddr))> {
    let peer = ConnData::decode(answer.private_data.as_bytes()).ok()?;
    let stream = preparing.connect(&peer, answer.qp_num).ok()?;
    let connection = connecting.establish().ok()?;
    let addrs = (connection.local_addr(), connection.peer_addr());
    Some((RdmaPath::new(stream, connection, ctx), addrs))
}
