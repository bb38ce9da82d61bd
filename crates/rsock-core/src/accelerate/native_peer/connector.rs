//! Peers that speak rsockets alone, the connecting side: after TCP's refusal, the same address and port
//! among those of RDMA devices.
//!
//! The program's socket becomes the placeholder: it is connected to a socket of ours, so that whoever waits
//! for it, or asks how the connect went, hears from the kernel that it has succeeded. A call waits. Only
//! an address gets so far that has just refused TCP, so that somebody is there who answers.

#![forbid(unsafe_code)]

use crate::accelerate::native_peer::listener;
use crate::accelerate::path::RdmaPath;
use crate::accelerate::socket_proxy;
use crate::accelerate::{AcceleratedStream, Side};
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

/// Whether the configuration wants a peer at `remote` to be called by rsockets alone, should it refuse TCP.
#[must_use]
pub fn is_called(remote: SocketAddr) -> bool {
    listener::is_wanted() && trust().admits(remote.ip()) && remote.port() != 0
}

/// Calls `remote`, which has refused a TCP connection to `socket`: within `limit` somebody there answers, and
/// `socket` is the placeholder of the stream, or nobody does.
///
/// # Errors
/// What TCP said stands: `ECONNREFUSED`; or what the socket or the memory lacks.
pub fn call(
    socket: BorrowedFd<'_>,
    remote: SocketAddr,
    limit: Duration,
) -> io::Result<AcceleratedStream> {
    let refused = || io::Error::from(rustix::io::Errno::CONNREFUSED);
    if !is_called(remote) || sockopt::socket_protocol(socket)? != Some(ipproto::TCP) {
        return Err(refused());
    }
    let deadline = sys::now() + limit;
    let called =
        begin(socket, canonical(remote), deadline).and_then(|mut c| answer(&mut c, deadline));
    // No device, no way, no listener, no answer: to the program it is all one.
    let (far, addrs) = called.ok_or_else(refused)?;
    let kept =
        socket_proxy::connect_kept_end(sockopt::socket_domain(socket)?, &socket, addrs.0.ip())?;
    let twin = AcceleratedStream::sole(socket, kept, far, Side::Connected, addrs);
    twin.ok_or_else(|| rustix::io::Errno::NOMEM.into())
}

/// On its way, from the address that the program has chosen, if it has.
fn begin(socket: BorrowedFd<'_>, remote: SocketAddr, deadline: Instant) -> Option<Connecting> {
    let local = SocketAddr::try_from(getsockname(socket).ok()?).ok()?.ip().to_canonical();
    let now = sys::now();
    if local.is_unspecified() {
        Connecting::to(remote, now, deadline).ok()
    } else {
        Connecting::from(local, remote, now, deadline).ok()
    }
}

/// The stream, once somebody has answered, and its addresses.
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
                // A handler does not end it: it is short.
                let _ = sys::ppoll(&mut fds, sys::time_left(Some(deadline)), None);
            }
            // Again, where the peer still knew the queue pair's number from another connection.
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
