//! A TCP connection that may get a faster path, and what a step of its search has led to.

use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::path::Path;
use crate::accelerate::{FallbackReason, Side};
use crate::engine::Config;
use rsock_verbs::soft::Link;
use rustix::fd::BorrowedFd;
use std::sync::Arc;

/// The outcome of a step of the search.
#[derive(Debug)]
pub(in crate::accelerate) enum Step {
    /// Nothing yet.
    Pending,
    /// A path to the peer exists.
    Found(Box<Path>),
    /// No path is possible: stay on TCP.
    Failed(FallbackReason),
}

/// The connection that needs a path.
#[derive(Clone, Copy, Debug)]
pub(in crate::accelerate) struct Candidate<'a> {
    pub(in crate::accelerate) socket: BorrowedFd<'a>,
    pub(in crate::accelerate) tuple: &'a FourTuple,
    pub(in crate::accelerate) config: &'a Config,
    pub(in crate::accelerate) side: Option<Side>,
    /// The links by which the step is to be taken. If there are none, it may open sockets.
    pub(in crate::accelerate) links: &'a [Arc<Link>],
}
