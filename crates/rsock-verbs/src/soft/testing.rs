//! Linked contexts for tests, without a connection manager.

use super::Link;
use super::SoftContext;
use super::hello::HELLO_LEN;
use crate::cred::PeerCred;
use crate::error::Error;
use crate::high_fd::verb;
use rustix::net::sockopt;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// This process linked to itself: the offering end and the accepting end.
///
/// # Errors
/// As [`SoftContext::offer`] and [`SoftContext::accept`].
pub fn linked_pair(ctx: &SoftContext) -> Result<(Arc<Link>, Arc<Link>), Error> {
    let offer = ctx.offer()?;
    let me = PeerCred::own();
    let (hello, fds) = offer.hello();
    let mut copies = Vec::new();
    for fd in fds {
        copies.push(rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(verb("fcntl(F_DUPFD)"))?);
    }
    let (accepting, reply, segment) = ctx.accept(&hello, copies, me)?;
    let offering = offer.complete(&reply, vec![segment], me)?;
    Ok((offering, accepting))
}

/// Begins a link over a connected Unix sequenced-packet socket, whose other end runs
/// [`accept_over`] in the process that `cred` names. The caller passes `cred` because a socket pair
/// only knows the process that made it.
///
/// # Errors
/// As [`SoftContext::offer`], or what the socket answers.
pub fn offer_over(
    ctx: &SoftContext,
    socket: BorrowedFd<'_>,
    cred: PeerCred,
) -> Result<Arc<Link>, Error> {
    let offer = ctx.offer()?;
    let (hello, fds) = offer.hello();
    send(socket, &hello, &fds)?;
    let (reply, fds) = receive(socket)?;
    offer.complete(&reply, fds, cred)
}

/// Answers [`offer_over`].
///
/// # Errors
/// As [`SoftContext::accept`], or what the socket answers.
pub fn accept_over(
    ctx: &SoftContext,
    socket: BorrowedFd<'_>,
    cred: PeerCred,
) -> Result<Arc<Link>, Error> {
    let (hello, fds) = receive(socket)?;
    let (link, reply, segment) = ctx.accept(&hello, fds, cred)?;
    send(socket, &reply, &[segment.as_fd()])?;
    Ok(link)
}

/// A socket whose last close would wait for an hour, and its peer; closing the peer ends the wait.
///
/// # Panics
/// If the loopback interface has no room for it.
#[must_use]
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (peer, _) = listener.accept().expect("accept");
    socket.set_nonblocking(true).expect("nonblocking");
    while socket.write(&[0; 65536]).is_ok() {}
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).expect("linger");
    (socket.into(), peer)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
        .map_err(verb("sendmsg"))?;
    Ok(())
}

fn receive(socket: BorrowedFd<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), Error> {
    let mut bytes = vec![0; HELLO_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        .map_err(verb("recvmsg"))?;
    bytes.truncate(got.bytes);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok((bytes, fds))
}
