//! The soft device's part of the handshake: links between processes.

use crate::error::Error;
use rsock_verbs::cred::{self, PeerCred};
use rsock_verbs::soft::{LinkId, Soft, SoftContext};
use rsock_verbs::{Backend, Context};

/// How a queue pair reaches its peer.
pub(super) type Path = <Soft as Backend>::Path;

/// The device as `parents` was opened, but for the calling process.
pub(super) fn of_this_process(parents: &SoftContext) -> Result<SoftContext, Error> {
    Ok(if parents.attr().write_with_imm {
        SoftContext::open()?
    } else {
        SoftContext::open_without_write_imm()?
    })
}

/// Refuses peers of other users.
pub(super) fn check(peer: PeerCred) -> Result<(), Error> {
    cred::check(peer).map_err(|_| Error::PeerUntrusted { uid: peer.uid })
}

/// A link that this process may share with the process that listens as `peer`. Another process may
/// answer.
pub(super) fn likely(ctx: &SoftContext, peer: PeerCred) -> Option<Path> {
    ctx.link_to_pid(peer.pid, None).filter(|link| peer.pid != 0 && link.probe())
}

/// The local end of the link that `peer` names, if it is a link with that very process.
pub(super) fn named(ctx: &SoftContext, id: LinkId, peer: PeerCred) -> Option<Path> {
    ctx.link_by_id(id).filter(|link| is_with(link, peer))
}

/// Whether `link` is a link with process `peer`.
pub(super) fn is_with(link: &Path, peer: PeerCred) -> bool {
    peer.pid != 0 && link.peer_cred().pid == peer.pid && link.is_alive()
}
