//! How a link is made: one process offers it, the other accepts, and the reply completes it.

use crate::cred::{self, PeerCred};
use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use crate::soft::context::Node;
use crate::soft::hello::{HELLO_LEN, Hello, LinkId, random};
use crate::soft::segment::{self, Mapping};
use crate::soft::{Link, SoftContext};
use crate::untrusted::{PeerSocket, UntrustedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// An offered link that waits for the peer's reply.
#[derive(Debug)]
pub struct Offer {
    id: LinkId,
    node: &'static Node,
    hello: [u8; HELLO_LEN],
    socket: PeerSocket,
    peer_socket: HighFd,
    file: HighFd,
    own_segment: Mapping,
}

impl SoftContext {
    /// Begins a link to a process.
    ///
    /// # Errors
    /// When memory, address space or descriptors run out.
    pub fn offer(&self) -> Result<Offer, Error> {
        let node = self.node();
        let id = LinkId(random()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer_socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(verb("socketpair"))?;
        let (file, own_segment) = segment::create()?;
        let hello = Hello::new(id, &node.hello_sender(), &own_segment).to_bytes();
        let mut socket = PeerSocket::new(socket);
        // The peer may take its time to reply.
        let (peer_socket, file) = (HighFd::new(peer_socket), HighFd::new(file));
        // Nothing is ever read from this socket. Best effort: if the kernel cannot refuse
        // descriptors, `drop` checks for them.
        socket.refuse_descriptors();
        Ok(Offer { id, node, hello, socket, peer_socket, file, own_segment })
    }

    /// Answers an offer: `hello` and `fds` are what the peer got from [`Offer::hello`], `cred` is
    /// what the kernel says about the sending process. The reply and the descriptor go back for
    /// [`Offer::complete`].
    ///
    /// # Errors
    /// `PeerViolation` for anything but an honest offer, `Unsupported` for a peer of another user
    /// or version, or the error of a system call.
    pub fn accept(
        &self,
        hello: &[u8],
        fds: Vec<impl Into<UntrustedFd>>,
        cred: PeerCred,
    ) -> Result<(Arc<Link>, [u8; HELLO_LEN], OwnedFd), Error> {
        let fds: Vec<UntrustedFd> = fds.into_iter().map(Into::into).collect();
        cred::check(cred)?;
        let peer_hello = Hello::parse(hello)?;
        let [file, socket] = <[UntrustedFd; 2]>::try_from(fds)
            .map_err(|_| Error::PeerViolation("an offer carries two descriptors"))?;
        let socket =
            socket.into_socket().ok_or(Error::PeerViolation("an offer carries a socket"))?;
        let peer_segment = segment::adopt(&file, peer_hello.size)?;
        drop(file);
        let node = self.node();
        let id = LinkId(peer_hello.link);
        let (file, own_segment) = segment::create()?;
        let reply = Hello::new(id, &node.hello_sender(), &own_segment).to_bytes();
        let link =
            Link::new(id, false, node, &peer_hello, cred, socket, own_segment, peer_segment)?;
        Ok((link, reply, file))
    }
}

impl Offer {
    /// What the peer's [`SoftContext::accept`] needs: the hello, and the descriptors of this
    /// process's segment and of the peer's end of the link socket, in this order.
    #[must_use]
    pub fn hello(&self) -> ([u8; HELLO_LEN], [BorrowedFd<'_>; 2]) {
        (self.hello, [self.file.as_fd(), self.peer_socket.as_fd()])
    }

    /// The link's id.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Completes the link with the peer's reply.
    ///
    /// # Errors
    /// As [`SoftContext::accept`].
    pub fn complete(
        self,
        hello: &[u8],
        fds: Vec<impl Into<UntrustedFd>>,
        cred: PeerCred,
    ) -> Result<Arc<Link>, Error> {
        let fds: Vec<UntrustedFd> = fds.into_iter().map(Into::into).collect();
        cred::check(cred)?;
        let peer_hello = Hello::parse(hello)?;
        if peer_hello.link != self.id.0 {
            return Err(Error::PeerViolation("the reply belongs to another offer"));
        }
        let [file] = <[UntrustedFd; 1]>::try_from(fds)
            .map_err(|_| Error::PeerViolation("a reply carries one descriptor"))?;
        let peer_segment = segment::adopt(&file, peer_hello.size)?;
        drop(file);
        // Only the peer may hold its end, or the socket would not hang up when it dies.
        drop((self.peer_socket, self.file));
        Link::new(
            self.id,
            true,
            self.node,
            &peer_hello,
            cred,
            self.socket,
            self.own_segment,
            peer_segment,
        )
    }
}
